"""A torn tail is cut, once, with a warning; any other damage is named and left alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from eventstore.errors import LogDamaged, LogError
from eventstore.log import EmbeddedLog, Record
from tests.log import layout
from tests.log.children import keys, put
from tests.log.conftest import OpenLog

Tear = Callable[[Path, layout.Place], None]


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def keep(part: int) -> Tear:
    """Keeps some bytes of a frame and zeros the rest; ``part`` counts from its end if negative."""

    def tear(path: Path, place: layout.Place) -> None:
        kept = part if part > 0 else place.size + part
        layout.overwrite(path, place.position + kept, bytes(place.size - kept))

    return tear


def cut_file(part: int) -> Tear:
    return lambda path, place: truncate(path, place.position + (part if part > 0 else place.size + part))


def garbage(path: Path, place: layout.Place) -> None:
    layout.overwrite(path, place.position, b"\xa5" * (place.size + 5000))


def reorder(path: Path, place: layout.Place) -> None:
    """The first page of a frame did not reach the disk, a later one did."""
    layout.overwrite(path, place.position, bytes(100))


TEARS = {
    "header": keep(40),
    "header, file cut": cut_file(40),
    "first byte": keep(1),
    "payload": keep(200),
    "payload, file cut": cut_file(200),
    "last byte": lambda path, place: layout.flip(path, place.position + place.size - 1),
    "checksum": lambda path, place: layout.flip(path, place.position + 4),
    "length": lambda path, place: layout.overwrite(path, place.position + 8, b"\xff\xff\xff\xff"),
    "garbage beyond": garbage,
    "pages out of order": reorder,
}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    mine = [r for r in caplog.records if r.name == "eventstore.log" and r.levelno >= logging.WARNING]
    return [r.getMessage() for r in mine]


@pytest.mark.parametrize("tear", TEARS.values(), ids=TEARS.keys())
def test_a_torn_tail_is_cut_once(
    open_log: OpenLog, directory: Path, caplog: pytest.LogCaptureFixture, tear: Tear
) -> None:
    log = open_log()
    for key in ("a", "b", "torn"):
        put(log, key, b"x" * 600)
    log.close()
    [path] = layout.segment_paths(directory)
    torn = layout.places(path)[-1]
    tear(path, torn)

    log = open_log()
    assert log.end() == 2
    assert [put(log, "c"), put(log, "d")] == [2, 3]
    log.close()
    [warning] = warnings_of(caplog)
    assert str(path) in warning
    assert f"at byte {torn.position};" in warning

    log = open_log()
    assert keys(log) == ["a", "b", "c", "d"]
    assert len(layout.places(path)) == 4
    assert len(warnings_of(caplog)) == 1


def test_a_tail_cut_at_a_border_needs_no_cut(
    open_log: OpenLog, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    for key in ("a", "b"):
        put(log, key)
    log.close()
    [path] = layout.segment_paths(directory)
    truncate(path, layout.places(path)[-1].position)
    log = open_log()
    assert put(log, "c") == 1
    assert keys(log) == ["a", "c"]
    [warning] = warnings_of(caplog)
    assert "ends at offset 1" in warning


def test_a_batch_is_torn_as_a_whole(open_log: OpenLog, directory: Path) -> None:
    log = open_log()
    put(log, "a")
    log.append([log.prepare([Record(b"b%d" % i, b"x" * 500, ()) for i in range(10)])])
    log.close()
    [path] = layout.segment_paths(directory)
    keep(3000)(path, layout.places(path)[-1])
    assert keys(open_log()) == ["a"]


@pytest.mark.parametrize("mark", ["moved on", "before", "of another log"])
def test_frames_of_one_write_may_reach_the_disk_in_any_order(
    open_log: OpenLog, directory: Path, mark: str
) -> None:
    """Only the mark tells a write that was never synced from one that was damaged later."""
    log = open_log()
    put(log, "a")
    before = (directory / "high-water").read_bytes()
    log.append([log.prepare([Record(key, b"x" * 200, ())]) for key in (b"b", b"c", b"d")])
    log.close()
    [path] = layout.segment_paths(directory)
    keep(10)(path, layout.places(path)[2])
    if mark == "moved on":
        with pytest.raises(LogDamaged):
            open_log()
        return
    contents = {"before": before, "of another log": b"EvMark01" + b"\xff" * 56}
    layout.overwrite(directory / "high-water", 0, contents[mark])
    log = open_log()
    assert keys(log) == ["a", "b"]
    assert put(log, "e") == 2


def test_a_torn_record_that_holds_a_copy_of_log_files_is_cut(open_log: OpenLog, directory: Path) -> None:
    log = open_log()
    other = EmbeddedLog.open(directory.parent / "other")
    for i in range(5):
        put(other, f"{i}")
        put(log, f"{i}")
    other.close()
    copies = [layout.segment_paths(path)[0].read_bytes() for path in (directory, directory.parent / "other")]
    put(log, "torn", b"".join(copies))
    log.close()
    [path] = layout.segment_paths(directory)
    layout.flip(path, layout.places(path)[-1].position + 4)
    log = open_log()
    assert keys(log) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("at", [0, 4, 8, 20, 60, 90, 150])
def test_a_flipped_byte_in_the_last_segment_is_refused(
    open_log: OpenLog, directory: Path, caplog: pytest.LogCaptureFixture, number: int, at: int
) -> None:
    log = open_log()
    for i in range(6):
        put(log, f"{i}", b"x" * 100)
    [path] = layout.segment_paths(directory)
    place = layout.places(path)[number]
    layout.flip(path, place.position + at)
    damaged = path.read_bytes()

    with pytest.raises(LogDamaged) as reading:
        list(log.read(0))
    log.close()
    with pytest.raises(LogDamaged) as opening:
        open_log()
    (directory / "high-water").unlink()
    with pytest.raises(LogDamaged) as opening_without_mark:
        open_log()
    for error in (reading.value, opening.value, opening_without_mark.value):
        assert str(path) in str(error)
        assert f"at byte {place.position}:" in str(error)
        assert f"offset {number} " in str(error)
    assert path.read_bytes() == damaged
    assert not warnings_of(caplog)

    layout.flip(path, place.position + at)
    assert keys(open_log()) == list("012345")


def test_a_frame_in_the_place_of_another_is_refused(open_log: OpenLog, directory: Path) -> None:
    log = open_log()
    for i in range(6):
        put(log, f"{i}")
    [path] = layout.segment_paths(directory)
    first, second = layout.places(path)[2:4]
    layout.overwrite(path, second.position, path.read_bytes()[first.position :][: first.size])
    with pytest.raises(LogDamaged, match=rf"at byte {second.position}: .*offset 3 "):
        list(log.read(0))
    log.close()
    with pytest.raises(LogDamaged, match=rf"at byte {second.position}: .*offset 3 "):
        open_log()


def test_what_stands_before_the_damage_is_given_first(open_log: OpenLog, directory: Path) -> None:
    log = open_log()
    for i in range(6):
        put(log, f"{i}")
    [path] = layout.segment_paths(directory)
    layout.flip(path, layout.places(path)[3].position + 80)
    reading = log.read(1)
    assert [next(reading)[0].key for _ in range(2)] == [b"1", b"2"]
    with pytest.raises(LogDamaged):
        next(reading)


def test_damage_in_an_older_segment_is_found_when_read(open_log: OpenLog, directory: Path) -> None:
    log = open_log(segment_bytes=1024)
    for i in range(12):
        put(log, f"{i}", b"x" * 200)
    log.close()
    path = layout.segment_paths(directory)[1]
    place = layout.places(path)[-1]
    layout.flip(path, place.position + 100)
    log = open_log(segment_bytes=1024)
    expected = rf"{path} is damaged at byte {place.position}: .*offset {place.offset} "
    with pytest.raises(LogDamaged, match=expected):
        list(log.read(0))
    later = layout.segment_paths(directory)[2]
    assert keys(log, int(later.stem)) == [str(i) for i in range(int(later.stem), 12)]
    assert put(log, "12") == 12


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_segment_is_refused(open_log: OpenLog, directory: Path, number: int) -> None:
    log = open_log(segment_bytes=1024)
    for i in range(16):
        put(log, f"{i}", b"x" * 200)
    path = layout.segment_paths(directory)[number]
    path.rename(directory / "aside")
    with pytest.raises(LogDamaged, match=path.name):
        list(log.read(0))
    log.close()
    with pytest.raises(LogDamaged, match=rf"{path.name} is missing.*offset {int(path.stem)} "):
        open_log()
    (directory / "aside").rename(path)
    assert len(keys(open_log())) == 16


def test_a_segment_that_lost_its_last_frame_is_found_when_read(open_log: OpenLog, directory: Path) -> None:
    log = open_log(segment_bytes=1024)
    for i in range(9):
        put(log, f"{i}", b"x" * 200)
    log.close()
    path = layout.segment_paths(directory)[0]
    last = layout.places(path)[-1]
    layout.overwrite(path, last.position, bytes(last.size))
    with pytest.raises(LogDamaged, match=rf"at byte {last.position}: .*offset {last.offset} "):
        list(open_log(segment_bytes=1024).read(0))


@pytest.mark.parametrize("number", [0, 1, -1])
@pytest.mark.parametrize("at", [3, 12, 20, 33, 45, 60])
def test_a_damaged_segment_header_is_refused(
    open_log: OpenLog, directory: Path, number: int, at: int
) -> None:
    log = open_log(segment_bytes=1024)
    for i in range(9):
        put(log, f"{i}", b"x" * 200)
    log.close()
    path = layout.segment_paths(directory)[number]
    layout.flip(path, at)
    with pytest.raises(LogDamaged, match=rf"{path.name} is damaged at byte 0.*offset {int(path.stem)} "):
        open_log()


def test_a_segment_of_another_log_is_refused(open_log: OpenLog, directory: Path) -> None:
    paths = []
    for place in (directory, directory.parent / "other"):
        log = EmbeddedLog.open(place, segment_bytes=1024)
        for i in range(9):
            put(log, f"{i}", b"x" * 200)
        log.close()
        paths.append(layout.segment_paths(place)[1])
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(LogDamaged, match="another log"):
        open_log()


def test_a_newer_format_is_refused(open_log: OpenLog, directory: Path) -> None:
    open_log().close()
    [path] = layout.segment_paths(directory)
    raw = bytearray(path.read_bytes())
    raw[8] = 9
    raw[12:16] = crc32(raw[16:64], crc32(raw[:12])).to_bytes(4, "little")
    path.write_bytes(raw)
    with pytest.raises(LogError, match="format 9"):
        open_log()


@pytest.mark.parametrize("content", [None, b"", b"junk" * 16, b"EvMark01" + b"\xff" * 56])
def test_the_mark_is_only_a_hint(open_log: OpenLog, directory: Path, content: bytes | None) -> None:
    log = open_log()
    for i in range(3):
        put(log, f"{i}")
    log.close()
    (directory / "high-water").unlink()
    if content is not None:
        (directory / "high-water").write_bytes(content)
    log = open_log()
    assert log.end() == 3
    assert keys(log) == ["0", "1", "2"]
    assert put(log, "3") == 3


def test_a_log_that_another_process_found_shorter(open_log: OpenLog, directory: Path) -> None:
    log = open_log()
    for i in range(3):
        put(log, f"{i}")
    [path] = layout.segment_paths(directory)
    last = layout.places(path)[-1]
    layout.flip(path, last.position + last.size - 1)
    other = open_log()
    assert other.end() == 2
    assert put(log, "next") == 2
    assert keys(log) == keys(other) == ["0", "1", "next"]


def test_frames_beyond_the_mark_are_made_durable_before_it_moves(
    open_log: OpenLog, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    for i in range(3):
        put(log, f"{i}")
    log.close()
    layout.overwrite(directory / "high-water", 8, (1).to_bytes(8, "little"))
    [path] = layout.segment_paths(directory)
    frames = layout.places(path)
    wrote: list[tuple[int, int]] = []
    marks: list[int] = []
    write, sync = os.pwritev, os.fdatasync

    def pwritev(fd: int, buffers: list[bytes], position: int) -> int:
        wrote.append((position, sum(map(len, buffers))))
        return write(fd, buffers, position)

    def fdatasync(fd: int) -> None:
        marks.append(int.from_bytes((directory / "high-water").read_bytes()[8:16], "little"))
        sync(fd)

    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "fdatasync", fdatasync)
    log = open_log()
    assert wrote == [(frames[1].position, frames[1].size + frames[2].size)]
    assert marks == [1]
    assert log.end() == 3


@pytest.mark.parametrize("offset", [0, 2, 100])
def test_a_mark_that_is_behind_or_ahead_is_corrected(open_log: OpenLog, directory: Path, offset: int) -> None:
    log = open_log()
    for i in range(3):
        put(log, f"{i}")
    log.close()
    layout.overwrite(directory / "high-water", 8, offset.to_bytes(8, "little"))
    log = open_log()
    assert log.end() == 3
    assert put(log, "3") == 3
    assert keys(log) == ["0", "1", "2", "3"]


def test_an_unfinished_segment_is_no_segment(open_log: OpenLog, directory: Path) -> None:
    log = open_log(segment_bytes=1024)
    put(log, "a", b"x" * 900)
    (directory / "unfinished.tmp").write_bytes(b"half a header")
    put(log, "b", b"x" * 900)
    log.close()
    assert keys(open_log()) == ["a", "b"]
    assert len(layout.segment_paths(directory)) == 2
