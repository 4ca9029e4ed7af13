"""The pure rule: what an event does to the memory it is about.

No clock, no randomness, no I/O, no configuration: two readers of one log decide alike, always.
Order is the order of offsets; timestamps never decide what wins.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from eventstore.events import VALUED, Event, Kind
from eventstore.log.base import StoredRecord

MINUTE_US: Final = 60_000_000
WRITER_MEMORY_US: Final = 7 * 24 * 60 * MINUTE_US
"""How long, in log time, a silent writer's last sequence is remembered."""
_new = tuple.__new__  # half the time of calling the class, and this runs once per event


class ItemState(NamedTuple):
    """What the fold knows of a memory. Times are µs since the epoch (UTC)."""

    live: bool
    version: int = 0
    created_us: int = 0
    updated_us: int = 0
    expires_us: int = 0
    ttl_us: int = 0
    vectors: int = 0


ABSENT: Final = ItemState(False)
"""A memory nothing was ever said about."""


class Decision(NamedTuple):
    """What becomes of an event: ``applied``, or why not, and the memory's state after it."""

    outcome: str
    """applied; rejected (a condition did not hold); void (nothing to act on)."""
    state: ItemState


class WriterState(NamedTuple):
    """The last record folded from one writer's session."""

    sequence: int
    appended_us: int


def is_duplicate(writer: WriterState | None, record: StoredRecord) -> bool:
    """Whether a record is a retry, or a straggler overtaken by a later one of its writer.

    A writer silent for :data:`WRITER_MEMORY_US` of log time is forgotten, so that the table of
    writers stays small in every replica alike.
    """
    if writer is None or record.appended_us - writer.appended_us > WRITER_MEMORY_US:
        return False
    return record.sequence <= writer.sequence


def fold(state: ItemState, event: Event, time_us: int) -> Decision:
    """The decision on one event; ``time_us`` is the time its writer stamped.

    ``updated_us`` grows strictly with every event of a memory, across deletes too, even when
    clocks step back. ``created_us`` is kept for as long as the memory lives.
    """
    present = _is_present(state, event, time_us)
    if event.expected_version is not None and event.expected_version != (state.version if present else 0):
        return Decision("rejected", state)
    if event.kind in VALUED:
        return _new(Decision, ("applied", _put(state, event, time_us, present)))
    if not state.live:
        return Decision("void", state)
    if event.kind is Kind.DELETE:
        return Decision("applied", _gone(state, time_us))
    if event.seen_version != state.version:
        return Decision("void", state)
    if event.kind is Kind.TOUCH:
        if state.ttl_us == 0 or event.expires_us <= state.expires_us:
            return Decision("void", state)
        return Decision("applied", state._replace(expires_us=event.expires_us))
    if event.kind is Kind.EMBED:
        # More than one model's vectors may be there; what counts is whether there are any to take away.
        count = 0 if event.embedded is None else len(event.embedded.paths)
        return Decision("applied", state._replace(vectors=max(state.vectors, count)))
    if event.kind is not Kind.EXPIRE or event.expires_us != state.expires_us:
        return Decision("void", state)
    return Decision("applied", _gone(state, time_us))


def version_seen(state: ItemState, event: Event, time_us: int) -> int:
    """The version an event's condition is held against; 0 when its writer saw no memory there."""
    return state.version if _is_present(state, event, time_us) else 0


def _is_present(state: ItemState, event: Event, time_us: int) -> bool:
    return state.live and not (event.omits_expired and 0 < state.expires_us <= time_us)


def _put(state: ItemState, event: Event, time_us: int, present: bool) -> ItemState:
    updated = max(time_us, state.updated_us + 1)
    ttl_us = 0 if event.ttl is None else max(1, round(event.ttl * MINUTE_US))
    return _new(
        ItemState,
        (
            True,
            state.version + 1,
            state.created_us if present else updated,
            updated,
            updated + ttl_us if ttl_us else 0,
            ttl_us,
            0 if event.embedded is None else len(event.embedded.paths),
        ),
    )


def _gone(state: ItemState, time_us: int) -> ItemState:
    return ItemState(False, version=state.version + 1, updated_us=max(time_us, state.updated_us + 1))
