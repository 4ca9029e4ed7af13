"""The log on a Kafka topic: the same promises as the embedded one, kept by a cluster.

Offsets are Kafka's own, one record per event, partitions by the first label of a namespace.
The topic is made, and verified, by :mod:`eventstore.log.kafka.topic`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from eventstore.connection import KafkaPlace, where
from eventstore.errors import LimitExceeded, LogError, LogMismatch, StoreClosed
from eventstore.log.base import Chunk, OnDurable, Record, StoredRecord
from eventstore.log.kafka import stamps
from eventstore.log.kafka.client import common, unreachable
from eventstore.log.kafka.reader import Reader, offsets, read_to
from eventstore.log.kafka.stamps import Outgoing
from eventstore.log.kafka.topic import ensure_topic
from eventstore.log.kafka.writer import Ack, Writer
from eventstore.log.position import Position

BATCH_RECORDS = 16_384
"""Records in an atomic batch, at the most."""


class KafkaBatch(NamedTuple):
    """Records that are appended all together or not at all."""

    records: Sequence[Record]


class KafkaLog:
    """A log on a topic. Safe for several threads; any number of processes may open it."""

    def __init__(self, place: KafkaPlace) -> None:
        """Raises ``LogUnavailable`` and ``InvalidConfig``."""
        self._place = place
        self._topic = ensure_topic(place)
        self._session = uuid.uuid4().bytes
        self._sequences: defaultdict[int, int] = defaultdict(int)
        self._appending = threading.Lock()
        self._asking = threading.Lock()
        self._closed = False
        self._writer = Writer(place, self._session, self._topic.max_record_bytes)
        self._reader: Reader | None = None
        self._consumer: KafkaConsumer | None = None

    @property
    def location(self) -> str:
        """The topic's address; no secret in it."""
        return where(self._place)

    @property
    def log_id(self) -> str:
        """Cluster and topic id."""
        return self._topic.id

    @property
    def partitions(self) -> int:
        """Of the topic."""
        return self._topic.partitions

    @property
    def session(self) -> bytes:
        """Names this object among all writers."""
        return self._session

    @property
    def end_is_local(self) -> bool:
        """Never: the broker has to be asked."""
        return False

    def prepare(self, records: Sequence[Record]) -> KafkaBatch:
        """Check sizes. Raises ``LimitExceeded`` naming both, for a record the topic does not take."""
        limit = self._topic.max_record_bytes
        for record in records:
            size = stamps.size_of(record)
            if size > limit:
                raise LimitExceeded(
                    f"the event takes up to {size} bytes on the topic; {where(self._place)} takes {limit} "
                    "(max.message.bytes). Split the value, or raise the topic's limit"
                )
        if len(records) > BATCH_RECORDS:
            raise LimitExceeded(
                f"a batch of {len(records)} records; at most {BATCH_RECORDS} are written atomically"
            )
        return KafkaBatch(records)

    def append(
        self, batches: Sequence[KafkaBatch], on_durable: OnDurable | None = None
    ) -> list[list[StoredRecord] | LogError]:
        """Append batches; each has its own result, ``OutcomeUnknown`` among them.

        Raises ``LogUnavailable`` when nothing was appended. ``on_durable`` has no use here: other
        readers may see a record before its writer is told.
        """
        with self._appending:
            self._check()
            now = time.time_ns() // 1000
            plain = all(len(batch.records) == 1 for batch in batches)
            outgoing = [self._stamp(batch, now, atomic=len(batch.records) > 1) for batch in batches]
            flat = [out for each in outgoing for out in each]
            acks = self._writer.send(flat) if plain else self._writer.send_atomically(flat)
            return self._results(outgoing, list(acks))

    def high_water_mark(self) -> Position:
        """The end of what is committed; asks the broker. Raises ``LogUnavailable``."""
        return self._offsets(ends=True)

    def ahead_of(self, position: Position) -> bool:
        """Not known here: :meth:`poll` brings what there is."""
        return False

    def chunks(self, start: Position) -> Iterator[Chunk]:
        """Records from ``start`` to the present high-water mark, through a connection of its own."""
        self._check()
        end = self.high_water_mark()
        if start.covers(end):
            return
        self._refuse_gap(start)
        reader = Reader(self._place, self.partitions, start)
        try:
            yield from read_to(reader, end, self._place.options.connect_timeout)
        finally:
            reader.close()

    def poll(self, start: Position, seconds: float) -> list[Chunk]:
        """What came after ``start``, waiting up to ``seconds``; for the one thread that follows the log."""
        self._check()
        if self._reader is None:
            self._reader = Reader(self._place, self.partitions, start)
        try:
            return self._reader.poll(seconds)
        except LogError:
            self._reader.close()
            self._reader = None
            raise

    def reader(self, start: Position) -> Reader:
        """Records from ``start`` on, through a connection of its own. Raises ``LogUnavailable``."""
        self._check()
        self._refuse_gap(start)
        return Reader(self._place, self.partitions, start)

    def position_at(self, time_us: int) -> Position:
        """The position after the last record appended at or before a time. Raises ``LogUnavailable``."""
        end = self.high_water_mark()
        asked = {
            TopicPartition(self._place.topic, number): time_us // 1000 + 1
            for number in range(self.partitions)
        }
        with self._asking:
            try:
                found = self._client().offsets_for_times(asked)
            except KafkaError as error:
                raise unreachable(self._place, error) from error
        return Position(
            *(end[each.partition] if found.get(each) is None else found[each].offset for each in asked)
        )

    def close(self) -> None:
        """Release connections. Idempotent."""
        if self._closed:
            return
        self._closed = True
        with self._appending:
            self._writer.close()
        if self._reader is not None:
            self._reader.close()
        if self._consumer is not None:
            with contextlib.suppress(KafkaError):
                self._consumer.close(timeout_ms=2_000)

    # ------------------------------------------------------------------ inside

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed(f"the log at {where(self._place)} was closed; open it again")

    def _stamp(self, batch: KafkaBatch, now: int, *, atomic: bool) -> list[Outgoing]:
        name = (os.urandom(8), len(batch.records)) if atomic else None
        out = []
        for record in batch.records:
            partition = stamps.partition_of(record.key, self.partitions)
            self._sequences[partition] += 1
            sequence = self._sequences[partition]
            headers = stamps.stamped(record, self._session, sequence, now, name)
            out.append(Outgoing(partition, sequence, now, record, headers))
        return out

    def _results(
        self, outgoing: Sequence[Sequence[Outgoing]], acks: list[Ack | LogError]
    ) -> list[list[StoredRecord] | LogError]:
        results: list[list[StoredRecord] | LogError] = []
        at = 0
        for batch in outgoing:
            made = acks[at : at + len(batch)]
            at += len(batch)
            failed = next((each for each in made if isinstance(each, LogError)), None)
            if failed is not None:
                results.append(failed)
                continue
            results.append(
                [
                    stamps.acknowledged(out, self._session, ack.offset, ack.timestamp_ms)
                    for out, ack in zip(batch, made, strict=True)
                    if isinstance(ack, Ack)
                ]
            )
        return results

    def _client(self) -> KafkaConsumer:
        """For questions: the reader's own connection is busy with a parked fetch."""
        if self._consumer is None:
            self._consumer = KafkaConsumer(
                **common(self._place),
                client_id="eventstore-questions",
                metrics_enabled=False,
                group_id=None,
                isolation_level="read_committed",
                allow_auto_create_topics=False,
            )
        return self._consumer

    def _offsets(self, *, ends: bool) -> Position:
        self._check()
        with self._asking:
            try:
                return offsets(self._client(), self._place.topic, self.partitions, ends=ends)
            except KafkaError as error:
                raise unreachable(self._place, error) from error

    def _refuse_gap(self, start: Position) -> None:
        first = self._offsets(ends=False)
        if not start.covers(first):
            raise LogMismatch(
                f"{where(self._place)} begins at {first}, the view stands at {start}: "
                f"{start.behind(first)} events are gone, and with them history. Find what deleted them"
            )
