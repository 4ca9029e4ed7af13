"""Newest first, under every ancestor: what makes listing cost its page and not the store.

``recency``: encoded prefix + 0x01 + complement of ``updated_at`` + item key → nothing, one row
for each prefix of the memory's namespace, the empty one included. Reading a prefix forwards
gives memories in the order of the contract: last updated first, ties in key order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from rocksdict import ColumnFamily, Rdict, Snapshot, WriteBatch

from projector.projections.base import Change
from projector.rocks import scan_keys

_TIME: Final = struct.Struct(">Q")
_COMPLEMENT: Final = 2**64 - 1


def newest(source: Rdict | Snapshot, prefix: bytes) -> Iterator[bytes]:
    """Item keys under an encoded prefix, most recently updated first."""
    start = len(prefix) + 9
    for key in scan_keys(source, prefix + b"\x01"):
        yield key[start:]


def memory(row: bytes) -> bytes:
    """The item key of a row."""
    # Encoded prefixes end with the only kind of zero byte in them, and 01 never follows one there.
    prefix = 0 if row.startswith(b"\x01") else row.index(b"\x00\x01") + 1
    return row[prefix + 9 :]


def write(batch: WriteBatch, change: Change, recency: ColumnFamily) -> None:
    """Rows of one applied change. ``recency`` is the handle of the family."""
    before, after, key = change.before, change.after, change.event.key
    if before.live and after.live and before.updated_us == after.updated_us:
        return
    old = b"\x01" + _TIME.pack(_COMPLEMENT - before.updated_us) + key if before.live else None
    new = b"\x01" + _TIME.pack(_COMPLEMENT - after.updated_us) + key if after.live else None
    for prefix in change.prefixes:
        if old is not None:
            batch.delete(prefix + old, recency)
        if new is not None:
            batch.put(prefix + new, b"", recency)
