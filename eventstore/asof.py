"""Which moment a caller means: a position of the log, and the time it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from eventstore.errors import NoSuchMoment
from eventstore.history import microseconds
from eventstore.log.base import Log
from eventstore.log.position import Position
from eventstore.ttl import now_us

KEPT_TIMES: Final = 1_000
FIRST_LOOK: Final = 16
"""How many offsets before a position are looked at first: transactions leave some without a record."""
When = Position | str | int | datetime | Mapping[str, Any]
"""A position, its written form, the offset of a log's only partition, a time with its zone, or the
config of a checkpoint."""


class AsOf(NamedTuple):
    """A moment of the past that the log holds."""

    position: Position
    """Everything before it had happened, and nothing else."""
    time_us: int | None
    """The time that was asked for, µs since the epoch; ``None`` when a position was."""


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


class Times:
    """When moments of one log were. What was asked of the log once is remembered, since it stays so."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[Position, int] = {}

    def us(self, then: AsOf) -> int:
        """The time asked for, or else that of the last event before the position; 0 when there is none."""
        if then.time_us is not None:
            return then.time_us
        known = self._known.get(then.position)
        if known is None:
            known = _last_appended_us(self._log, then.position)
            if len(self._known) >= KEPT_TIMES:
                self._known.clear()
            self._known[then.position] = known
        return known


def _last_appended_us(log: Log, position: Position) -> int:
    end = log.high_water_mark()
    wanted = {partition: offset for partition, offset in enumerate(position) if offset}
    latest, step = 0, FIRST_LOOK
    # Not every offset of a topic holds a record, so the search widens until one is found; in all
    # partitions at once, since each look at a topic is a connection.
    while wanted:
        start = {partition: max(0, offset - step) for partition, offset in wanted.items()}
        found = _appended_us(log, Position(*(start.get(at, last) for at, last in enumerate(end))), wanted)
        latest = max(latest, *found.values(), 0)
        wanted = {at: offset for at, offset in wanted.items() if at not in found and start[at]}
        step *= 16
    return latest


def _appended_us(log: Log, start: Position, stops: Mapping[int, int]) -> dict[int, int]:
    """Append time of the last record from start to stop of each partition that has one there."""
    found: dict[int, int] = {}
    for chunk in log.chunks(start, whole=False):
        for record in chunk.records:
            if record.offset < stops.get(record.partition, 0):
                found[record.partition] = record.appended_us
        if all(chunk.position[partition] >= stop for partition, stop in stops.items()):
            break
    return found
