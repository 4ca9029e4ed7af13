"""What every event did to its memory's vectors, in the order of the log.

``vectors``: partition and offset → item key and the vectors it has from then on, none when an
event took them away. This is the truth of the FAISS index: read from an offset on, it brings
any saved state of the index up to date. It keeps the vectors of the past, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from rocksdict import ColumnFamily, Rdict, Snapshot, WriteBatch

from eventstore.views import Vector
from projector.projections.base import Change
from projector.rocks import scan

_POSITION: Final = struct.Struct(">HQ")
_HEADER: Final = struct.Struct(">HIHI")


class VectorRow(NamedTuple):
    """The vectors of one memory from one offset on."""

    offset: int
    key: bytes
    model: str
    vectors: Vector
    """Shape (vectors, dimensions); no rows when the memory has none any more."""


def of(change: Change) -> VectorRow | None:
    """What a change does to vectors; ``None`` when nothing."""
    embedded = change.event.embedded
    if change.after.vectors == 0 and change.before.vectors == 0:
        return None
    if change.before.version == change.after.version:
        return None  # A touch or a rejection: the vectors stay as they are.
    if embedded is None or not change.after.live:
        return VectorRow(change.record.offset, change.event.key, "", np.empty((0, 0), np.float32))
    made = np.frombuffer(embedded.data, "<f4").reshape(len(embedded.paths), embedded.dims)
    return VectorRow(change.record.offset, change.event.key, embedded.model, made)


def write(batch: WriteBatch, partition: int, row: VectorRow, vectors: ColumnFamily) -> None:
    """Store a row under its position."""
    model = row.model.encode()
    count, dims = row.vectors.shape
    header = _HEADER.pack(count, dims, len(model), len(row.key))
    batch.put(
        _POSITION.pack(partition, row.offset),
        header + model + row.key + row.vectors.astype("<f4").tobytes(),
        vectors,
    )


def read(source: Rdict | Snapshot, start: int, partition: int = 0) -> Iterator[VectorRow]:
    """Rows of one partition from an offset on, in log order."""
    prefix = partition.to_bytes(2, "big")
    for key, data in scan(source, prefix, _POSITION.pack(partition, start)):
        count, dims, model_bytes, key_bytes = _HEADER.unpack_from(data)
        at = _HEADER.size
        model = data[at : at + model_bytes].decode()
        at += model_bytes
        item = data[at : at + key_bytes]
        made = np.frombuffer(data, "<f4", offset=at + key_bytes).reshape(count, dims)
        yield VectorRow(_POSITION.unpack(key)[1], item, model, made)
