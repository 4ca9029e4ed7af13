"""The embedded log of what may be lost: not synced, trimmed at its old end, whole after a power cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventstore.errors import LogDamaged
from eventstore.log import EmbeddedLog
from eventstore.log.disposable import DisposableLog
from tests.log import layout
from tests.log.children import keys, put

ALL = 2**62
OpenDisposable = Callable[..., DisposableLog]


@pytest.fixture
def open_disposable(directory: Path) -> Iterator[OpenDisposable]:
    opened: list[DisposableLog] = []

    def open_(segment_bytes: int = 2048) -> DisposableLog:
        opened.append(DisposableLog.open(directory, segment_bytes=segment_bytes))
        return opened[-1]

    yield open_
    for log in opened:
        log.close()


def fill(log: EmbeddedLog, count: int) -> None:
    for number in range(count):
        put(log, f"k{number}")


def test_it_is_a_log(open_disposable: OpenDisposable) -> None:
    one, other = open_disposable(), open_disposable()
    fill(one, 100)
    put(other, "theirs")
    assert keys(one) == keys(other) == [*(f"k{number}" for number in range(100)), "theirs"]
    one.close()
    assert keys(open_disposable()) == keys(other)


def test_nothing_is_synced_but_what_is_asked_for_and_what_is_full(
    open_disposable: OpenDisposable, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_disposable(segment_bytes=1 << 20)
    synced: list[int] = []
    monkeypatch.setattr("eventstore.log.embedded.sync_data", synced.append)
    monkeypatch.setattr("eventstore.log.disposable.sync_data", synced.append)
    fill(log, 20)
    assert synced == []
    log.sync()
    assert len(synced) == 1
    small = open_disposable(segment_bytes=1024)
    before = len(layout.segment_paths(Path(log.location)))
    fill(small, 50)
    rolled = len(layout.segment_paths(Path(log.location))) - before
    assert rolled > 0
    assert len(synced) == 1 + rolled


def test_trim_by_time_and_by_size(open_disposable: OpenDisposable, directory: Path) -> None:
    log = open_disposable()
    fill(log, 200)
    count = len(layout.segment_paths(directory))
    assert count > 5
    assert log.trim(0, ALL) == 0
    assert log.trim(0, 3 * 2048) == count - 3
    assert log.trim(ALL, ALL) == 2
    (last,) = layout.segment_paths(directory)
    assert keys(log) == [f"k{number}" for number in range(int(last.stem), 200)]
    put(log, "after")
    log.close()
    assert keys(open_disposable())[-1] == "after"


def test_readers_of_other_processes_go_on_behind_what_was_trimmed(
    open_disposable: OpenDisposable, directory: Path
) -> None:
    mine, other = open_disposable(), open_disposable()
    fill(mine, 50)
    reading = other.read(0)
    assert [record.key for record in next(reading)] == [b"k0"]
    fill(mine, 150)
    assert mine.trim(ALL, ALL) > 0
    (last,) = layout.segment_paths(directory)
    rest = [record.offset for records in other.read(0) for record in records]
    assert rest == [*range(int(last.stem), 200)]
    # The file that was open is read to its end; what came between is gone, and nothing is read twice.
    seen = [record.offset for records in reading for record in records]
    assert seen == [*range(1, len(seen) + 1)]
    assert 0 < len(seen) < 49
    put(other, "theirs")
    assert keys(mine)[-1] == "theirs"


@pytest.mark.parametrize("kind", [EmbeddedLog, DisposableLog])
def test_a_power_cut_that_keeps_later_records_and_loses_earlier_ones(
    directory: Path, kind: type[EmbeddedLog]
) -> None:
    """Unsynced pages reach the disk in any order. In a log that syncs, this is damage."""
    log = kind.open(directory)
    fill(log, 10)
    log.close()
    (path,) = layout.segment_paths(directory)
    lost = layout.places(path)[4]
    layout.overwrite(path, lost.position, bytes(lost.size))
    if kind is EmbeddedLog:
        with pytest.raises(LogDamaged):
            kind.open(directory)
        return
    log = kind.open(directory)
    assert keys(log) == [f"k{number}" for number in range(4)]
    put(log, "after")
    assert keys(log) == [*(f"k{number}" for number in range(4)), "after"]
    log.close()
