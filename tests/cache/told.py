"""A clock that is told the time, for the cache and for what its log says of append times.

``ToldLog`` stands before a real log. It writes the told time into a header of each record, so
that every reader of that log, in this process or another, finds the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from eventstore.log.base import Batch, Chunk, Log, OnDurable, Reader, Record, StoredRecord
from eventstore.log.position import Position

TOLD = "told-us"


class Clock:
    """µs since the epoch; only :meth:`advance` moves it."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us

    def advance(self, seconds: float) -> None:
        self.now_us += round(seconds * 1_000_000)


class ToldReader:
    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def poll(self, seconds: float) -> list[Chunk]:
        return [_told(chunk) for chunk in self._reader.poll(seconds)]

    def close(self) -> None:
        self._reader.close()


class ToldLog:
    """A log whose append times are a clock's. Times of what was written before stay."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def prepare(self, records: Sequence[Record]) -> Batch:
        told = (TOLD, b"%d" % self._clock())
        return self._log.prepare([record._replace(headers=(*record.headers, told)) for record in records])

    def append(self, batches: Sequence[Batch], on_durable: OnDurable | None = None) -> Any:
        def show(lists: Sequence[Sequence[StoredRecord]]) -> None:
            if on_durable is not None:
                on_durable([[_at(record) for record in records] for records in lists])

        appended = self._log.append(batches, show)
        return [each if isinstance(each, Exception) else [_at(one) for one in each] for each in appended]

    def chunks(self, start: Position) -> Iterator[Chunk]:
        yield from (_told(chunk) for chunk in self._log.chunks(start))

    def reader(self, start: Position) -> Reader:
        return ToldReader(self._log.reader(start))


def _told(chunk: Chunk) -> Chunk:
    return chunk._replace(records=[_at(record) for record in chunk.records])


def _at(record: StoredRecord) -> StoredRecord:
    told = dict(record.headers).get(TOLD)
    if told is None:
        return record
    return record._replace(
        appended_us=int(told), headers=tuple(each for each in record.headers if each[0] != TOLD)
    )
