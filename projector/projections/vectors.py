"""What every event did to its memory's vectors, in the order this view applied them.

``vectors``: sequence → item key, where the event stands in the log, and the vectors the memory
has from then on, none when the event took them away. The sequence is the view's own, since
partitions have no common order. This is the truth of the FAISS index: read from a sequence on,
it brings any saved state of the index up to date. It keeps the vectors of the past, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
from rocksdict import ColumnFamily, Rdict, Snapshot, WriteBatch

from eventstore.errors import ViewDamaged
from eventstore.views import Vector
from projector.projections.base import Change
from projector.rocks import check, scan, translate

_SEQUENCE: Final = struct.Struct(">Q")
_HEADER: Final = struct.Struct(">HQHIHI")
_PLACE_BYTES: Final = struct.calcsize(">HQ")
_AT_ONCE: Final = 512


class VectorRow(NamedTuple):
    """The vectors of one memory from one event on."""

    partition: int
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
    at = change.record.partition, change.record.offset
    if embedded is None or not change.after.live:
        return VectorRow(*at, change.event.key, "", np.empty((0, 0), np.float32))
    made = np.frombuffer(embedded.data, "<f4").reshape(len(embedded.paths), embedded.dims)
    return VectorRow(*at, change.event.key, embedded.model, made)


def write(batch: WriteBatch, sequence: int, row: VectorRow, vectors: ColumnFamily) -> None:
    """Store a row under the sequence it is applied at."""
    model = row.model.encode()
    count, dims = row.vectors.shape
    header = _HEADER.pack(row.partition, row.offset, count, dims, len(model), len(row.key))
    data = header + model + row.key + row.vectors.astype("<f4", copy=False).tobytes()
    batch.put(_SEQUENCE.pack(sequence), data, vectors)


def read(source: Rdict | Snapshot, start: int) -> Iterator[tuple[int, VectorRow]]:
    """Sequences and rows from a sequence on, in order."""
    for key, data in scan(source, b"", _SEQUENCE.pack(start)):
        yield _SEQUENCE.unpack(key)[0], _row(data)


def read_some(source: Rdict, sequences: Sequence[int]) -> Iterator[VectorRow]:
    """The rows under these sequences, in the order given. Raises ``ViewDamaged`` for one that is missing."""
    for first in range(0, len(sequences), _AT_ONCE):
        some = sequences[first : first + _AT_ONCE]
        try:
            found = cast(list[bytes | None], source.get([_SEQUENCE.pack(each) for each in some]))
        except Exception as error:
            raise translate(error, "reading vectors of the past") from error
        for sequence, data in zip(some, found, strict=True):
            if data is None:
                raise ViewDamaged(
                    f"the vectors under sequence {sequence} are missing from the view. "
                    "The log is intact; open the store again and the view is rebuilt from it"
                )
            yield _row(data)


def row(key: bytes, data: bytes) -> tuple[int, VectorRow]:
    """Sequence and row, given as they are kept."""
    return _SEQUENCE.unpack(key)[0], _row(data)


def key_of(sequence: int) -> bytes:
    """What the row under a sequence is stored under."""
    return _SEQUENCE.pack(sequence)


def place(data: bytes) -> tuple[int, int]:
    """Partition and offset of the event a row is about; anything for bytes that are no row."""
    partition, offset = _HEADER.unpack_from(data.ljust(_HEADER.size, b"\x00"))[:2]
    return partition, offset


def fact(data: bytes) -> bytes:
    """What of a row does not depend on where its event stands in a log."""
    return data[_PLACE_BYTES:]


def at(source: Rdict, sequence: int) -> tuple[str, Vector]:
    """Model and vectors under a sequence. Raises ``ViewDamaged`` when it is missing."""
    (row,) = read_some(source, [sequence])
    return row.model, row.vectors


def _row(data: bytes) -> VectorRow:
    partition, offset, count, dims, model_bytes, key_bytes = _HEADER.unpack_from(data)
    at = _HEADER.size
    model = data[at : at + model_bytes].decode()
    at += model_bytes
    item = data[at : at + key_bytes]
    made = np.frombuffer(data, "<f4", offset=at + key_bytes).reshape(count, dims)
    return VectorRow(partition, offset, item, model, made)


def end(source: Rdict) -> int:
    """The sequence after the last row."""
    it = source.iter()
    it.seek_to_last()
    last = it.key() if it.valid() else None
    check(it)
    return 0 if last is None else int(_SEQUENCE.unpack(last)[0]) + 1
