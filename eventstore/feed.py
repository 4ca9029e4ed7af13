"""The change feed: what happened to memories, in log order, from any position on.

Events come from the log and are shown once the view of this process holds them, with what the
fold made of them: duplicates, void events and refreshes are left out. A feed that stops is
resumed from the position of the last change seen, and misses nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Final, Self

from pydantic import ConfigDict, PlainSerializer

from eventstore.errors import LogUnavailable, StoreClosed, ViewBehind
from eventstore.history import Version, fields, is_version
from eventstore.keys import TOUCH_PREFIX
from eventstore.log.base import Chunk, Reader, StoredRecord
from eventstore.log.position import Position
from eventstore.views import HistoryRow, ReadView, Runtime

WAIT_SECONDS: Final = 0.1
"""How long one look for something new lasts, and so how long a feed outlives its store at the most."""
GRACE_SECONDS: Final = 10.0
"""How long beyond its time a feed goes on for events that were there when its time was up."""
_NAP: Final = 0.01
_FINITE_CHUNKS: Final = 1_000


class Change(Version):
    """One event of the feed."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    position: Annotated[Position, PlainSerializer(str, return_type=str)]
    """Where to resume so that this change and those before it are not seen again."""


class Changes:
    """Changes one after another; an iterator and an async iterator. For one consumer.

    Iterating again after a time-out goes on where it ended.
    """

    def __init__(
        self,
        runtime: Runtime,
        closed: Callable[[], bool],
        prefix: bytes,
        start: Position,
        *,
        follow: bool,
        timeout: float | None,
    ) -> None:
        """``closed`` is whether the store is; ``timeout`` is in seconds."""
        self._runtime = runtime
        self._store_closed = closed
        self._prefix = prefix
        self._follow = follow
        self._timeout = timeout
        self._filling = threading.Lock()
        self._reader: Reader | None = None
        self._finite: Iterator[Chunk] | None = None
        self._pending: deque[Chunk] = deque()
        self._queue: deque[Change] = deque()
        self._read = self._position = start
        self._ended = False

    @property
    def position(self) -> Position:
        """Where to resume: behind everything that was seen, or passed over."""
        return self._position if self._queue else self._read

    def close(self) -> None:
        """End the feed, within a moment. Idempotent."""
        self._ended = True
        self._release()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        deadline = self._deadline()
        end: Position | None = None
        while not self._queue:
            if self._is_over():
                raise StopIteration
            left = deadline - time.monotonic()
            if not self._fill(min(WAIT_SECONDS, max(_NAP, left))) and time.monotonic() >= deadline:
                end = self._end() if end is None else end
                if self._read.covers(end) or time.monotonic() >= deadline + GRACE_SECONDS:
                    self._release()
                    raise StopIteration
        return self._next()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        deadline = self._deadline()
        end: Position | None = None
        # Where the log's end is in memory, nobody needs to wait for it in a thread.
        seconds = 0.0 if self._runtime.log.end_is_local else WAIT_SECONDS
        while not self._queue:
            if self._is_over():
                raise StopAsyncIteration
            moved = not self._is_idle() and await asyncio.to_thread(self._fill, seconds)
            if not moved and not self._queue:
                if time.monotonic() >= deadline:
                    end = await asyncio.to_thread(self._end) if end is None else end
                    if self._read.covers(end) or time.monotonic() >= deadline + GRACE_SECONDS:
                        await asyncio.to_thread(self._release)
                        raise StopAsyncIteration
                await asyncio.sleep(_NAP)
        return self._next()

    # ------------------------------------------------------------------ inside

    def _release(self) -> None:
        """Give up the way through the log; another begins where this one ended, if need be."""
        with self._filling:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()

    def _deadline(self) -> float:
        return float("inf") if self._timeout is None else time.monotonic() + self._timeout

    def _end(self) -> Position:
        """What a feed whose time is up still has to show: all that was committed by then.

        A log that has to be asked may take longer to send its first events than a caller waits.
        """
        log = self._runtime.log
        if log.end_is_local:
            return self._read
        try:
            return log.high_water_mark()
        except (LogUnavailable, StoreClosed):
            return self._read

    def _next(self) -> Change:
        change = self._queue.popleft()
        self._position = change.position
        return change

    def _is_over(self) -> bool:
        if self._store_closed():
            self.close()
        return self._ended

    def _is_idle(self) -> bool:
        """Whether there is certainly nothing new, as far as can be told without waiting."""
        log = self._runtime.log
        try:
            return self._follow and log.end_is_local and not self._pending and not log.ahead_of(self._read)
        except StoreClosed:
            return False

    def _fill(self, seconds: float) -> bool:
        """Queue what comes next within so many seconds; whether the feed came further."""
        before = self._read
        with self._filling:
            if self._queue or self._ended:
                return True
            try:
                self._runtime.check()
                if not self._pending:
                    self._pending.extend(self._chunks(seconds))
                ready = self._applied()
                if ready:
                    with self._runtime.view.read() as view:
                        for chunk in ready:
                            self._take(view, chunk)
            except StoreClosed:
                if not self._store_closed():
                    raise
                self._ended = True
        return self._read != before

    def _chunks(self, seconds: float) -> list[Chunk]:
        log = self._runtime.log
        if self._follow:
            if self._reader is None:
                # Resumed behind a change, it may start within a batch. The view shows batches whole.
                self._reader = log.reader(self._read, whole=False)
            return self._reader.poll(seconds)
        if self._finite is None:
            self._finite = log.chunks(self._read, whole=False)
        found = list(islice(self._finite, _FINITE_CHUNKS))
        self._ended = not found
        return found

    def _applied(self) -> list[Chunk]:
        """Chunks that the view holds; waits for the first. Raises what stopped the projection before it."""
        ready: list[Chunk] = []
        while self._pending:
            chunk = self._pending[0]
            if not self._runtime.applied.covers(chunk.position):
                if ready:
                    break
                try:
                    self._runtime.wait_for(chunk.position, WAIT_SECONDS)
                except ViewBehind:
                    break
            ready.append(self._pending.popleft())
        return ready

    def _take(self, view: ReadView, chunk: Chunk) -> None:
        for record in chunk.records:
            self._read = self._read.advanced(record.partition, record.offset + 1)
            row = self._row(view, record)
            if row is not None:
                self._queue.append(Change(**fields(record.key, row), position=self._read))
        for partition, offset in enumerate(chunk.position):
            self._read = self._read.advanced(partition, offset)

    def _row(self, view: ReadView, record: StoredRecord) -> HistoryRow | None:
        if record.key.startswith(TOUCH_PREFIX) or not record.key.startswith(self._prefix):
            return None
        row = next(view.history(record.key, record.offset + 1), None)
        return row if row is not None and row.offset == record.offset and is_version(row) else None
