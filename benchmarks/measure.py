"""Timing: one caller, many threads, many tasks; memory and disk. Nothing here knows what is timed.

Every measurement is bounded: it ends after so many seconds, and a single call that takes longer
than that is a result of its own, marked as over budget.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import resource
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

A = TypeVar("A")
R = TypeVar("R")

KEPT: Final = 256
"""Answers kept for checking, per measurement."""


@dataclass
class Slice:
    """What one store did in one turn of one cell."""

    times: list[float] = field(default_factory=list)
    """Seconds of each call."""
    value: float | None = None
    """Where calls are not timed: operations per second, seconds, or bytes."""
    right: float | None = None
    """Share of answers that were right."""
    recall: float | None = None
    candidates: int | None = None
    over: bool = False
    """A single call took longer than the whole turn was allowed."""
    note: str = ""
    error: str = ""


def timed(
    call: Callable[[A], R], arguments: Iterable[A], seconds: float, most: int = 5_000
) -> tuple[Slice, list[tuple[A, R]]]:
    """Call one after the other for ``seconds``; the first call warms up, unless it takes them all."""
    clock = time.perf_counter
    done = Slice()
    kept: list[tuple[A, R]] = []
    source = itertools.cycle(arguments)
    argument = next(source)
    started = clock()
    answer = call(argument)
    first = clock() - started
    if first > seconds:
        return Slice(times=[first], over=True), [(argument, answer)]
    end = clock() + seconds
    for argument in source:
        began = clock()
        answer = call(argument)
        now = clock()
        done.times.append(now - began)
        if len(kept) < KEPT:
            kept.append((argument, answer))
        if now >= end or len(done.times) >= most:
            return done, kept
    return done, kept


async def timed_async(
    call: Callable[[A], Awaitable[R]], arguments: Iterable[A], seconds: float, most: int = 5_000
) -> tuple[Slice, list[tuple[A, R]]]:
    """:func:`timed` for coroutines, one after the other."""
    clock = time.perf_counter
    done = Slice()
    kept: list[tuple[A, R]] = []
    source = itertools.cycle(arguments)
    await call(next(source))
    end = clock() + seconds
    for argument in source:
        began = clock()
        answer = await call(argument)
        now = clock()
        done.times.append(now - began)
        if len(kept) < KEPT:
            kept.append((argument, answer))
        if now >= end or len(done.times) >= most:
            return done, kept
    return done, kept


def threads(work: Callable[[int], Iterator[None]], count: int, seconds: float) -> tuple[float, int]:
    """Run ``count`` iterators, one step an operation; returns operations per second, and their number.

    Raises what any of them raised.
    """
    done, errors = [0] * count, list[BaseException]()
    barrier = threading.Barrier(count + 1)
    end = float("inf")

    def run(number: int) -> None:
        steps = work(number)
        barrier.wait()
        try:
            for _ in steps:
                done[number] += 1
                if time.perf_counter() >= end:
                    return
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in running:
        thread.start()
    started = time.perf_counter()
    end = started + seconds
    barrier.wait()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    return sum(done) / (time.perf_counter() - started), sum(done)


async def tasks(call: Callable[[int, int], Awaitable[None]], count: int, seconds: float) -> tuple[float, int]:
    """Let ``count`` tasks each call ``call(task, step)`` over and over; see :func:`threads`."""
    started = time.perf_counter()
    end = started + seconds

    async def run(number: int) -> int:
        for step in itertools.count():
            await call(number, step)
            if time.perf_counter() >= end:
                return step + 1
            # A store whose put never waits would keep the others from starting.
            await asyncio.sleep(0)
        return 0

    done = sum(await asyncio.gather(*(run(number) for number in range(count))))
    return done / (time.perf_counter() - started), done


def until_quiet(most: float, window: float = 0.2) -> tuple[float, bool]:
    """Seconds until this process has next to nothing to do (0: at once), and whether it came to that."""
    started = time.perf_counter()
    while (spent := time.perf_counter() - started) < most:
        used = time.process_time()
        time.sleep(window)
        if time.process_time() - used < window / 10:
            return spent if spent > window else 0.0, True
    return most, False


def memory_bytes() -> int:
    """Memory of this process, shared pages counted in proportion; its peak where the kernel cannot say."""
    gc.collect()
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def disk_bytes(directory: Path) -> int:
    """Bytes that a folder takes on disk, preallocated ones included."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
