"""Writes that several tasks begin at the same moment share one call of the model and one append.

Tasks whose writes were made durable together wake up together and write again, each with a text of
its own. A call of the model for each would be a request, or a hop to a thread, for each; and what a
task waits for, two futures and as many turns of the event loop, costs as much as the write. Nobody
waits for others to come: what one turn of the event loop brings is what goes together. Each write
still is a batch of its own, and each caller gets its own error.

What a write is made of, and what is done once it is written, is for the store to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, NamedTuple

from eventstore.embedding import Embedder, Vectors
from eventstore.events import Provenance
from eventstore.log.base import Batch
from eventstore.plan import Plan
from eventstore.ttl import Touched
from eventstore.views import Runtime, Written

MOST_TEXTS: Final = 256
"""Texts of one call; more of one caller stay together."""
PREPARED_AT_ONCE: Final = 32
"""Writes that become records in one turn of the event loop; more would hold it up."""

Prepare = Callable[[Plan, Vectors | None, Provenance], tuple[list[Batch], list[Touched]]]
Done = tuple[Sequence[Written | BaseException], list[Touched]]
"""What became of the batches of one write, and the refreshes that were among them."""


class _Waiting(NamedTuple):
    planned: Plan
    who: Provenance
    done: asyncio.Future[Done]

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class JoinedWrites:
    """Joins writes of tasks of one event loop; several loops, in several threads, do not meet."""

    def __init__(self, embedder: Embedder | None, prepare: Prepare, runtime: Runtime) -> None:
        """``prepare`` gives the batches of a write, which go to the log of ``runtime``."""
        self._embedder = embedder
        self._prepare = prepare
        self._runtime = runtime
        self._waiting: dict[tuple[asyncio.AbstractEventLoop, bool], list[_Waiting]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def write(self, planned: Plan, who: Provenance) -> Done:
        """Embed and append what was planned. Raises what that raises for it alone.

        The call of the model is made in the context of the first task that it is for. A cancelled
        wait undoes nothing once the texts are embedded.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(planned, who, loop.create_future())
        # What needs no model does not wait for one.
        apart = loop, planned.needs_model
        others = self._waiting.get(apart)
        if others is None:
            self._waiting[apart] = [waiting]
            loop.call_soon(self._start, loop, apart)
        else:
            others.append(waiting)
        return await waiting.done

    def _start(self, loop: asyncio.AbstractEventLoop, apart: tuple[asyncio.AbstractEventLoop, bool]) -> None:
        group: list[_Waiting] = []
        size = 0
        for waiting in self._waiting.pop(apart):
            texts = len(waiting.planned.documents)
            if group and size + texts > MOST_TEXTS:
                self._run(loop, self._embedded(loop, group))
                group, size = [], 0
            group.append(waiting)
            size += texts
        self._run(loop, self._embedded(loop, group))

    def _run(self, loop: asyncio.AbstractEventLoop, work: Coroutine[None, None, None]) -> None:
        task = loop.create_task(work)
        # The loop itself does not keep a task alive.
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _embedded(self, loop: asyncio.AbstractEventLoop, group: list[_Waiting]) -> None:
        """Embed the texts of a group in one call, and write it."""
        group = [waiting for waiting in group if not waiting.done.done()]
        texts = [text for waiting in group for text in waiting.planned.documents]
        vectors = None
        if texts and self._embedder is not None:
            try:
                vectors = await self._embedder.aembed(texts, ())
            except Exception as error:
                if len(group) == 1:
                    group[0].fail(error)
                    return
                # Perhaps one text is to blame; each caller's error is to be its own.
                for waiting in group:
                    self._run(loop, self._embedded(loop, [waiting]))
                return
            except BaseException:
                _cancel(group)
                raise
        while len(group) > PREPARED_AT_ONCE:
            some, group = group[:PREPARED_AT_ONCE], group[PREPARED_AT_ONCE:]
            self._run(loop, self._written(some, vectors))
            try:
                await asyncio.sleep(0)
            except BaseException:
                _cancel(group)
                raise
        await self._written(group, vectors)

    async def _written(self, group: Sequence[_Waiting], vectors: Vectors | None) -> None:
        """Append the writes of a group, and tell each caller what became of its own."""
        batches: list[Batch] = []
        parts: list[tuple[_Waiting, int, list[Touched]]] = []
        for waiting in group:
            if waiting.done.done():
                continue  # nobody waits for it any more
            try:
                made, touched = self._prepare(waiting.planned, vectors, waiting.who)
            except Exception as error:
                waiting.fail(error)
                continue
            batches += made
            parts.append((waiting, len(batches), touched))
        try:
            results = await self._runtime.awrite_all(batches)
        except Exception as error:
            for waiting in group:
                waiting.fail(error)
            return
        except BaseException:
            _cancel(group)
            raise
        first = 0
        for waiting, end, touched in parts:
            if not waiting.done.done():
                waiting.done.set_result((results[first:end], touched))
            first = end


def _cancel(group: Sequence[_Waiting]) -> None:
    for waiting in group:
        waiting.done.cancel()
