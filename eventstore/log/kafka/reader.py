"""Consuming: committed records only, in order, batches whole.

No consumer group and no committed offsets: a reader stands where its view says. A position
that the topic no longer holds, or does not hold yet, is an error and never a jump.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import (
    CorruptRecordError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnsupportedCodecError,
)

from eventstore.connection import KafkaPlace, where
from eventstore.errors import LogDamaged, LogMismatch, LogUnavailable
from eventstore.log.base import Chunk, StoredRecord
from eventstore.log.kafka.client import FETCH_BYTES, common, unreachable
from eventstore.log.kafka.stamps import Incoming, incoming
from eventstore.log.position import Position

MAX_RECORDS = 5_000


class Reader:
    """One consumer of all partitions. One thread at a time."""

    def __init__(self, place: KafkaPlace, partitions: int, start: Position) -> None:
        """Raises ``LogUnavailable`` when the cluster does not answer."""
        self._place = place
        self._partitions = [TopicPartition(place.topic, number) for number in range(partitions)]
        self._assembly = Assembly(start)
        try:
            self._consumer = KafkaConsumer(
                **common(place),
                client_id="eventstore-reader",
                metrics_enabled=False,
                group_id=None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                allow_auto_create_topics=False,
                fetch_max_wait_ms=500,
                max_partition_fetch_bytes=FETCH_BYTES,
                max_poll_records=MAX_RECORDS,
            )
            self._consumer.assign(self._partitions)
            for each in self._partitions:
                self._consumer.seek(each, start[each.partition])
        except KafkaError as error:
            raise unreachable(place, error) from error

    def poll(self, seconds: float) -> list[Chunk]:
        """What arrived since the last call, waiting up to ``seconds`` for something.

        After an error the reader is not to be used again. Raises ``LogDamaged`` and ``LogMismatch``.
        """
        try:
            fetched = self._consumer.poll(timeout_ms=max(0, round(seconds * 1000)), max_records=MAX_RECORDS)
            for each, messages in fetched.items():
                self._assembly.add(each.partition, [incoming(message) for message in messages])
            for each in self._partitions:
                self._assembly.moved(each.partition, self._consumer.position(each, timeout_ms=1_000))
        except (OffsetOutOfRangeError, LogTruncationError, NoOffsetForPartitionError) as error:
            raise self._out_of_range(error) from error
        except (CorruptRecordError, UnsupportedCodecError) as error:
            raise LogDamaged(f"{where(self._place)}: {type(error).__name__}: {error}") from error
        except KafkaTimeoutError:
            return []
        except KafkaError as error:
            raise LogUnavailable(f"{where(self._place)}: {type(error).__name__}: {error}") from error
        return self._assembly.ready()

    def close(self) -> None:
        """Give up the connection."""
        with contextlib.suppress(KafkaError):
            self._consumer.close(timeout_ms=2_000)

    def _out_of_range(self, error: Exception) -> LogMismatch:
        stands = self._assembly.position
        with contextlib.suppress(KafkaError):
            first = self._consumer.beginning_offsets(self._partitions)
            last = self._consumer.end_offsets(self._partitions)
            for each in self._partitions:
                at = stands[each.partition]
                if at < first[each]:
                    return LogMismatch(
                        f"{where(self._place)} partition {each.partition} now begins at {first[each]}, "
                        f"the view stands at {at}: {first[each] - at} events are gone with their history. "
                        "Find what deleted them; to go on without them, remove the view and it is rebuilt"
                    )
                if at > last[each]:
                    return LogMismatch(
                        f"{where(self._place)} partition {each.partition} ends at {last[each]}, "
                        f"the view stands at {at}: it was cut, restored from an older copy, or made anew"
                    )
        return LogMismatch(f"{where(self._place)} does not hold the view's position {stands}: {error}")


class Assembly:
    """Puts records of one atomic batch together again, across partitions.

    A record of its own goes through. One of a batch waits, and all behind it in its partition,
    until every record of the batch is here; the batch is committed, so they come. Batches that
    cross each other in two partitions go through together.
    """

    def __init__(self, start: Position) -> None:
        self.position = start
        self._waiting: list[deque[Incoming]] = [deque() for _ in start]
        self._read: list[int] = list(start)

    def add(self, partition: int, records: list[Incoming]) -> None:
        """Records of one partition, in order."""
        self._waiting[partition].extend(records)

    def moved(self, partition: int, offset: int) -> None:
        """Everything before this offset was delivered; markers take offsets of their own."""
        self._read[partition] = max(self._read[partition], offset)

    def ready(self) -> list[Chunk]:
        """Chunks that are complete."""
        chunks: list[Chunk] = []
        for waiting in self._waiting:
            while waiting:
                records = self._complete(waiting[0])
                if records is None:
                    break
                chunks.append(self._chunk(records))
        if not chunks and self._reached() != self.position:
            chunks.append(self._chunk([]))
        elif chunks:
            # Also markers behind the last record have been read.
            self.position = self._reached()
            chunks[-1] = chunks[-1]._replace(position=self.position)
        return chunks

    def _complete(self, head: Incoming) -> list[StoredRecord] | None:
        """Takes off a record, or all records that must become visible with it; ``None`` if some lack."""
        if head.batch is None:
            return [self._waiting[head.stored.partition].popleft().stored]
        needed = {head.batch: head.size}
        depth = [0] * len(self._waiting)
        seen: dict[bytes, int] = {}
        growing = True
        while growing:
            growing = False
            for partition, waiting in enumerate(self._waiting):
                last = max((at for at, each in enumerate(waiting) if each.batch in needed), default=-1)
                for at in range(depth[partition], last + 1):
                    batch = waiting[at].batch
                    if batch is not None:
                        seen[batch] = seen.get(batch, 0) + 1
                        if batch not in needed:
                            needed[batch] = waiting[at].size
                            growing = True
                if last + 1 > depth[partition]:
                    depth[partition] = last + 1
                    growing = True
        if any(seen.get(batch, 0) < size for batch, size in needed.items()):
            return None
        return [
            waiting.popleft().stored
            for waiting, count in zip(self._waiting, depth, strict=True)
            for _ in range(count)
        ]

    def _chunk(self, records: list[StoredRecord]) -> Chunk:
        if records:
            for record in records:
                self.position = self.position.advanced(record.partition, record.offset + 1)
        else:
            self.position = self._reached()
        return Chunk(records, self.position)

    def _reached(self) -> Position:
        """The first waiting record of each partition, or as far as it was read."""
        return Position(
            *(
                max(at, waiting[0].stored.offset if waiting else read)
                for at, waiting, read in zip(self.position, self._waiting, self._read, strict=True)
            )
        )


def read_to(reader: Reader, end: Position, seconds: float) -> Iterator[Chunk]:
    """Chunks until ``end`` is covered. Raises ``LogUnavailable`` when nothing comes for ``seconds``."""
    position = reader._assembly.position
    patience = time.monotonic() + seconds
    while not position.covers(end):
        chunks = reader.poll(0.5)
        for chunk in chunks:
            position = chunk.position
            yield chunk
        if chunks:
            patience = time.monotonic() + seconds
        elif time.monotonic() > patience:
            raise LogUnavailable(
                f"{where(reader._place)} sent nothing for {seconds} s before {end}; is it up?"
            )


def offsets(consumer: Any, topic: str, partitions: int, *, ends: bool) -> Position:
    """First or last offsets of all partitions. Raises what kafka-python raises."""
    asked = [TopicPartition(topic, number) for number in range(partitions)]
    found = (consumer.end_offsets if ends else consumer.beginning_offsets)(asked)
    return Position(*(found[each] for each in asked))
