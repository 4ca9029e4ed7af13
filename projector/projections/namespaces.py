"""How many memories live in each namespace, itself and below: listing never scans items.

``namespaces``: encoded labels → direct count, subtree count. A namespace without memories
anywhere below has no row, so it vanishes with its last memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from rocksdict import ColumnFamily, Rdict, Snapshot, WriteBatch

from eventstore.keys import after as after_prefix
from eventstore.views import NamespaceCount
from projector.projections.base import Change
from projector.rocks import Database, check, get

_COUNTS: Final = struct.Struct(">QQ")
_CACHED: Final = 100_000


def counts(data: bytes) -> tuple[int, int]:
    """Memories in a namespace itself, and with those below it."""
    direct, subtree = _COUNTS.unpack(data)
    return direct, subtree


def count(source: Rdict | Snapshot, prefix: bytes) -> int:
    """Live memories at and below an encoded prefix."""
    it = source.iter()
    it.seek(prefix)
    found = it.valid() and it.key() == prefix
    subtree = _COUNTS.unpack(it.value())[1] if found else 0
    check(it)
    return int(subtree)


def listing(source: Rdict | Snapshot, prefix: bytes, max_depth: int | None) -> Iterator[NamespaceCount]:
    """Counts of namespaces under a prefix in label order, jumping over those deeper than asked."""
    it = source.iter()
    it.seek(prefix)
    while it.valid():
        key = it.key()
        if not key.startswith(prefix):
            break
        depth = key.count(b"\x00")
        if max_depth is not None and depth > max_depth:
            beyond = after_prefix(_first_labels(key, max_depth))
            if beyond is None:
                break
            it.seek(beyond)
            continue
        yield NamespaceCount(key, *_COUNTS.unpack(it.value()))
        it.next()
    check(it)


def _first_labels(key: bytes, depth: int) -> bytes:
    # Every encoded label ends with the only zero byte in it.
    end = 0
    for _ in range(depth):
        end = key.index(b"\x00", end) + 1
    return key[:end]


class Namespaces:
    """Keeps the counts; the committed ones of recent batches in memory."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._committed: dict[bytes, tuple[int, int]] = {}
        self._steps: dict[tuple[bytes, ...], int] = {}
        """By namespace, as its prefixes: how many memories this batch adds to it, less those it removes."""

    def begin(self) -> None:
        """Start a batch; what was counted in the last one is forgotten."""
        self._steps.clear()

    def add(self, change: Change) -> None:
        """Count one applied change."""
        step = change.after.live - change.before.live
        if step:
            self._steps[change.prefixes] = self._steps.get(change.prefixes, 0) + step

    def write(self, batch: WriteBatch, namespaces: ColumnFamily) -> dict[bytes, tuple[int, int]]:
        """Rows of all that was counted in this batch; returns the counts, for :meth:`committed`."""
        pending: dict[bytes, tuple[int, int]] = {}
        for prefixes, step in self._steps.items():
            for prefix in prefixes:
                direct, subtree = pending.get(prefix) or self._counts(prefix)
                pending[prefix] = (direct + step if prefix == prefixes[-1] else direct, subtree + step)
        for prefix, counts in pending.items():
            if counts[1] > 0:
                batch.put(prefix, _COUNTS.pack(*counts), namespaces)
            else:
                batch.delete(prefix, namespaces)
        return pending

    def committed(self, written: Mapping[bytes, tuple[int, int]]) -> None:
        """What :meth:`write` returned is in the database."""
        if len(self._committed) > _CACHED:
            self._committed.clear()
        self._committed.update(written)

    def _counts(self, prefix: bytes) -> tuple[int, int]:
        found = self._committed.get(prefix)
        if found is None:
            data = get(self._db.namespaces, prefix)
            found = (0, 0) if data is None else _COUNTS.unpack(data)
            self._committed[prefix] = found
        return found
