"""Long work that a coroutine waits for lets the event loop have a turn.

It is done beside the loop, in a thread. But a thread that wants the interpreter waits until it is given
up, five milliseconds if nobody does so by himself, and where several want it, anyone may get it; an event
loop needs it for each of its steps. So loops over many rows give way every so often, in threads that work
for an event loop and only there: that takes time, and lets other programs have the processor, too. And of
these threads one goes on at a time, while the others wait in line without wanting the interpreter: it runs
one of them anyhow, and an event loop then has only that one before it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

TURN_SECONDS: Final = 0.001
WRITER_SECONDS: Final = 0.004
"""The turn of a writer that many wait for: most groups of writes are shorter."""
PAUSE_SECONDS: Final = 0.00005
"""How long a thread stands back: in less, it would have the interpreter again before anyone wakes."""
WAIT_SECONDS: Final = 0.02
"""How long a thread that gave way waits for the others' turns."""
EVERY_ROWS: Final = 256
"""Rows after which a scan asks whether its turn is over: some hundred microseconds."""
EVERY_STEPS: Final = 32
"""The same for the steps of a batch."""


class _Line:
    """Where one goes on and the others wait, in the order in which they came."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()
        self._taken = False

    def enter(self, timeout: float) -> bool:
        """Whether it is one's turn within so many seconds."""
        with self._guard:
            if not self._taken:
                self._taken = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout):
            return True
        with self._guard:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return False
            return True  # it was handed over just now

    def leave(self) -> None:
        """Let the next one go on."""
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


class _Thread(threading.local):
    """What is known of the present thread."""

    ends: float | None = None
    """When its turn is over; ``None`` in one that works for no event loop."""
    in_line: bool = False
    """Whether it goes on only when no other does."""
    goes_on: bool = False
    """Whether it is the one whose long work goes on."""

    def begin(self) -> None:
        """A turn begins."""
        self.ends = time.monotonic() + (TURN_SECONDS if self.in_line else WRITER_SECONDS)

    def stand_back(self) -> None:
        """Let another long work go on."""
        if self.goes_on:
            self.goes_on = False
            _line.leave()


_thread = _Thread()
_line = _Line()


async def beside(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do something long in a thread, for a coroutine. Raises what it raises."""

    def working() -> T:
        with for_loops():
            return work(*arguments, **named)

    return await asyncio.to_thread(working)


@contextmanager
def for_loops(*, in_line: bool = True) -> Iterator[None]:
    """What this thread does meanwhile is for event loops.

    Not ``in_line`` with others at long work is a writer that many wait for.
    """
    _thread.in_line = in_line
    _thread.begin()
    try:
        yield
    finally:
        _thread.ends = None
        _thread.stand_back()


def give_way() -> None:
    """Let who waits for the interpreter have it, where that may be an event loop and the turn is over."""
    if _thread.ends is not None and time.monotonic() > _thread.ends:
        # First this, while nobody in line wants the interpreter, and then the next one's turn.
        time.sleep(PAUSE_SECONDS)
        _thread.stand_back()
        if _thread.in_line:
            # Not for longer: whoever goes on may be waiting for something that this thread holds.
            _thread.goes_on = _line.enter(WAIT_SECONDS)
        _thread.begin()


def in_turns(items: Iterable[T], every: int) -> Iterable[T]:
    """The same items, giving way after every so many of them."""
    if isinstance(items, list) and len(items) < every:
        return items
    return _in_turns(items, every)


def _in_turns(items: Iterable[T], every: int) -> Iterator[T]:
    for number, each in enumerate(items, 1):
        yield each
        if number % every == 0:
            give_way()


def _after_fork() -> None:
    global _line
    _line = _Line()


os.register_at_fork(after_in_child=_after_fork)
