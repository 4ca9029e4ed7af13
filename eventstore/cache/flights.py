"""Single flight: per key at most one load runs in a process, whoever waits for it.

A load is a task of the event loop that began it; callers on other loops wait for the same one.
Whoever waits does so on a future of their own, so that cancelling one caller reaches neither the
load nor the others. A load that ends with its loop is begun again by the next who needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Final, NamedTuple

from eventstore.errors import InvalidInput
from eventstore.log.position import Position

COOLDOWN_SECONDS: Final = (0.05, 5.0)
"""Pause before a background load after one that failed: first, and at the most; it doubles."""
_LOOK_SECONDS: Final = 0.5
_MOST_COOLING: Final = 10_000


class Loaded(NamedTuple):
    """What a load brought."""

    own: object
    """The loader's own object, or what takes its place."""
    data: bytes
    """The same as JSON."""
    modelled: bool
    """Whether ``own`` is a model, so that callers without one get the JSON form."""


class Flight:
    """One load on its way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, depends_on: tuple[bytes, ...], delay: float) -> None:
        self.loop = loop
        self.depends_on = depends_on
        self.seen: Position | None = None
        """The moment from which it reads memories, once it does."""
        self.cooling = delay > 0
        """Whether it still waits for its turn after a failure."""
        self.task: asyncio.Task[Loaded] | None = None
        self._lock = threading.Lock()
        self._waiters: list[asyncio.Future[Loaded | None]] = []
        self._awaited = False
        self._done = False

    @property
    def is_alive(self) -> bool:
        """Whether it can still end: its loop runs."""
        return not self._done and self.loop.is_running()

    @property
    def was_awaited(self) -> bool:
        """Whether anybody ever waited for it."""
        return self._awaited

    async def wait(self) -> Loaded | None:
        """Its result; ``None`` when it was cancelled, or its loop is gone. Raises what it raised."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Loaded | None] = loop.create_future()
        with self._lock:
            self._awaited = True
            if self._done:
                self._settle(waiter)
            else:
                self._waiters.append(waiter)
        if loop is self.loop:
            return await waiter
        try:
            while not (await asyncio.wait({waiter}, timeout=_LOOK_SECONDS))[0]:
                if not self.is_alive:
                    return None
            return waiter.result()
        finally:
            waiter.cancel()

    def finish(self, task: asyncio.Task[Loaded]) -> None:
        """Tell everyone who waits. Runs on the flight's loop, when the task is done."""
        with self._lock:
            self._done = True
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.get_loop() is self.loop:
                self._settle(waiter)
            else:
                # A loop that was closed meanwhile has nobody waiting any more.
                with contextlib.suppress(RuntimeError):
                    waiter.get_loop().call_soon_threadsafe(self._settle, waiter)

    def _settle(self, waiter: asyncio.Future[Loaded | None]) -> None:
        task = self.task
        if waiter.done() or task is None:
            return
        if task.cancelled():
            waiter.set_result(None)
        elif (error := task.exception()) is not None:
            waiter.set_exception(error)
        else:
            waiter.set_result(task.result())


Run = Callable[[Flight], Awaitable[Loaded]]

_aboard: ContextVar[tuple[Flight, ...]] = ContextVar("eventstore_cache_flights", default=())


class Flights:
    """The loads of one cache, by digest. Safe to use from several event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[bytes, Flight] = {}
        self._cooling: dict[bytes, tuple[float, float]] = {}

    def of(self, digest: bytes) -> Flight | None:
        """The load on its way, if there is one. Raises ``InvalidInput`` inside of its own loader."""
        with self._lock:
            flight = self._flights.get(digest)
        if flight is None or not flight.is_alive:
            return None
        if flight in _aboard.get():
            raise InvalidInput("the loader of a cache key asked for this very key, and would wait for itself")
        return flight

    def begin(
        self,
        digest: bytes,
        run: Run,
        depends_on: tuple[bytes, ...],
        *,
        instead: Flight | None = None,
        delay: float = 0.0,
    ) -> tuple[Flight, bool]:
        """Begin a load on the running loop, unless another caller just did; and whether it was begun.

        ``instead`` is one on its way that is not good enough. ``delay`` is in seconds.
        """
        loop = asyncio.get_running_loop()
        with self._lock:
            there = self._flights.get(digest)
            if there is not None and there is not instead and there.is_alive:
                return there, False
            flight = Flight(loop, depends_on, delay)
            flight.task = loop.create_task(_fly(flight, run, delay))
            self._flights[digest] = flight
        flight.task.add_done_callback(lambda task: self._finish(digest, flight, task))
        if instead is not None and instead.cooling and instead.task is not None:
            with contextlib.suppress(RuntimeError):
                instead.loop.call_soon_threadsafe(instead.task.cancel)
        return flight, True

    def delay(self, digest: bytes) -> float:
        """Seconds until the next load in the background may begin."""
        found = self._cooling.get(digest)
        return 0.0 if found is None else max(0.0, found[1] - time.monotonic())

    def _finish(self, digest: bytes, flight: Flight, task: asyncio.Task[Loaded]) -> None:
        with self._lock:
            if self._flights.get(digest) is flight:
                del self._flights[digest]
            if task.cancelled():
                pass
            elif task.exception() is None:
                self._cooling.pop(digest, None)
            else:
                first, most = COOLDOWN_SECONDS
                pause = min(most, 2 * self._cooling.get(digest, (first / 2, 0.0))[0])
                if len(self._cooling) >= _MOST_COOLING:
                    self._cooling.clear()
                self._cooling[digest] = pause, time.monotonic() + pause
        flight.finish(task)


async def _fly(flight: Flight, run: Run, delay: float) -> Loaded:
    _aboard.set((*_aboard.get(), flight))
    if delay:
        await asyncio.sleep(delay)
        flight.cooling = False
    return await run(flight)
