"""Texts that several tasks want embedded at the same moment go to the model in one call.

Tasks whose writes were made durable together wake up together and write again, each with a text of
its own. A call of the model for each would be a request, or a hop to a thread, for each. Nobody waits
for others to come: what one turn of the event loop brings is what goes together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

from eventstore.views import Vector

MOST_TEXTS: Final = 256
"""Texts of one call; more of one caller stay together."""

Made = Mapping[str, Vector]
"""Vectors by their text."""


class _Waiting(NamedTuple):
    texts: Sequence[str]
    made: asyncio.Future[Made]


class Joined:
    """Joins calls of tasks of one event loop; several loops, in several threads, do not meet."""

    def __init__(self, embed: Callable[[list[str]], Awaitable[Made]]) -> None:
        """``embed`` gives the vectors of distinct texts."""
        self._embed = embed
        self._waiting: dict[asyncio.AbstractEventLoop, list[_Waiting]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def vectors(self, texts: Sequence[str]) -> Made:
        """The vectors of at least these texts. Raises what ``embed`` raises for them alone.

        The call is made in the context of the first task that it is for. A cancelled wait does not
        undo it.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(texts, loop.create_future())
        others = self._waiting.get(loop)
        if others is None:
            self._waiting[loop] = [waiting]
            loop.call_soon(self._start, loop)
        else:
            others.append(waiting)
        return await waiting.made

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        group: list[_Waiting] = []
        size = 0
        for waiting in self._waiting.pop(loop):
            if group and size + len(waiting.texts) > MOST_TEXTS:
                self._call(loop, group)
                group, size = [], 0
            group.append(waiting)
            size += len(waiting.texts)
        self._call(loop, group)

    def _call(self, loop: asyncio.AbstractEventLoop, group: list[_Waiting]) -> None:
        task = loop.create_task(self._answer(loop, group))
        # The loop itself does not keep a task alive.
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _answer(self, loop: asyncio.AbstractEventLoop, group: list[_Waiting]) -> None:
        group = [waiting for waiting in group if not waiting.made.done()]
        if not group:
            return
        try:
            made = await self._embed(list(dict.fromkeys(text for each in group for text in each.texts)))
        except Exception as error:
            if len(group) == 1:
                _settle(group[0], error)
            else:
                # Perhaps one text is to blame; each caller's error is to be its own.
                for waiting in group:
                    self._call(loop, [waiting])
            return
        except BaseException:
            for waiting in group:
                waiting.made.cancel()
            raise
        for waiting in group:
            _settle(waiting, made)


def _settle(waiting: _Waiting, result: Made | Exception) -> None:
    if waiting.made.done():
        return
    if isinstance(result, Exception):
        waiting.made.set_exception(result)
    else:
        waiting.made.set_result(result)
