"""Long work that a coroutine waits for lets the event loop have a turn.

It is done beside the loop, in a thread. But a thread that wants the interpreter waits until it is given
up, five milliseconds if nobody does so by himself, and where several threads are at long work it stands
in line behind all of them; an event loop needs a turn for each of its steps. So loops over many rows give
way every so often, in threads that work for an event loop and only there: to give way is to let other
programs have the processor, too.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

TURN_SECONDS: Final = 0.001
EVERY_ROWS: Final = 256
"""Rows after which a scan asks whether its turn is over: some hundred microseconds."""
EVERY_STEPS: Final = 32
"""The same for the steps of a batch."""


class _Thread(threading.local):
    """What is known of the present thread."""

    ends: float | None = None
    """When its turn is over; ``None`` in one that works for no event loop."""


_thread = _Thread()


async def beside(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do something long in a thread, for a coroutine. Raises what it raises."""

    def working() -> T:
        _thread.ends = time.monotonic() + TURN_SECONDS
        try:
            return work(*arguments, **named)
        finally:
            _thread.ends = None

    return await asyncio.to_thread(working)


def give_way() -> None:
    """Let who waits for the interpreter have it, where that may be an event loop and the turn is over."""
    if _thread.ends is not None and time.monotonic() > _thread.ends:
        time.sleep(0)
        _thread.ends = time.monotonic() + TURN_SECONDS


def in_turns(items: Iterable[T], every: int) -> Iterator[T]:
    """The same items, giving way after every so many of them."""
    for number, each in enumerate(items, 1):
        yield each
        if number % every == 0:
            give_way()
