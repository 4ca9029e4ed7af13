"""Group commit: many callers, one append.

A batch waits in a queue until whoever commits next takes the queue in one append, so a flush of
the disk is shared by all that arrived during the one before. No timer is involved.

A lone synchronous caller commits in its own thread, since a hop to another costs as much as
the flush itself. When others queued meanwhile, a committer thread takes over; the caller goes.
Coroutines always leave the work to that thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from eventstore.errors import OutcomeUnknown, StoreClosed
from eventstore.interrupts import Uninterrupted
from eventstore.log.base import Batch
from eventstore.turns import for_loops
from eventstore.views import Written

MOST_RECORDS: Final = 512
"""A group with so many takes no more: the view is written in one piece, and the interpreter held meanwhile,
for longer than the disk needs."""
Write = Callable[[Sequence[Batch]], list[Written | Exception]]
"""Appends batches and makes them visible; gives each batch's result, or raises for all."""


class _Ticket:
    """One waiting batch: of a thread, which sleeps on a lock, or of a task, which awaits a future.

    A future is shared by all batches of one call, which are queued at once and hence written at once.
    """

    __slots__ = ("_done", "batch", "error", "future", "result")

    def __init__(self, batch: Batch, future: asyncio.Future[None] | None = None) -> None:
        self.batch = batch
        self.result: Written | None = None
        self.error: BaseException | None = None
        self.future = future
        self._done = threading.Lock() if future is None else None
        if self._done is not None:
            self._done.acquire()

    def release(self) -> None:
        # Twice does no harm: an interrupt may have fallen into the first time.
        if self._done is not None and self._done.locked():
            self._done.release()

    def wait(self) -> Written:
        """The batch's result, for a thread, once it is there."""
        if self._done is not None:
            self._done.acquire()
        return self.written()

    def written(self) -> Written:
        """The batch's result, which is there. Raises its error."""
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class Committer:
    """Takes batches from any thread or event loop and writes them in arrival order."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._queue: deque[_Ticket] = deque()
        self._committing = threading.Lock()
        self._wake = threading.Semaphore(0)
        self._closed = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def write(self, batch: Batch) -> Written:
        """Write a batch; returns when it is durable and visible. Raises what the write raised."""
        return self._commit([_Ticket(batch)])[0].wait()

    def write_all(self, batches: Sequence[Batch]) -> list[Written | BaseException]:
        """Write batches in order, each on its own; a failed one has its error in its place."""
        tickets = self._commit([_Ticket(batch) for batch in batches])
        results: list[Written | BaseException] = []
        for ticket in tickets:
            try:
                results.append(ticket.wait())
            except Exception as error:
                results.append(error)
        return results

    def _commit(self, tickets: list[_Ticket]) -> list[_Ticket]:
        """Queue tickets, and commit in this thread if nobody is committing."""
        self._enqueue(tickets)
        # Whoever holds the lock looks at the queue after letting go of it, so a ticket that
        # finds it taken is never forgotten, and nobody stands in line for the lock.
        try:
            with Uninterrupted():
                if self._committing.acquire(blocking=False):
                    try:
                        self._commit_queue()
                    finally:
                        self._committing.release()
                    if self._queue:
                        self._call_thread()
        except BaseException:
            # What is queued, by this caller or others, must not wait for the next write.
            self._call_thread()
            raise
        return tickets

    async def awrite(self, batch: Batch) -> Written:
        """:meth:`write` for a coroutine. Cancelling the wait does not undo the write."""
        return (await self._written([batch]))[0].written()

    async def awrite_all(self, batches: Sequence[Batch]) -> list[Written | BaseException]:
        """:meth:`write_all` for a coroutine."""
        tickets = await self._written(batches)
        return [ticket.error or ticket.written() for ticket in tickets]

    async def _written(self, batches: Sequence[Batch]) -> list[_Ticket]:
        """The tickets of batches, once all of them are settled."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        tickets = [_Ticket(batch, settled) for batch in batches]
        if tickets:
            self._enqueue(tickets)
            self._call_thread()
            await settled
        return tickets

    def close(self) -> None:
        """Write what is queued, refuse what comes later, and end the thread. Idempotent."""
        with self._starting:
            self._closed = True
        if self._thread is not None:
            self._wake.release()
            self._thread.join()
        with self._committing:
            while self._queue:
                self._commit_queue()

    def _enqueue(self, tickets: Sequence[_Ticket]) -> None:
        with self._starting:
            if self._closed:
                raise StoreClosed("the store is closed; open it again to write")
            self._queue.extend(tickets)

    def _call_thread(self) -> None:
        if self._thread is None:
            with self._starting:
                if self._thread is None and not self._closed:
                    self._thread = threading.Thread(
                        target=self._run, name="eventstore-committer", daemon=True
                    )
                    self._thread.start()
        self._wake.release()

    def _run(self) -> None:
        while not self._closed:
            self._wake.acquire()
            while self._queue:
                with self._committing, for_loops(in_line=False):
                    self._commit_queue()

    def _take(self, group: list[_Ticket]) -> None:
        """Move to a group what is next in the queue; what shares a future stays together."""
        queue, records = self._queue, 0
        while queue and (
            records < MOST_RECORDS or (group[-1].future and queue[0].future is group[-1].future)
        ):
            group.append(queue.popleft())
            records += len(group[-1].batch.records)

    def _commit_queue(self) -> None:
        """What is queued now, in one append. The caller holds the committing lock."""
        group: list[_Ticket] = []
        try:
            with self._starting:
                self._take(group)
            if not group:
                return
            results = self._write([ticket.batch for ticket in group])
            for ticket, result in zip(group, results, strict=True):
                if isinstance(result, Exception):
                    ticket.error = result
                else:
                    ticket.result = result
        except Exception as error:
            for ticket in group:
                ticket.error = error
        except BaseException:
            # Ctrl-C fell into one caller's commit; the others' writes must not look undone.
            for ticket in group:
                ticket.error = OutcomeUnknown(
                    "the thread that was writing this batch was interrupted; read before writing again"
                )
            raise
        finally:
            try:
                _settle(group)
            except BaseException:
                _settle(group)
                raise


def _settle(group: Iterable[_Ticket]) -> None:
    """Wake every waiter; tasks of one event loop with one call into it."""
    loops: dict[asyncio.AbstractEventLoop, dict[asyncio.Future[None], None]] = {}
    for ticket in group:
        if ticket.future is None:
            ticket.release()
        else:
            loops.setdefault(ticket.future.get_loop(), {})[ticket.future] = None
    for loop, futures in loops.items():
        # A loop that was closed while the batch was written has nobody waiting any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(_set_futures, futures)


def _set_futures(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
