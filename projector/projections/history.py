"""Every event of every memory, so that nothing about its past needs the log.

``history``: escaped item key + 0x00 + complement of the offset → what the fold made of the
event, and its headers and value. Read forwards, a memory's past comes newest first; a prefix
of namespaces is a range. Vectors are left out: they stand in ``vectors`` under the offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from rocksdict import ColumnFamily, Rdict, Snapshot, WriteBatch

from eventstore.codec import pack, unpack
from eventstore.errors import ViewDamaged
from eventstore.events import Kind
from eventstore.keys import escape
from eventstore.views import HistoryRow
from projector.projections.base import Change
from projector.rocks import scan

FORMAT: Final = 1
_OFFSET: Final = struct.Struct(">Q")
_HEADER: Final = struct.Struct(">B10pQQQQQHQQQ")
_NONE: Final = 2**64 - 1
_COMPLEMENT: Final = 2**64 - 1


def write(batch: WriteBatch, change: Change, vectors: int | None, history: ColumnFamily) -> None:
    """The row of one change, rejected ones included. ``vectors`` is the sequence of its vectors' row."""
    record, after = change.record, change.after
    outcome = "rejected" if change.outcome == "rejected" else change.event.kind.value
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
    prefix = _prefix(key)
    start = None if before is None else prefix + _OFFSET.pack(_COMPLEMENT - before + 1)
    for _, data in scan(source, prefix, start):
        fields = _HEADER.unpack_from(data)
        if fields[0] != FORMAT:
            raise ViewDamaged(
                f"a history row of format {fields[0]}; another release wrote the view, rebuild it"
            )
        headers, value = unpack(data[_HEADER.size :])
        put = headers.get("type", b"").startswith(Kind.PUT.encode() + b"/")
        outcome, *numbers, vectors = fields[1:]
        sequence = None if vectors == _NONE else vectors
        yield HistoryRow._make((outcome.decode(), *numbers, sequence, headers, value if put else None))


def _prefix(key: bytes) -> bytes:
    return escape(key) + b"\x00"
