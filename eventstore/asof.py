"""Which moment a caller means: a position of the log, and the time it stands for."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from eventstore.errors import NoSuchMoment
from eventstore.history import microseconds
from eventstore.log.base import Log
from eventstore.log.position import Position
from eventstore.ttl import now_us

When = Position | str | int | datetime
"""A position, its written form, the offset of a log's only partition, or a time with its zone."""


class AsOf(NamedTuple):
    """A moment of the past that the log holds."""

    position: Position
    """Everything before it had happened, and nothing else."""
    time_us: int | None
    """The time that was asked for, µs since the epoch; ``None`` when a position was."""

    def at_us(self, log: Log) -> int:
        """The time asked for, or else that of the last event before the position; 0 when there is none."""
        return _last_appended_us(log, self.position) if self.time_us is None else self.time_us


def as_of(log: Log, when: object) -> AsOf:
    """The moment meant.

    Raises ``NoSuchMoment`` for one the log does not hold, ``InvalidInput`` and ``InvalidType``
    for what names none.
    """
    end = log.high_water_mark()
    if not isinstance(when, datetime):
        position = Position.of(when)
        if not end.covers(position):
            raise NoSuchMoment(f"position {position} lies beyond the end of the log, which is {end}")
        return AsOf(position, None)
    time_us = microseconds(when, "the moment")
    if time_us > now_us() and time_us > _last_appended_us(log, end):
        raise NoSuchMoment(f"{when.isoformat()} is still to come; the log ends at {end}")
    position = log.position_at(time_us)
    if not any(position):
        raise NoSuchMoment(
            f"the log has no event at or before {when.isoformat()}; "
            "position 0 is the store before the first one"
        )
    return AsOf(position, time_us)


def _last_appended_us(log: Log, position: Position) -> int:
    end = log.high_water_mark()
    latest = 0
    for partition, offset in enumerate(position):
        step = 1
        # Not every offset of a topic holds a record, so the search widens until one is found.
        while offset:
            start = max(0, offset - step)
            found = _appended_us(log, end, partition, start, offset)
            if found is not None or not start:
                latest = max(latest, found or 0)
                break
            step *= 16
    return latest


def _appended_us(log: Log, end: Position, partition: int, start: int, stop: int) -> int | None:
    """Append time of the last record of a partition in a range of offsets."""
    only = Position(*(start if number == partition else offset for number, offset in enumerate(end)))
    last = None
    for chunk in log.chunks(only, whole=False):
        for record in chunk.records:
            if record.partition == partition and record.offset < stop:
                last = record.appended_us
        if chunk.position[partition] >= stop:
            break
    return last
