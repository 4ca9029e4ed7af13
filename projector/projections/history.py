"""Every event of every memory, so that nothing about its past needs the log.

``history``: escaped item key + 0x00 + complement of the offset → what the fold made of the
event, and its headers and value. Read forwards, a memory's past comes newest first; a prefix
of namespaces is a range. Vectors are left out: they stand in ``vectors`` under the sequence
that a row names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from rocksdict import ColumnFamily, Rdict, RdictIter, Snapshot, WriteBatch

from eventstore.codec import pack, unpack
from eventstore.errors import ViewDamaged
from eventstore.events import UNVERSIONED, VALUED
from eventstore.keys import escape, unescape
from eventstore.log.position import Position
from eventstore.turns import EVERY_STEPS, give_way
from eventstore.views import HistoryRow, Occurrence, Wanted
from projector.projections.base import Change
from projector.rocks import check, get, scan

FORMAT: Final = 1
_OFFSET: Final = struct.Struct(">Q")
_HEADER: Final = struct.Struct(">B10pQQQQQHQQQ")
_PLACE_AT: Final = struct.calcsize(">B10pQQQQQ")
_NONE: Final = 2**64 - 1
_COMPLEMENT: Final = 2**64 - 1
_SETTING: Final = frozenset(kind.encode() for kind in VALUED)
_ADDING: Final = frozenset(kind.encode() for kind in UNVERSIONED)
_WITHOUT_EFFECT: Final = (b"rejected", b"void")


def write(batch: WriteBatch, change: Change, vectors: int | None, history: ColumnFamily) -> None:
    """The row of one change, also of one without effect. ``vectors`` is the sequence of its vectors' row."""
    record, after = change.record, change.after
    outcome = change.event.kind.value if change.outcome == "applied" else change.outcome
    header = _HEADER.pack(
        FORMAT,
        outcome.encode(),
        after.version,
        after.created_us,
        after.updated_us,
        after.expires_us,
        after.ttl_us,
        record.partition,
        record.offset,
        record.appended_us,
        _NONE if vectors is None else vectors,
    )
    batch.put(
        _prefix(change.event.key) + _OFFSET.pack(_COMPLEMENT - record.offset), header + pack(record), history
    )


def read(source: Rdict | Snapshot, key: bytes, before: int | None) -> Iterator[HistoryRow]:
    """Events of one memory, newest first, from below offset ``before``."""
    if before is not None and before <= 0:
        return
    prefix = _prefix(key)
    start = None if before is None else _row_below(prefix, before)
    for _, data in scan(source, prefix, start):
        yield _row(data)


def at(source: Rdict, key: bytes, offset: int) -> HistoryRow | None:
    """The row of the event of a memory at an offset; ``None`` when the event left none."""
    data = get(source, _prefix(key) + _OFFSET.pack(_COMPLEMENT - offset))
    return None if data is None else _row(data)


def events(source: Rdict | Snapshot, prefix: bytes, wanted: Wanted) -> Iterator[Occurrence]:
    """Events under an encoded prefix, by key, each memory's newest first."""
    since, until, needles = wanted
    for stored, data in scan(source, escape(prefix)):
        _, outcome, _, _, _, _, _, partition, offset, appended_us, _ = _fields(data)
        if since <= appended_us <= until and all(needle in data for needle in needles):
            key = unescape(stored[: -_OFFSET.size - 1])
            yield Occurrence(appended_us, partition, offset, outcome.decode(), key, partial(_row, data))


class Stored(NamedTuple):
    """A row as it stands in the view."""

    key: bytes
    """Encoded namespace and key of its memory."""
    partition: int
    offset: int
    appended_us: int
    fact: bytes
    """All that does not depend on where the event stands in a log, or when that took it."""
    vectors: int | None
    """The sequence it names."""


def stored(key: bytes, data: bytes) -> Stored:
    """The parts of a row, given as it is kept."""
    fields = _fields(data)
    sequence = None if fields[10] == _NONE else fields[10]
    fact = data[:_PLACE_AT] + data[_HEADER.size :]
    return Stored(unescape(key[: -_OFFSET.size - 1]), fields[7], fields[8], fields[9], fact, sequence)


