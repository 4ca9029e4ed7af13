"""The writing side of a log: batches are checked, stamped, written in order, and accounted for."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from eventstore.connection import KafkaPlace, where
from eventstore.errors import (
    EventStoreError,
    InvalidConfig,
    LimitExceeded,
    LogError,
    LogMismatch,
    LogUnavailable,
    OutcomeUnknown,
)
from eventstore.log.base import Record, StoredRecord
from eventstore.log.kafka import stamps
from eventstore.log.kafka.producer import Ack
from eventstore.log.kafka.questions import Questions
from eventstore.log.kafka.stamps import Outgoing
from eventstore.log.kafka.topic import Topic, Watch
from eventstore.log.kafka.writer import Writer

BATCH_RECORDS: Final = 16_384
"""Records in an atomic batch, at the most."""
_HEADERS: Final = 20
"""As many as any record has, and more."""


class KafkaBatch(NamedTuple):
    """Records that are appended all together or not at all."""

    records: Sequence[Record]


class Appender:
    """All appends of one log, one after the other. Safe for several threads."""

    def __init__(
        self, place: KafkaPlace, session: bytes, questions: Questions, topic: Topic, watch: Watch
    ) -> None:
        """Raises ``LogUnavailable`` and ``InvalidConfig``."""
        self._place = place
        self._session = session
        self._questions = questions
        self._watch = watch
        self._partitions = topic.partitions
        self._limit = topic.max_record_bytes
        self._sequences: defaultdict[int, int] = defaultdict(int)
        self._ends = list(questions.ends(topic.partitions, committed=False))
        self._writing = threading.Lock()
        self._writer = Writer(place, session, lambda: self._limit)
        self.appended = 0.0
        """When something was appended last, in seconds of the monotonic clock."""

    @property
    def record_bytes(self) -> int:
        """The largest record that is not refused, key, value and headers together."""
        return self._limit - stamps.RECORD_OVERHEAD - _HEADERS * stamps.HEADER_OVERHEAD

    def prepare(self, records: Sequence[Record]) -> KafkaBatch:
        """Check sizes. Raises ``LimitExceeded`` naming both, for a record the topic does not take."""
        if len(records) > BATCH_RECORDS:
            raise LimitExceeded(
                f"a batch of {len(records)} records; at most {BATCH_RECORDS} are written atomically"
            )
        batch = KafkaBatch(records)
        refused = self._too_large(batch)
        if refused is not None:
            raise refused
        return batch

    def append(self, batches: Sequence[KafkaBatch]) -> list[list[StoredRecord] | EventStoreError]:
        """Append batches; see :meth:`eventstore.log.kafka.KafkaLog.append`."""
        with self._writing:
            now = time.time_ns() // 1000
            outgoing = [self._stamp(batch, now) for batch in batches]
            try:
                if all(len(batch.records) == 1 for batch in batches):
                    acks: Sequence[Ack | LogError] = self._writer.send([out for (out,) in outgoing])
                else:
                    acks = self._commit([out for each in outgoing for out in each])
            except LogError as error:
                if not self._writer.too_large:
                    raise
                acks = [error] * sum(map(len, outgoing))
            self.appended = time.monotonic()
            if self._writer.too_large:
                self._learn_limit()
            return self._results(batches, outgoing, acks)

    def close(self) -> None:
        """Close the producers, within seconds."""
        with self._writing:
            self._writer.close()

    # ------------------------------------------------------------------ inside

    def _too_large(self, batch: KafkaBatch) -> LimitExceeded | None:
        for record in batch.records:
            size = stamps.size_of(record)
            if size > self._limit:
                return LimitExceeded(
                    f"the event takes up to {size} bytes on the topic; {where(self._place)} takes "
                    f"{self._limit} (max.message.bytes). Nothing was appended. Split the value, or raise the "
                    "topic's limit and open the store again"
                )
        return None

    def _learn_limit(self) -> None:
        """The topic's limit was lowered while it was open."""
        with suppress(LogError, InvalidConfig):
            self._limit = int(self._questions.settings()["max.message.bytes"])

    def _stamp(self, batch: KafkaBatch, now: int) -> list[Outgoing]:
        size = len(batch.records)
        name = (os.urandom(8), size) if size > 1 else None
        out = []
        for record in batch.records:
            partition = stamps.partition_of(record.key, self._partitions)
            self._sequences[partition] += 1
            sequence = self._sequences[partition]
            headers = stamps.stamped(record, self._session, sequence, now, name)
            out.append(Outgoing(partition, sequence, now, record, headers))
        return out

    def _commit(self, outgoing: Sequence[Outgoing]) -> list[Ack]:
        """Write in one transaction, and return when every reader is sure to see it."""
        deadline = time.monotonic() + self._place.options.put_timeout
        acks = self._writer.send_atomically(outgoing)
        spans: dict[int, tuple[int, int]] = {}
        for out, ack in zip(outgoing, acks, strict=True):
            spans[out.partition] = spans.get(out.partition, (ack.offset, 0))[0], ack.offset
        # A commit is acknowledged before its markers are written; until then the end stands in front of it.
        while self._hides(spans):
            if time.monotonic() > deadline:
                raise OutcomeUnknown(
                    f"a batch of {len(outgoing)} was committed on {where(self._place)}, but readers do not "
                    "see it yet; they will. Read before writing again"
                )
            time.sleep(0.001)
        return acks

    def _hides(self, spans: dict[int, tuple[int, int]]) -> bool:
        try:
            end = self._questions.ends(self._partitions)
        except (LogUnavailable, InvalidConfig):
            return True
        return any(first <= end[partition] <= last for partition, (first, last) in spans.items())

    def _results(
        self,
        batches: Sequence[KafkaBatch],
        outgoing: Sequence[Sequence[Outgoing]],
        acks: Sequence[Ack | LogError],
    ) -> list[list[StoredRecord] | EventStoreError]:
        results: list[list[StoredRecord] | EventStoreError] = []
        following = iter(acks)
        for batch, each in zip(batches, outgoing, strict=True):
            records: list[StoredRecord] = []
            failed: EventStoreError | None = None
            for out in each:
                ack = next(following)
                if isinstance(ack, LogError):
                    failed = (self._too_large(batch) if self._writer.too_large else None) or ack
                elif ack.offset < self._ends[out.partition]:
                    failed = self._twice(out, ack)
                else:
                    self._ends[out.partition] = ack.offset + 1
                    records.append(stamps.acknowledged(out, self._session, ack.offset, ack.timestamp_ms))
            results.append(records if failed is None else failed)
        return results

    def _twice(self, out: Outgoing, ack: Ack) -> LogMismatch:
        """A topic never gives an offset twice: this is another one by the same name."""
        return LogMismatch(
            self._watch.look()
            or f"{where(self._place)} gave offset {ack.offset} of partition {out.partition} twice"
        )
