"""Putting the records of one atomic batch together again, across partitions.

A record of its own goes through. One of a batch waits, and all behind it in its partition,
until every record of the batch is here; the batch is committed, so they come. Batches that
cross each other in two partitions go through together.
"""

from __future__ import annotations

from collections import deque

from eventstore.log.base import Chunk, StoredRecord
from eventstore.log.kafka.stamps import Incoming
from eventstore.log.position import Position


class _Batch:
    """What has come of a batch: how many records, and the last of each partition."""

    __slots__ = ("last", "missing")

    def __init__(self, size: int) -> None:
        self.missing = size
        self.last: dict[int, int] = {}
        """By partition, the count of the batch's last record there."""


class Assembly:
    """Chunks in the order of the log. For one thread."""

    def __init__(self, start: Position) -> None:
        self.position = start
        """Behind everything that was handed out."""
        self._waiting: list[deque[Incoming]] = [deque() for _ in start]
        self._taken = [0] * len(start)
        """By partition, records handed out; counts of records go on from there."""
        self._read = list(start)
        self._batches: dict[bytes, _Batch] = {}

    def add(self, partition: int, records: list[Incoming]) -> None:
        """Records of one partition, in order."""
        waiting = self._waiting[partition]
        count = self._taken[partition] + len(waiting)
        for number, each in enumerate(records, count):
            if each.batch is not None:
                batch = self._batches.get(each.batch)
                if batch is None:
                    batch = self._batches[each.batch] = _Batch(each.size)
                batch.missing -= 1
                batch.last[partition] = number
        waiting.extend(records)

    def moved(self, partition: int, offset: int) -> None:
        """Everything before this offset was added; markers take offsets of their own."""
        self._read[partition] = max(self._read[partition], offset)

    def skip_to(self, position: Position) -> None:
        """Pass over what lies before a later position; nothing must be waiting."""
        self.position = position
        self._read = [max(read, at) for read, at in zip(self._read, position, strict=True)]

    def ready(self) -> list[Chunk]:
        """Chunks that are complete."""
        chunks: list[Chunk] = []
        offsets = list(self.position)
        for partition, waiting in enumerate(self._waiting):
            while waiting:
                records = self._take(partition)
                if records is None:
                    break
                for record in records:
                    offsets[record.partition] = record.offset + 1
                chunks.append(Chunk(records, Position(*offsets)))
        reached = Position(*self._reached(offsets))
        if chunks:
            # Markers behind the last record have been read, too.
            chunks[-1] = chunks[-1]._replace(position=reached)
        elif reached != self.position:
            chunks.append(Chunk([], reached))
        self.position = reached
        return chunks

    @property
    def incomplete(self) -> Incoming | None:
        """A record that waits for others of its batch; ``None`` when nothing waits."""
        return next((waiting[0] for waiting in self._waiting if waiting), None)

    def _reached(self, offsets: list[int]) -> list[int]:
        """The first waiting record of each partition, or as far as it was read."""
        return [
            max(at, waiting[0].stored.offset if waiting else read)
            for at, waiting, read in zip(offsets, self._waiting, self._read, strict=True)
        ]

    def _take(self, partition: int) -> list[StoredRecord] | None:
        """Takes off a record, or all records that must become visible with it; ``None`` if some lack."""
        head = self._waiting[partition][0]
        if head.batch is None:
            self._taken[partition] += 1
            return [self._waiting[partition].popleft().stored]
        counts = self._together(head.batch)
        if counts is None:
            return None
        taken: list[StoredRecord] = []
        for number, count in counts.items():
            self._taken[number] += count
            for _ in range(count):
                each = self._waiting[number].popleft()
                if each.batch is not None:
                    self._batches.pop(each.batch, None)
                taken.append(each.stored)
        return taken

    def _together(self, first: bytes) -> dict[int, int] | None:
        """By partition, how many records go through with a batch, and with those it crosses."""
        counts: dict[int, int] = {}
        needed = [first]
        found = {first}
        while needed:
            batch = self._batches[needed.pop()]
            if batch.missing > 0:
                return None
            for number, last in batch.last.items():
                before = counts.get(number, 0)
                count = last + 1 - self._taken[number]
                if count <= before:
                    continue
                counts[number] = count
                waiting = self._waiting[number]
                # All in front of the batch's last record go with it, and so do their batches.
                for at in range(before, count):
                    name = waiting[at].batch
                    if name is not None and name not in found:
                        found.add(name)
                        needed.append(name)
        return dict(sorted(counts.items()))