class Standing(NamedTuple):
    """A live memory as it stood at a position. Times are µs since the epoch."""

    key: bytes
    version: int
    created_us: int
    updated_us: int
    expires_us: int
    ttl_us: int
    vectors: tuple[int, ...]
    """The sequences under which its vectors stand, those of further models first, the last added first."""
    packed: bytes
    """The row of the event that gave it its value."""

    def value(self) -> bytes:
        """The value's JSON."""
        start = _HEADER.size + 4
        return self.packed[start + int.from_bytes(self.packed[start - 4 : start], "big") :]


def standing(source: Rdict | Snapshot, prefix: bytes, position: Position) -> Iterator[Standing]:
    """Memories under an encoded prefix, in key order, as all events before a position left them."""
    start = escape(prefix)
    it = source.iter()
    it.seek(start)
    walked = 0
    while it.valid():
        row = it.key()
        if not row.startswith(start):
            break
        walked += 1
        if walked % EVERY_STEPS == 0:
            give_way()  # perhaps nothing stood at the position, and nothing is yielded for long
        stem = row[: -_OFFSET.size]
        found = _standing(it, stem, position)
        if found is not None:
            yield found
        # One step is cheaper than a seek, and most memories were written once.
        if it.valid() and it.key().startswith(stem):
            it.next()
            if it.valid() and it.key().startswith(stem):
                it.seek(stem[:-1] + b"\x01")
    check(it)


def standing_at(source: Rdict | Snapshot, key: bytes, position: Position) -> Standing | None:
    """One memory as all events before a position left it."""
    stem = _prefix(key)
    it = source.iter()
    it.seek(stem)
    found = _standing(it, stem, position) if it.valid() and it.key().startswith(stem) else None
    check(it)
    return found


def _standing(it: RdictIter, stem: bytes, position: Position) -> Standing | None:
    """The memory whose newest row the iterator stands at; the iterator stays within its rows or ends."""
    # All events of a memory are in one partition, so any row of it tells which.
    before = position[0] if len(position) == 1 else position[_fields(it.value())[7]]
    if _COMPLEMENT - _OFFSET.unpack_from(it.key(), len(stem))[0] >= before:
        it.seek(_row_below(stem, before))
    state: tuple[int, int, int, int, int] | None = None
    sequences: tuple[int, ...] = ()
    while it.valid() and it.key().startswith(stem):
        data = it.value()
        fields = _fields(data)
        outcome = fields[1]
        if outcome not in _WITHOUT_EFFECT:
            if fields[10] != _NONE:
                sequences += (fields[10],)
            if outcome in _SETTING:
                return Standing(unescape(stem[:-1]), *(state or fields[2:7]), sequences, data)
            if outcome not in _ADDING:
                return None
            state = state or fields[2:7]
        it.next()
    return None


def _fields(data: bytes) -> tuple[int, bytes, int, int, int, int, int, int, int, int, int]:
    fields = _HEADER.unpack_from(data)
    if fields[0] != FORMAT:
        raise ViewDamaged(f"a history row of format {fields[0]}; another release wrote the view, rebuild it")
    return fields


def _row(data: bytes) -> HistoryRow:
    _, outcome, *numbers, vectors = _fields(data)
    headers, value = unpack(data[_HEADER.size :])
    sets = headers.get("type", b"").partition(b"/")[0] in _SETTING
    sequence = None if vectors == _NONE else vectors
    return HistoryRow._make((outcome.decode(), *numbers, sequence, headers, value if sets else None))


def _row_below(stem: bytes, before: int) -> bytes:
    """Where the rows of a memory with an offset below ``before`` begin."""
    return stem + _OFFSET.pack(_COMPLEMENT - before + 1) if before > 0 else stem[:-1] + b"\x01"


def _prefix(key: bytes) -> bytes:
    return escape(key) + b"\x00"
