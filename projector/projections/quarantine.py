"""Events set aside because they cannot be applied, and which memories they are about.

``default``: ``q`` + partition + offset → append time, record key and the reason. A row is written
in one batch with the position that passes the event, so a replay under the same policy gives it
again. How many there are stands under ``m:quarantined``, so that asking costs one read.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from rocksdict import Rdict, Snapshot, WriteBatch

from eventstore.errors import InvalidInput, UnappliedEvent, UndecodableEvent
from eventstore.keys import check_item, memory_of
from eventstore.log.base import StoredRecord
from eventstore.views import Quarantined
from projector.rocks import get, scan

log = logging.getLogger("projector.quarantine")

PREFIX: Final = b"q"
COUNT: Final = b"m:quarantined"
_PLACE: Final = struct.Struct(">HQ")
_HEAD: Final = struct.Struct(">QI")


def of(record: StoredRecord, error: UndecodableEvent) -> Quarantined:
    """What is kept of a record that could not be applied."""
    reason = str(error).removeprefix(f"partition {record.partition}, offset {record.offset}: ")
    return Quarantined(record.partition, record.offset, record.appended_us, record.key, reason)


def read(source: Rdict | Snapshot) -> Iterator[Quarantined]:
    """Everything set aside, by partition and offset."""
    for key, data in scan(source, PREFIX):
        yield _row(key, data)


def _row(key: bytes, data: bytes) -> Quarantined:
    appended_us, size = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    return Quarantined(*place(key), appended_us, data[_HEAD.size : end], data[end:].decode())


def at(source: Rdict, partition: int, offset: int) -> Quarantined | None:
    """What is set aside at a place, if anything is."""
    key = PREFIX + _PLACE.pack(partition, offset)
    data = get(source, key)
    return None if data is None else _row(key, data)


def place(key: bytes) -> tuple[int, int]:
    """Partition and offset of a row."""
    partition, offset = _PLACE.unpack_from(key, len(PREFIX))
    return partition, offset


def not_shown(each: Quarantined) -> UnappliedEvent:
    """What the writer of an event is told whose view has set it aside."""
    return UnappliedEvent(
        f"the write is in the log, but the view sets it aside: partition {each.partition}, "
        f"offset {each.offset}: {each.reason}; with that mended, `projector retry` applies it"
    )


def same(one: bytes, other: bytes) -> bool:
    """Whether two rows are about one record; the reason is worded by the release that gave it."""
    if min(len(one), len(other)) < _HEAD.size:
        return False
    end = _HEAD.size + _HEAD.unpack_from(one)[1]
    return one[:end] == other[:end]


def count(source: Rdict) -> int:
    """How many events are set aside."""
    data = get(source, COUNT)
    return 0 if data is None else int(data)


class Quarantine:
    """What one view has set aside, at hand for every read. Reads of such a memory warn, once each."""

    def __init__(self, source: Rdict) -> None:
        self.count = 0
        self.memories: dict[bytes, Quarantined] = {}
        """The last event set aside of each memory, by its encoded key."""
        self._warned: set[bytes] = set()
        self.load(source)

    def load(self, source: Rdict) -> None:
        """Take over what the view holds by now."""
        found = count(source)
        if found != self.count:
            self.memories = _by_memory(read(source))
            self.count = found

    def write(self, batch: WriteBatch, aside: Sequence[Quarantined]) -> None:
        """The rows of further events; :meth:`add` them once the batch is written."""
        for each in aside:
            row = _HEAD.pack(each.appended_us, len(each.key)) + each.key + each.reason.encode()
            batch.put(PREFIX + _PLACE.pack(each.partition, each.offset), row)
        batch.put(COUNT, b"%d" % (self.count + len(aside)))

    def add(self, aside: Sequence[Quarantined]) -> None:
        """Further events are set aside."""
        self.count += len(aside)
        self.memories.update(_by_memory(aside))

    def warn(self, memory: bytes) -> None:
        """Say that a memory which is being read lacks an event, if it does and it was not said yet."""
        each = self.memories.get(memory)
        if each is not None and memory not in self._warned:
            self._warned.add(memory)
            log.warning(
                "a memory is read that lacks an event: partition %d, offset %d is set aside (%s); "
                "once it can be applied, `projector retry` does it",
                each.partition, each.offset, each.reason,
            )  # fmt: skip

    def complain(self) -> None:
        """Say that the view lacks events, to who did not ask for that."""
        if self.count:
            log.error(
                "%d events that could not be applied are set aside in this view, which is opened without "
                "quarantine: their memories may be out of date, and the next such event stops it. "
                "`projector status` lists them, `projector retry` applies them once they can be",
                self.count,
            )


def _by_memory(found: Iterator[Quarantined] | Sequence[Quarantined]) -> dict[bytes, Quarantined]:
    memories = {}
    for each in found:
        memory = memory_of(each.key)
        try:
            check_item(memory)
        except InvalidInput:
            continue
        memories[memory] = each
    return memories
