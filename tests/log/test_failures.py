"""Full disks and failing calls: what was refused leaves no trace, and the next append works."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore.errors import LogFull, LogUnavailable, OutcomeUnknown
from eventstore.log import EmbeddedLog
from tests.log import layout
from tests.log.children import keys, put, run
from tests.log.conftest import OpenLog


def test_no_file_may_grow_and_then_it_may(directory: Path) -> None:
    before, after = run("full", directory, 700_000)
    assert "Nothing was appended" in before["refused"]
    assert before["same"]
    assert after == {"offset": True, "same": True}
    [path] = layout.segment_paths(directory)
    assert len(layout.places(path)) > 100


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=640k", "none", str(disk)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a small disk is not permitted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.parametrize("segment_bytes", [64 * 1024, 64 * 1024 * 1024])
def test_the_disk_is_full_and_then_it_is_not(small_disk: Path, segment_bytes: int) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(200_000))
    log = EmbeddedLog.open(small_disk / "log", segment_bytes=segment_bytes)
    done: list[str] = []
    with pytest.raises(LogFull, match="No space left"):
        while True:
            put(log, f"k{len(done)}", b"x" * 3000)
            done.append(f"k{len(done)}")
    with pytest.raises(LogFull):
        put(log, "again", b"x" * 3000)
    assert log.end() == len(done)
    assert keys(log) == done
    assert sum(len(layout.places(path)) for path in layout.segment_paths(small_disk / "log")) == len(done)
    ballast.unlink()
    assert put(log, "after", b"x" * 3000) == len(done)
    log.close()
    log = EmbeddedLog.open(small_disk / "log")
    assert keys(log) == [*done, "after"]
    log.close()


def test_a_full_disk_at_the_first_open(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(500_000))
    with pytest.raises(LogFull, match="could not open"):
        EmbeddedLog.open(small_disk / "log")
    (small_disk / "ballast").unlink()
    log = EmbeddedLog.open(small_disk / "log")
    assert put(log, "k") == 0
    log.close()


class Failing:
    """Stands in for a system call and fails as often as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, code: int) -> None:
        self.times = 0
        self.first_do: Any = None
        real = getattr(module, name)

        def call(*arguments: Any) -> Any:
            if not self.times:
                return real(*arguments)
            self.times -= 1
            if self.first_do:
                self.first_do(*arguments)
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(module, name, call)


@pytest.mark.parametrize(("code", "error"), [(errno.EIO, LogUnavailable), (errno.EDQUOT, LogFull)])
@pytest.mark.parametrize("times", [1, 2])
def test_a_write_that_fails_half_way(
    open_log: OpenLog, directory: Path, monkeypatch: pytest.MonkeyPatch, code: int, error: type, times: int
) -> None:
    """The second failure hits the attempt to clear what was written of the first."""
    log = open_log()
    put(log, "a")
    failing = Failing(monkeypatch, os, "pwritev", code)
    failing.times = times
    failing.first_do = lambda fd, buffers, at: os.pwrite(fd, b"".join(buffers)[:200], at)
    with pytest.raises(error, match="Nothing was appended") as refused:
        put(log, "b", b"x" * 500)
    assert type(refused.value) is error
    [path] = layout.segment_paths(directory)
    if times == 1:
        assert len(layout.places(path)) == 1
    assert keys(log) == ["a"]
    assert put(log, "c") == 1
    assert keys(log) == ["a", "c"]
    assert len(layout.places(path)) == 2


@pytest.mark.parametrize("other_first", [False, True])
def test_a_sync_that_fails_leaves_the_outcome_open(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, other_first: bool
) -> None:
    log, other = open_log(segment_bytes=1024), open_log(segment_bytes=1024)
    put(log, "a")
    failing = Failing(monkeypatch, os, "fdatasync", errno.EIO)
    failing.times = 1
    with pytest.raises(OutcomeUnknown, match="read before writing again"):
        put(log, "b")
    assert log.end() == 1
    if other_first:
        put(other, "large enough to roll over", b"x" * 900)
    put(log, "c")
    records = [record for records in log.read(0) for record in records]
    mine = [record for record in records if record.session == records[0].session]
    assert [record.key for record in mine] == [b"a", b"b", b"c"]
    assert [record.sequence for record in mine] == [1, 2, 3]


def test_a_sync_that_fails_while_the_file_grows_appends_nothing(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    failing = Failing(monkeypatch, os, "fdatasync", errno.EIO)
    failing.times = 1
    with pytest.raises(LogUnavailable):
        put(log, "a", b"x" * 300_000)
    assert put(log, "b", b"x" * 300_000) == 0
    assert keys(log) == ["b"]


def test_a_segment_that_cannot_be_made(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(segment_bytes=1024)
    put(log, "a", b"x" * 900)
    failing = Failing(monkeypatch, Path, "rename", errno.ENOSPC)
    failing.times = 1
    with pytest.raises(LogFull):
        put(log, "b", b"x" * 900)
    assert put(log, "c") == 1
    assert put(log, "d", b"x" * 900) == 2
    assert keys(log) == ["a", "c", "d"]


def test_a_segment_that_was_made_and_not_used(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log, other = open_log(segment_bytes=1024), open_log(segment_bytes=1024)
    put(log, "a", b"x" * 600)
    put(other, "b")
    failing = Failing(monkeypatch, os, "fsync", errno.EIO)
    failing.times = 1
    with pytest.raises(LogUnavailable):
        put(log, "refused", b"x" * 900)
    assert put(other, "c", b"x" * 10) == 2
    assert put(log, "d", b"x" * 900) == 3
    assert keys(log) == keys(other) == ["a", "b", "c", "d"]
    log.close()
    assert keys(open_log()) == ["a", "b", "c", "d"]


def test_an_interrupt_between_write_and_sync(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    put(log, "a")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            put(log, "b")
    assert put(log, "c") == 2
    sequences = [record.sequence for records in log.read(0) for record in records]
    assert sequences == [1, 2, 3]


def test_a_lock_that_cannot_be_had(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    failing = Failing(monkeypatch, fcntl, "flock", errno.ENOLCK)
    failing.times = 1
    with pytest.raises(LogUnavailable, match="could not lock"):
        put(log, "a")
    assert put(log, "b") == 0


def test_a_read_that_fails(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log()
    put(log, "a")
    failing = Failing(monkeypatch, os, "pread", errno.EIO)
    failing.times = 1
    with pytest.raises(LogUnavailable, match="could not read"):
        list(log.read(0))
    assert keys(log) == ["a"]
