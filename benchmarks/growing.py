"""What growth is measured on: many memories, one that is updated without end, many that were deleted.

Every function here is one process's work and gives figures by name, in seconds unless the name says more.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from langgraph.store.base import PutOp, SearchItem
from numpy.typing import NDArray

from benchmarks.measure import timed, until_quiet
from eventstore import EventStore

EACH: Final = 40
"""Memories of a user, however many there are."""
BATCH: Final = 100
WRITERS: Final = 64
QUIET_SECONDS: Final = 1_200.0
FILLER: Final = "prefers the window seat, travels north each winter and asks for a summary by mail. " * 3

WORK: Final = ", its work"
"""What the calling thread did itself: not waiting, neither for the disk nor for a core."""

Figures = dict[str, float]


@dataclass(frozen=True)
class Shape:
    """What a store holds. ``users`` have 40 memories each, written in turn."""

    items: int
    dims: int
    directory: Path

    @property
    def users(self) -> int:
        return max(1, self.items // EACH)

    def namespace(self, number: int) -> tuple[str, ...]:
        return (f"user-{number % self.users}", "memories")

    def put_op(self, number: int) -> PutOp:
        return PutOp(self.namespace(number), f"k{number}", {"n": number, "text": f"#{number} {FILLER}"})

    def prepare(self) -> None:
        """What is no part of opening: importing modules, and having an embedding model."""
        importlib.import_module("projector.runtime")
        numbered(self.dims)

    def open(self) -> EventStore:
        embed = numbered(self.dims)
        return EventStore.open(self.directory, index={"dims": self.dims, "embed": embed, "fields": ["text"]})


class Numbered:
    """Embeds a text by the number in it, from a few thousand random vectors, so that none need be kept."""

    def __init__(self, dims: int) -> None:
        rng = np.random.default_rng(dims)
        self._parts: NDArray[np.float32] = rng.standard_normal((3, 1_024, dims), dtype=np.float32)

    def __call__(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._of(int(text[1:].partition(" ")[0]), text[0] == "?").tolist() for text in texts]

    def _of(self, number: int, asked: bool) -> NDArray[np.float32]:
        first, second, third = self._parts
        made = first[number % 1_024] + second[(number >> 10) % 1_024]
        made = made + third[(number * 2_654_435_761 >> 7) % 1_024]
        if asked:
            # Near to the memory of that number, and to no other as near.
            made = made + np.float32(0.5) * third[(number + 1) % 1_024]
        return np.asarray(made / np.linalg.norm(made), np.float32)


numbered = functools.cache(Numbered)


class Wrong(Exception):
    """A store gave an answer that is not right: no figure is worth having."""


def load(shape: Shape) -> Figures:
    """Fill a store and wait until nothing is left to do."""
    with shape.open() as store:
        began = time.perf_counter()
        load_into(store, shape)
        spent = time.perf_counter() - began
        quiet, _ = until_quiet(QUIET_SECONDS, window=1.0)
    return {
        "load, memories per second": shape.items / spent,
        "background work after it": quiet,
        "peak memory of loading, bytes": peak(),
    }


def first_get(shape: Shape) -> Figures:
    """In a process that has just started, with all modules imported."""
    shape.prepare()
    began = time.perf_counter()
    store = shape.open()
    found = store.get(shape.namespace(1), "k1")
    spent = time.perf_counter() - began
    store.close()
    if found is None or found.value["n"] != 1:
        raise Wrong("a memory is not read back as it was put")
    return {"open and first get": spent}


def first_semantic(shape: Shape) -> Figures:
    """In a process that has just started, with all modules imported."""
    shape.prepare()
    began = time.perf_counter()
    store = shape.open()
    hits = store.search(shape.namespace(1), query="?1", limit=10)
    spent = time.perf_counter() - began
    store.close()
    _check(1, hits)
    return {"open and first semantic": spent}


def operations(shape: Shape, seconds: float) -> Figures:
    """Medians of single calls, and the most memory it took to open and to answer them."""
    rng = np.random.default_rng(shape.items)
    numbers = [int(number) for number in rng.integers(0, shape.items, 4_000)]
    new = [shape.items + number for number in range(100_000)]
    figures: Figures = {}
    with shape.open() as store:

        def median(name: str, call: Callable[[int], Any], arguments: Sequence[int]) -> list[Any]:
            used: list[float] = []
            clock = time.thread_time

            def measured(argument: int) -> Any:
                began = clock()
                answer = call(argument)
                used.append(clock() - began)
                return answer

            done, kept = timed(measured, arguments, seconds)
            figures[name] = float(np.median(done.times))
            figures[f"{name}{WORK}"] = float(np.median(used))
            return kept

        def semantic(number: int) -> list[SearchItem]:
            return store.search(shape.namespace(number), query=f"?{number}", limit=10)

        got = median("get", lambda number: store.get(shape.namespace(number), f"k{number}"), numbers)
        if any(item is None or item.value["n"] != number for number, item in got):
            raise Wrong("a memory is not read back as it was put")
        median("list ten newest", lambda number: store.search(shape.namespace(number), limit=10), numbers)
        for number, hits in median("semantic, a user of 40", semantic, numbers):
            _check(number, hits)
        names = median(
            "list_namespaces of a user",
            lambda number: store.list_namespaces(prefix=shape.namespace(number)[:1]),
            numbers,
        )
        if any(found != [shape.namespace(number)] for number, found in names):
            raise Wrong("list_namespaces does not give a user's one namespace")
        answered = median(
            "semantic, everything", lambda number: store.search((), query=f"?{number}", limit=10), numbers
        )
        found = [any(hit.key == f"k{number}" for hit in hits) for number, hits in answered]
        figures["semantic, everything: found, share"] = sum(found) / len(found)
        figures["peak memory of answering, bytes"] = peak()
        median("put", lambda number: store.batch([shape.put_op(number)]), new)
    return figures


class Pair(NamedTuple):
    """The same question where nothing had happened, and where much had."""

    before: float
    after: float


def hot_key(shape: Shape, updates: int, seconds: float) -> dict[str, Pair]:
    """One memory of a user is written over and over; what that does to its namespace."""
    namespace, neighbour = shape.namespace(0), f"k{shape.users}"

    with shape.open() as store:
        load_into(store, shape)
        asked: dict[str, Callable[[int], Any]] = {
            "list ten newest": lambda _: store.search(namespace, limit=10),
            "filter": lambda _: store.search(namespace, filter={"n": 0}, limit=10),
            "semantic": lambda _: store.search(namespace, query=f"?{shape.users}", limit=10),
            "history of the hot memory": lambda _: store.history(namespace, "k0", limit=10),
            "history of its neighbour": lambda _: store.history(namespace, neighbour, limit=10),
            "list_namespaces": lambda _: store.list_namespaces(prefix=namespace[:1]),
        }

        async def update(writer: int, step: int) -> None:
            await store.aput(namespace, "k0", {"n": 0, "text": f"#{writer * 1_000 + step} {FILLER}"})

        asyncio.run(_times(update, 10))  # as many versions as a page of history has
        before = _medians(asked, seconds)
        asyncio.run(_times(update, updates))
        after = _medians(asked, seconds)
        if len(store.history(namespace, "k0")) != updates + 11:
            raise Wrong("not every version is in the history")
    return {name: Pair(before[name], after[name]) for name in asked}


def deleted(shape: Shape, count: int, seconds: float) -> dict[str, Pair]:
    """A namespace that held many memories and many namespaces, beside one that never did."""
    with shape.open() as store:
        for top in ("used", "fresh"):
            if top == "used":
                for value in ({"n": 0}, None):
                    for start in range(0, count, 1_000):
                        numbers = range(start, min(start + 1_000, count))
                        store.batch([PutOp((top, "all"), f"d{each}", value, False) for each in numbers])
                        store.batch([PutOp((top, f"n{each}"), "d", value, False) for each in numbers])
            store.batch([PutOp((top, "all"), f"k{each}", {"n": each}, False) for each in range(5)])

        def asked(top: str) -> dict[str, Callable[[int], Any]]:
            return {
                "list, five left": lambda _: store.search((top, "all"), limit=10),
                "list above it": lambda _: store.search((top,), limit=10),
                "filter, which counts and scans": lambda _: store.search((top,), filter={"n": 3}, limit=10),
                "list_namespaces": lambda _: store.list_namespaces(prefix=(top,)),
                "list_namespaces, depth 1": lambda _: store.list_namespaces(prefix=(top,), max_depth=1),
            }

        after = _medians(asked("used"), seconds)
        before = _medians(asked("fresh"), seconds)
        if len(store.search(("used",), limit=10)) != 5 or store.list_namespaces(prefix=("used",)) != [
            ("used", "all")
        ]:
            raise Wrong("what was deleted is still there")
    return {name: Pair(before[name], after[name]) for name in before}


def load_into(store: EventStore, shape: Shape) -> None:
    """The memories of a shape, in batches."""
    for start in range(0, shape.items, BATCH):
        store.batch([shape.put_op(number) for number in range(start, min(start + BATCH, shape.items))])


def peak() -> float:
    """The most memory this process had, files that it maps included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


async def _times(update: Callable[[int, int], Any], count: int) -> None:
    """So many updates, from several tasks."""
    writers = min(WRITERS, count)

    async def run(writer: int) -> None:
        for step in range(writer, count, writers):
            await update(writer, step)

    await asyncio.gather(*(run(writer) for writer in range(writers)))


def _medians(asked: dict[str, Callable[[int], Any]], seconds: float) -> Figures:
    return {name: float(np.median(timed(call, [0], seconds)[0].times)) for name, call in asked.items()}


def _check(number: int, hits: Sequence[SearchItem]) -> None:
    if len(hits) != 10 or hits[0].key != f"k{number}":
        raise Wrong(f"the memory nearest to a question about {number} is not the first of ten")
