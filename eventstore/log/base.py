"""What every log must do, whatever it is made of.

A log is one topic of one or more partitions. It knows nothing of memories: records go in
as key, value and headers, and come out with where and when they were appended. The codec
gives them meaning; the projector reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from eventstore.errors import EventStoreError
from eventstore.log.position import Position


class Record(NamedTuple):
    """One event as the log carries it.

    ``value`` of ``None`` is a tombstone in Kafka's own sense. ``headers`` keep their order.
    """

    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class StoredRecord(NamedTuple):
    """A record read back from the log."""

    partition: int
    offset: int
    appended_us: int
    """When the log took it, µs since the epoch (UTC); never decreases within a partition."""
    time_us: int
    """When its writer stamped it, µs since the epoch (UTC); may step back with the clock."""
    session: bytes
    """16 bytes naming the writer's session; with ``sequence`` it finds duplicates."""
    sequence: int
    """Number of the record within its session and partition, from 1, in append order."""
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class Batch(Protocol):
    """Records prepared by :meth:`Log.prepare`; they are appended all together or not at all."""

    @property
    def records(self) -> Sequence[Record]: ...


class Chunk(NamedTuple):
    """Records that are applied together, and where a reader stands after them."""

    records: list[StoredRecord]
    position: Position


OnDurable = Callable[[Sequence[Sequence[StoredRecord]]], None]
"""Told of records that are durable and about to be announced."""


OnWritten = Callable[[Sequence[Sequence[StoredRecord]]], None]
"""Told of records that are being made durable, and may never be."""


class Reader(Protocol):
    """One consumer's own way through a log; for one thread at a time."""

    def poll(self, seconds: float) -> list[Chunk]:
        """What comes next, some of it at a time; waits up to ``seconds`` for the first."""

    def close(self) -> None:
        """Release what the reader holds. Idempotent."""


class Log(Protocol):
    """The ordered, append-only source of truth. Safe to use from several threads."""

    @property
    def location(self) -> str:
        """Where the log is, for messages."""

    @property
    def log_id(self) -> str:
        """Names this very log; a log that is deleted and made again has another one."""

    @property
    def partitions(self) -> int:
        """How many partitions the log has; it never changes."""

    @property
    def session(self) -> bytes:
        """16 bytes that records appended through this object carry."""

    @property
    def end_is_local(self) -> bool:
        """Whether :meth:`high_water_mark` costs no more than reading memory."""

    @property
    def record_bytes(self) -> int | None:
        """The largest record it takes, key, value and headers together; ``None``: no matter how large.

        It may change while the log is open.
        """

    def prepare(self, records: Sequence[Record]) -> Batch:
        """Do whatever can be done before the append, in the caller's own thread.

        Raises ``LimitExceeded`` for records the log cannot take.
        """

    def append(
        self,
        batches: Sequence[Batch],
        on_durable: OnDurable | None = None,
        on_written: OnWritten | None = None,
    ) -> Sequence[list[StoredRecord] | EventStoreError]:
        """Append batches in order and return them, stamped, once they are durable.

        Where a log acknowledges batches one by one, an error stands in the place of a failed one.

        ``on_durable`` is called with them before the high-water mark moves, where the log can:
        who sees the new mark in this process then finds them applied. It must not raise.
        ``on_written`` is called with the same lists before that, where the log can, while the disk is
        at work on them: what it does with them must not show. It must not raise either.

        Raises ``LogUnavailable`` when nothing was appended and ``OutcomeUnknown`` when that
        cannot be told.
        """

    def high_water_mark(self) -> Position:
        """The offsets that the next durable records will get."""

    def ahead_of(self, position: Position) -> bool:
        """Whether the log is known to hold something beyond a position; asks nobody."""

    def chunks(self, start: Position, *, whole: bool = True) -> Iterator[Chunk]:
        """Records from ``start`` to the present high-water mark.

        A chunk is never part of an atomic batch. Without ``whole`` it may be, and only then may
        ``start`` lie within a batch: nobody waits for the records before it.
        Raises ``LogDamaged`` at the first record whose checksum does not hold.
        """

    def poll(self, start: Position, seconds: float) -> list[Chunk]:
        """What came after ``start``, waiting up to ``seconds``; for the one thread that follows the log."""

    def reader(self, start: Position, *, whole: bool = True) -> Reader:
        """Records from ``start`` on, without an end; ``whole`` as for :meth:`chunks`."""

    def position_at(self, time_us: int) -> Position:
        """The position after the last record appended at or before a time (µs since the epoch)."""

    def close(self) -> None:
        """Release files and connections. Idempotent."""
