"""What every event did to its memory's vectors, in the order this view applied them.

``vectors``: sequence → item key, where the event stands in the log, and the vectors the memory
has from then on, none when the event took them away. A row without fields is all that the memory
has; one with fields adds to it for the index of that model and those fields, and means nothing to
any other. The sequence is the view's own, since partitions have no common order. This is the truth
of the FAISS index: read from a sequence on, it brings any saved state of the index up to date. It
keeps the vectors of the past, too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

import numpy as np
import orjson
from rocksdict import ColumnFamily, Rdict, Snapshot, WriteBatch

from eventstore.embedding import same_model
from eventstore.errors import ViewDamaged
from eventstore.events import Kind
from eventstore.views import Signature, Vector
from projector.projections.base import Change
from projector.rocks import check, scan, translate

_SEQUENCE: Final = struct.Struct(">Q")
_HEADER: Final = struct.Struct(">HQHIHIH")
_PLACE_BYTES: Final = struct.calcsize(">HQ")
_AT_ONCE: Final = 512
_FLOATS: Final = np.dtype("<f4")


class VectorRow(NamedTuple):
    """The vectors of one memory from one event on."""

    partition: int
    offset: int
    key: bytes
    model: str
    vectors: Vector
    """Shape (vectors, dimensions); no rows when the memory has none any more."""
    fields: tuple[str, ...] | None = None
    """Of vectors that were added for another index: its default fields."""

    def counts_for(self, index: Signature) -> bool:
        """Whether an index has to know of this row."""
        return self.fields is None or (self.fields == index.fields and self.fits(index))

    def fits(self, index: Signature) -> bool:
        """Whether these vectors may be compared with those of an index."""
        return same_model(index, self.vectors.shape[1], self.model)


def of(change: Change) -> VectorRow | None:
    """What a change does to vectors; ``None`` when nothing."""
    embedded = change.event.embedded
    if change.after.vectors == 0 and change.before.vectors == 0:
        return None
    adds = change.event.kind is Kind.EMBED and change.outcome == "applied"
    if change.before.version == change.after.version and not adds:
        return None  # A touch or a rejection: the vectors stay as they are.
    at = change.record.partition, change.record.offset
    if embedded is None or not change.after.live:
        return VectorRow(*at, change.event.key, "", np.empty((0, 0), np.float32))
    made = np.frombuffer(embedded.data, _FLOATS).reshape(len(embedded.paths), embedded.dims)
    fields = change.event.fields if adds else None
    return tuple.__new__(VectorRow, (*at, change.event.key, embedded.model, made, fields))


def write(batch: WriteBatch, sequence: int, row: VectorRow, vectors: ColumnFamily) -> None:
    """Store a row under the sequence it is applied at."""
    model = row.model.encode()
    count, dims = row.vectors.shape
    fields = b"" if row.fields is None else orjson.dumps(row.fields)
    header = _HEADER.pack(row.partition, row.offset, count, dims, len(model), len(row.key), len(fields))
    made = row.vectors.astype(_FLOATS, copy=False).data
    batch.put(_SEQUENCE.pack(sequence), b"".join((header, model, row.key, fields, made)), vectors)


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
    partition, offset, count, dims, model_bytes, key_bytes, fields_bytes = _HEADER.unpack_from(data)
    at = _HEADER.size
    model = data[at : at + model_bytes].decode()
    at += model_bytes
    item = data[at : at + key_bytes]
    at += key_bytes
    fields = tuple(orjson.loads(data[at : at + fields_bytes])) if fields_bytes else None
    made = np.frombuffer(data, _FLOATS, offset=at + fields_bytes).reshape(count, dims)
    return VectorRow(partition, offset, item, model, made, fields)


def end(source: Rdict) -> int:
    """The sequence after the last row."""
    it = source.iter()
    it.seek_to_last()
    last = it.key() if it.valid() else None
    check(it)
    return 0 if last is None else int(_SEQUENCE.unpack(last)[0]) + 1
