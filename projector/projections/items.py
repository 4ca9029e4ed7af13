"""Current memories: one row each, plus the graves of deleted ones and an index of expiries.

``items``: encoded key → header and the value's JSON, untouched. The default family holds
``g`` + key → version and time of a deleted memory, so that its numbering goes on, and
``x`` + expiry + key → nothing, for the sweep.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from rocksdict import ColumnFamily, Rdict, Snapshot, WriteBatch

from eventstore.errors import ViewDamaged
from eventstore.events import UNVERSIONED
from eventstore.views import Row
from projector.fold import ABSENT, ItemState
from projector.projections.base import Change
from projector.rocks import Database, get, scan, scan_keys

FORMAT: Final = 1
_HEADER: Final = struct.Struct(">BQQQQQHQH")
_GRAVE: Final = struct.Struct(">QQ")
_EXPIRY: Final = struct.Struct(">Q")
HEADER_BYTES: Final = _HEADER.size
_PLACE_AT: Final = struct.calcsize(">BQQQQQ")
_PLACE_BYTES: Final = struct.calcsize(">HQ")


def row(key: bytes, data: bytes) -> Row:
    """A row of the items family as readers see it."""
    form, version, created, updated, expires, ttl, _, _, _ = _HEADER.unpack_from(data)
    if form != FORMAT:
        raise ViewDamaged(
            f"an item row of format {form}; the view was written by another release, rebuild it"
        )
    # Row(…) would go through a function in Python, which a scan of thousands of rows feels.
    return tuple.__new__(Row, (key, version, created, updated, expires, ttl, data[HEADER_BYTES:]))


def fact(data: bytes) -> bytes:
    """What of a row does not depend on where its event stands in a log."""
    return data[:_PLACE_AT] + data[_PLACE_AT + _PLACE_BYTES :]


def place(data: bytes) -> tuple[int, int]:
    """Partition and offset of the event a row was made by."""
    partition, offset = _HEADER.unpack_from(data)[6:8]
    return partition, offset


def scan_rows(
    source: Rdict | Snapshot,
    prefix: bytes,
    start: bytes | None = None,
    holding: Sequence[bytes] = (),
    expected: int = 0,
) -> Iterator[Row]:
    """Memories under an encoded prefix, in key order, from ``start`` on.

    Rows without all of ``holding`` in their bytes are passed over before anything is made of them,
    faster where it is known how many are ``expected``.
    """
    for key, data in scan(source, prefix, start, holding, expected):
        yield row(key, data)


def expired(source: Rdict | Snapshot, until_us: int) -> Iterator[tuple[int, bytes]]:
    """Expiry and key of memories that expired at or before a time, earliest first."""
    for key in scan_keys(source, b"x"):
        (expires,) = _EXPIRY.unpack_from(key, 1)
        if expires > until_us:
            return
        yield expires, key[9:]


class Items:
    """Loads item states, gathers their changes and writes what is left of them; within a batch,
    later events see earlier ones."""

    def __init__(self, db: Database) -> None:
        self._db = db
        # RocksDB does not show a batch to itself, so what is pending is kept here: the changes of
        # each memory as one, from the state before the first to the state after the last.
        self._pending: dict[bytes, Change] = {}
        self._touched: dict[bytes, bytes] = {}
        """Values of memories whose last change left them as they were."""

    def begin(self) -> None:
        """Forget the rows of the last batch, written or not."""
        self._pending.clear()
        self._touched.clear()

    def load(self, key: bytes) -> ItemState:
        """The state of a memory before the next event on it."""
        pending = self._pending.get(key)
        if pending is not None:
            return pending.after
        data = get(self._db.items, key)
        if data is not None:
            _, version, created, updated, expires, ttl, _, _, vectors = _HEADER.unpack_from(data)
            return tuple.__new__(ItemState, (True, version, created, updated, expires, ttl, vectors))
        grave = get(self._db.default, b"g" + key)
        if grave is not None:
            version, updated = _GRAVE.unpack(grave)
            return ItemState(False, version, 0, updated)
        return ABSENT

    def add(self, change: Change) -> None:
        """Take in one applied change."""
        key = change.event.key
        earlier = self._pending.get(key)
        if change.event.kind in UNVERSIONED:
            self._touched[key] = self._value(key, earlier)
        self._pending[key] = change if earlier is None else change._replace(before=earlier.before)

    def changes(self) -> Iterable[Change]:
        """One change for each memory of this batch."""
        return self._pending.values()

    def write(self, batch: WriteBatch, change: Change, items: ColumnFamily) -> None:
        """Rows of one of :meth:`changes`. ``items`` is the handle of the items family."""
        key, before, after = change.event.key, change.before, change.after
        if before.expires_us != after.expires_us:
            if before.expires_us:
                batch.delete(b"x" + _EXPIRY.pack(before.expires_us) + key)
            if after.expires_us:
                batch.put(b"x" + _EXPIRY.pack(after.expires_us) + key, b"")
        if not after.live:
            if before.live:
                batch.delete(key, items)
            batch.put(b"g" + key, _GRAVE.pack(after.version, after.updated_us))
            return
        header = _HEADER.pack(
            FORMAT,
            after.version,
            after.created_us,
            after.updated_us,
            after.expires_us,
            after.ttl_us,
            change.record.partition,
            change.record.offset,
            after.vectors,
        )
        value = self._touched[key] if change.event.kind in UNVERSIONED else change.event.value or b""
        batch.put(key, header + value, items)
        if not before.live and before.version:
            batch.delete(b"g" + key)

    def _value(self, key: bytes, earlier: Change | None) -> bytes:
        if earlier is not None:
            return self._touched[key] if earlier.event.kind in UNVERSIONED else earlier.event.value or b""
        data = get(self._db.items, key)
        return b"" if data is None else bytes(data[HEADER_BYTES:])
