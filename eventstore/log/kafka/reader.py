"""Consuming: committed records only, in order, batches whole.

No consumer group and no committed offsets: a reader stands where its view says. A position
that the topic no longer holds, or does not hold yet, is an error and never a jump.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

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
from eventstore.errors import InvalidConfig, LogDamaged, LogError, LogMismatch, LogUnavailable
from eventstore.log.base import Chunk
from eventstore.log.kafka.assembly import Assembly
from eventstore.log.kafka.client import FETCH_BYTES, connect, ms
from eventstore.log.kafka.questions import Questions
from eventstore.log.kafka.stamps import Incoming, incoming, partition_of
from eventstore.log.position import Position

MAX_RECORDS = 5_000
SLICE_SECONDS = 0.05
"""A marker of a transaction moves a reader on without a record; so long it may go unnoticed."""


class Reader:
    """One consumer of all partitions. One thread at a time."""

    def __init__(
        self,
        place: KafkaPlace,
        questions: Questions,
        start: Position,
        *,
        begin: Position | None = None,
        whole: bool = True,
        connect_timeout: float | None = None,
    ) -> None:
        """With ``begin``, what lies before it is gone, and is passed over.

        Without ``whole``, no record waits for others of its batch: those may lie before ``start``.

        Raises ``LogUnavailable`` when the cluster does not answer within ``connect_timeout`` seconds
        (default: the place's).
        """
        self._place = place
        self._questions = questions
        self._whole = whole
        self._partitions = [TopicPartition(place.topic, number) for number in range(len(start))]
        self._assembly = Assembly(start)
        first = begin or start
        for number, offset in enumerate(first):
            self._assembly.moved(number, offset)
        self._consumer = connect(
            KafkaConsumer,
            place,
            client_id="eventstore-reader",
            bootstrap_timeout_ms=ms(connect_timeout or place.options.connect_timeout),
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
            self._consumer.seek(each, first[each.partition])

    @property
    def position(self) -> Position:
        """Behind everything that was handed out."""
        return self._assembly.position

    def skip_to(self, position: Position) -> None:
        """Go on from a later position; what was applied without this reader need not be read."""
        if position == self.position or self._assembly.incomplete is not None:
            return
        for each in self._partitions:
            if position[each.partition] > self.position[each.partition]:
                self._consumer.seek(each, position[each.partition])
        self._assembly.skip_to(position)

    def poll(self, seconds: float) -> list[Chunk]:
        """What arrived since the last call, waiting up to ``seconds`` for something.

        After an error the reader is not to be used again. Raises ``LogDamaged`` and ``LogMismatch``.
        """
        deadline = time.monotonic() + seconds
        chunks = self._assembly.ready()
        while not chunks:
            left = deadline - time.monotonic()
            self._fetch(min(max(left, 0.0), SLICE_SECONDS))
            chunks = self._assembly.ready()
            if left <= SLICE_SECONDS:
                break
        return chunks

    def close(self) -> None:
        """Give up the connection."""
        with contextlib.suppress(KafkaError):
            self._consumer.close(timeout_ms=1_000)

    def read_to(self, end: Position, seconds: float) -> Iterator[Chunk]:
        """Chunks until ``end`` is covered. Raises ``LogUnavailable`` when none comes for ``seconds``."""
        patience = time.monotonic() + seconds
        while not self.position.covers(end):
            chunks = self.poll(0.5)
            yield from chunks
            if chunks:
                patience = time.monotonic() + seconds
            elif time.monotonic() > patience:
                raise self._silent(end, seconds)

    # ------------------------------------------------------------------ inside

    def _fetch(self, seconds: float) -> None:
        try:
            fetched = self._consumer.poll(timeout_ms=round(seconds * 1000), max_records=MAX_RECORDS)
            for each, messages in fetched.items():
                records = [incoming(message) for message in messages]
                if self._whole:
                    self._assembly.add(each.partition, records)
                else:
                    self._assembly.add(each.partition, [record._replace(batch=None) for record in records])
                for record in records:
                    # A memory has one partition, so a record elsewhere was written under another number.
                    if record.ours and self._home(record) != each.partition:
                        raise self._misplaced(each.partition, record.stored.offset)
            for each in self._partitions:
                self._assembly.moved(each.partition, self._consumer.position(each, timeout_ms=1_000))
        except (OffsetOutOfRangeError, LogTruncationError, NoOffsetForPartitionError) as error:
            raise self._out_of_range(error) from error
        except UnsupportedCodecError as error:
            raise InvalidConfig(
                f"{where(self._place)} holds records that were compressed in a way this client lacks: {error}"
            ) from error
        except CorruptRecordError as error:
            raise LogDamaged(f"{where(self._place)}: {type(error).__name__}: {error}") from error
        except KafkaTimeoutError:
            return
        except (KafkaError, RuntimeError) as error:
            # A client that is closed by another thread tells its own by a RuntimeError.
            raise LogUnavailable(f"{where(self._place)}: {type(error).__name__}: {error}") from error

    def _home(self, record: Incoming) -> int:
        return partition_of(record.stored.key, len(self._partitions))

    def _misplaced(self, partition: int, offset: int) -> LogMismatch:
        return LogMismatch(
            f"{where(self._place)} partition {partition}, offset {offset}: this memory belongs into another "
            f"of the {len(self._partitions)} partitions. The topic was given more partitions, or filled by a "
            "copy that chose them otherwise; make a new one and copy this one into it (see docs/kafka.md)"
        )

    def _out_of_range(self, error: Exception) -> LogMismatch:
        stands = self._assembly.position
        with contextlib.suppress(LogError, InvalidConfig):
            first = self._questions.begins(len(stands))
            last = self._questions.ends(len(stands))
            if not stands.covers(first):
                return gap(self._place, stands, first)
            if not last.covers(stands):
                return LogMismatch(
                    f"{where(self._place)} ends at {last}, the view stands at {stands}: "
                    "it was cut, restored from an older copy, or made anew"
                )
        return LogMismatch(f"{where(self._place)} does not hold the view's position {stands}: {error}")

    def _silent(self, end: Position, seconds: float) -> LogUnavailable:
        waits = self._assembly.incomplete
        if waits is None:
            return LogUnavailable(
                f"{where(self._place)} sent nothing for {seconds} s before {end}; is it up?"
            )
        return LogUnavailable(
            f"{where(self._place)} partition {waits.stored.partition}, offset {waits.stored.offset}: "
            f"for {seconds} s not all {waits.size} records of this batch came. Are all partitions up?"
        )


def gap(place: KafkaPlace, stands: Position, first: Position) -> LogMismatch:
    """A topic that begins behind where its reader stands."""
    return LogMismatch(
        f"{where(place)} begins at {first}, the view stands at {stands}: {stands.behind(first)} events "
        "are gone, and with them their history. Find what deleted them (delete_records, a retention "
        "setting); to go on without them, remove the view's folder, and it is built from what is there"
    )
