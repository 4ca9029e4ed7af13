"""The log on a Kafka topic: the same promises as the embedded one, kept by a cluster.

Offsets are Kafka's own, one record per event, partitions by the first label of a namespace.
What becomes of a topic behind our back is noticed by :class:`eventstore.log.kafka.topic.Watch`.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Final

from eventstore.connection import KafkaPlace, where
from eventstore.errors import EventStoreError, LogMismatch, StoreClosed
from eventstore.log.base import Chunk, OnDurable, OnWritten, Record, StoredRecord
from eventstore.log.kafka.appender import Appender, KafkaBatch
from eventstore.log.kafka.client import warn_of_slow_checksums
from eventstore.log.kafka.questions import Questions
from eventstore.log.kafka.reader import Reader, gap
from eventstore.log.kafka.topic import KEPT_A_DAY, KEPT_FOREVER, Kept, Watch, ensure_topic
from eventstore.log.position import Position

log = logging.getLogger("eventstore.log.kafka")

BUSY_SECONDS: Final = 0.2
"""So long after an append the follower leaves it the processor: appends are shown without it."""
BREATH_SECONDS: Final = 0.05
FOLLOW_SECONDS: Final = 3.0
"""How long the follower tries to connect before it looks whether it is still wanted."""


class KafkaLog:
    """A log on a topic. Safe for several threads; any number of processes may open it."""

    def __init__(self, place: KafkaPlace, kept: Kept = KEPT_FOREVER) -> None:
        """Raises ``LogUnavailable`` and ``InvalidConfig``."""
        self._place = place
        self._kept = kept
        self._session = uuid.uuid4().bytes
        self._wanted = threading.Event()
        self._closed = False
        self._reader: Reader | None = None
        self._breathed = False
        warn_of_slow_checksums()
        self._questions = Questions(place)
        try:
            self._topic = ensure_topic(place, self._questions, kept)
            self._watch = Watch(place, self._questions, self._topic)
            self._appender = Appender(place, self._session, self._questions, self._topic, self._watch)
        except BaseException:
            self._questions.close()
            raise
        self._watch.start()

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

    @property
    def record_bytes(self) -> int | None:
        """What the topic takes, less what is added to a record on its way."""
        return self._appender.record_bytes

    def prepare(self, records: Sequence[Record]) -> KafkaBatch:
        """Check sizes. Raises ``LimitExceeded`` naming both, for a record the topic does not take."""
        return self._appender.prepare(records)

    def append(
        self,
        batches: Sequence[KafkaBatch],
        on_durable: OnDurable | None = None,
        on_written: OnWritten | None = None,
    ) -> list[list[StoredRecord] | EventStoreError]:
        """Append batches; each has its own result, ``OutcomeUnknown`` and ``LimitExceeded`` among them.

        Raises ``LogUnavailable`` when nothing was appended, ``LogMismatch`` once the topic is not the
        one that was opened. Neither callback has a use here: other readers may see a record before
        its writer is told.
        """
        self._check()
        return self._appender.append(batches)

    def high_water_mark(self) -> Position:
        """The end of what is committed; asks the broker. Raises ``LogUnavailable``, ``LogMismatch``."""
        self._check()
        return self._questions.ends(self.partitions)

    def ahead_of(self, position: Position) -> bool:
        """Not known here: :meth:`poll` brings what there is. Who asks is waiting, so it makes haste."""
        self._wanted.set()
        return False

    def chunks(self, start: Position, *, whole: bool = True) -> Iterator[Chunk]:
        """Records from ``start`` to the present high-water mark, through a connection of its own."""
        end = self.high_water_mark()
        if start.covers(end):
            return
        reader = self.reader(start, whole=whole)
        try:
            yield from reader.read_to(end, self._place.options.connect_timeout)
        finally:
            reader.close()

    def poll(self, start: Position, seconds: float) -> list[Chunk]:
        """What came after ``start``, waiting up to ``seconds``; for the one thread that follows the log."""
        self._check()
        busy = time.monotonic() - self._appender.appended < BUSY_SECONDS
        self._breathed = busy and not self._breathed
        if self._breathed and not self._wanted.wait(min(seconds, BREATH_SECONDS)):
            # A fetch that waits at the end of the topic is answered by each of our own appends, and
            # takes the processor from it. Between them there is time to fetch what others wrote.
            return []
        self._wanted.clear()
        if self._reader is not None and not start.covers(self._reader.position):
            # What was handed out last was not applied: it is read again.
            self._drop_reader()
        if self._reader is None:
            # Not for long: closing waits for whoever is in here.
            patience = min(self._place.options.connect_timeout, FOLLOW_SECONDS)
            self._reader = Reader(self._place, self._questions, start, connect_timeout=patience)
        try:
            self._check()
            self._reader.skip_to(start)
            return self._reader.poll(seconds)
        except EventStoreError:
            self._drop_reader()
            raise

    def reader(self, start: Position, *, whole: bool = True) -> Reader:
        """Records from ``start`` on, through a connection of its own.

        Raises ``LogUnavailable``, and ``LogMismatch`` when the topic begins behind ``start``; a
        reader that starts at zero starts where the topic does, with a warning.
        """
        self._check()
        begin = self._questions.begins(self.partitions)
        if start.covers(begin):
            return Reader(self._place, self._questions, start, whole=whole)
        if any(start):
            raise gap(self._place, start, begin)
        if self._kept is KEPT_FOREVER:
            log.warning(
                "%s begins at %s: the %d events before are gone, and this view is built without them",
                where(self._place),
                begin,
                start.behind(begin),
            )
        return Reader(self._place, self._questions, start, begin=begin, whole=whole)

    def open_cache(self) -> KafkaLog:
        """The log of cache entries: the topic with ``.cache`` behind its name, made when missing."""
        return KafkaLog(self._place.model_copy(update={"topic": f"{self._place.topic}.cache"}), KEPT_A_DAY)

    def open_checkpoints(self) -> KafkaLog:
        """The log of checkpoints: the topic with ``.checkpoints`` behind its name, made when missing."""
        return KafkaLog(self._of_checkpoints())

    def find_checkpoints(self) -> KafkaLog | None:
        """The log of checkpoints, if its topic is there."""
        place = self._of_checkpoints()
        questions = Questions(place)
        try:
            found = questions.topic()
        finally:
            questions.close()
        return None if found is None else KafkaLog(place)

    def position_at(self, time_us: int) -> Position:
        """The position after the last record appended at or before a time. Raises ``LogUnavailable``."""
        end = self.high_water_mark()
        found = self._questions.first_since(self.partitions, time_us // 1000 + 1)
        return Position(*(last if at is None else min(at, last) for at, last in zip(found, end, strict=True)))

    def close(self) -> None:
        """Release connections, within seconds, whether or not the cluster answers. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._wanted.set()
        self._watch.stop()
        self._appender.close()
        self._drop_reader()
        self._questions.close()
        self._watch.join(1.0)

    # ------------------------------------------------------------------ inside

    def _of_checkpoints(self) -> KafkaPlace:
        return self._place.model_copy(update={"topic": f"{self._place.topic}.checkpoints"})

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed(f"the log at {where(self._place)} was closed; open it again")
        if self._watch.mismatch is not None:
            raise LogMismatch(self._watch.mismatch)

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
