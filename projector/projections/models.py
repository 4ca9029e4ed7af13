"""Which embedding model was of record from when on: one row for each change of it.

``default``: ``M`` + offset → the model, its vector size and the default fields from there on, and
what was of record before. Changes stand in the first partition, so they have one order in every
view. Until the first, what counts is the model of the first vectors, which the view notes itself.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from rocksdict import Rdict, WriteBatch

from eventstore.events import Event
from eventstore.log.base import StoredRecord
from eventstore.views import Signature
from projector.rocks import get, scan

PREFIX: Final = b"M"
FIRST: Final = b"m:signature"
"""Where the view notes what made the first vectors."""
_OFFSET: Final = struct.Struct(">Q")


def write(batch: WriteBatch, record: StoredRecord, event: Event) -> Signature | None:
    """The row of one change, and what is of record from it on."""
    made = event.embedded
    if made is None:
        return None
    before = event.replaced
    row = [made.model, made.dims, event.fields], before and [before[0], _dims(before[0]), before[1]]
    batch.put(PREFIX + _OFFSET.pack(record.offset), json.dumps(row).encode())
    return Signature(made.model, made.dims, event.fields)


def of_record(default: Rdict, before: int | None = None) -> Signature | None:
    """What was of record after all changes below an offset, or after all; ``None`` for no vectors."""
    rows = list(scan(default, PREFIX))
    for key, data in reversed(rows):
        if before is None or _OFFSET.unpack_from(key, len(PREFIX))[0] < before:
            return _signature(json.loads(data)[0])
    if rows:
        return _signature(json.loads(rows[0][1])[1])
    first = get(default, FIRST)
    return None if first is None else _signature(json.loads(first))


def _signature(row: Any) -> Signature | None:
    if row is None:
        return None
    model, dims, *fields = row
    return Signature(model, dims, tuple(fields[0]) if fields and fields[0] is not None else None)


def _dims(model: str) -> int:
    return int(model.rpartition("/")[2])
