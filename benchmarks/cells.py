"""All cells: what each is called, its unit, its goal, and when it is run.

A goal is for 100,000 items, on the machine the goals were set on; at other sizes and on other
machines it is a yardstick.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks import reads, writes
from benchmarks.bench import Bench
from benchmarks.measure import Slice
from benchmarks.workload import CHUNKS, Spec

Unit = Literal["seconds", "per second", "bytes"]
Phase = Literal["load", "read", "reopen", "rebuild", "write"]
Measure = Callable[[Bench, float], Slice]

MILLI: Final = 1e-3
MICRO: Final = 1e-6


@dataclass(frozen=True)
class Goal:
    """At most so many seconds or bytes, at least so many per second; and a recall, where asked."""

    limit: float = 0.0
    recall: float = 0.0
    scaled: Callable[[Spec], float] | None = None
    """The limit, where it depends on the workload."""
    before_durable: bool = False
    """And better than every durable peer of the same run."""

    def limit_for(self, spec: Spec) -> float:
        return self.limit if self.scaled is None else self.scaled(spec)


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    name: str
    title: str
    phase: Phase
    measure: Measure
    unit: Unit = "seconds"
    goal: Goal | None = None
    semantic: bool = False
    """Needs vectors."""
    ours_only: bool = False
    """Says something that no other store has, or that is not about a store."""
    turns: int | None = None
    """How often it is run, where that is not for the user to choose."""

    @property
    def lower_is_better(self) -> bool:
        return self.unit != "per second"


def _read(name: str, title: str, measure: Measure, at_most: float) -> Cell:
    return Cell(name, title, "read", measure, goal=Goal(at_most))


def _semantic(name: str, title: str, group: str, at_most: float, recall: float = 1.0) -> Cell:
    return Cell(name, title, "read", reads.semantic(group), goal=Goal(at_most, recall), semantic=True)


def _rate(name: str, title: str, measure: Measure, at_least: float, *, semantic: bool = False) -> Cell:
    return Cell(name, title, "write", measure, "per second", Goal(at_least), semantic)


def _reopen(name: str, title: str, measure: Measure, goal: Goal) -> Cell:
    return Cell(name, title, "reopen", measure, goal=goal, semantic=goal.recall > 0)


def _rebuild(name: str, title: str, measure: Measure, goal: Goal) -> Cell:
    return Cell(name, title, "rebuild", measure, "per second", goal, goal.recall > 0, ours_only=True)


def _memory_goal(spec: Spec) -> float:
    """Twice the vectors and 150 MB."""
    return 2 * spec.items * spec.dims * 4 + 150e6


CELLS: Final[tuple[Cell, ...]] = (
    Cell("load", "load, batches of 100", "load", writes.load, "per second", turns=CHUNKS),
    Cell("settle", "background work after the load", "load", writes.settle, turns=1),
    _read("get", "get hit", reads.get_hit, 15 * MICRO),
    _read("async-get", "async get", reads.async_get, 25 * MICRO),
    _read("newest", "a user's ten newest", reads.newest, 150 * MICRO),
    _read("filter-user", "filter 1 %, largest user", reads.filter_user, 4 * MILLI),
    _read("filter-all", "filter 1 %, everything", reads.filter_all, 25 * MILLI),
    _semantic("semantic-40", "semantic, user of 40", "small", 0.15 * MILLI),
    _semantic("semantic-250", "semantic, user of 250", "middle", 0.20 * MILLI),
    _semantic("semantic-large", "semantic, largest user", "large", 0.7 * MILLI),
    _semantic("semantic-kind", "semantic + filter kind, largest user", "kind", 5 * MILLI),
    _semantic("semantic-tag", "semantic + filter 1 %, largest user", "tag", 5 * MILLI),
    _semantic("semantic-all", "semantic, everything", "all", 2 * MILLI, recall=0.99),
    _read("namespaces-user", "list_namespaces of a user", reads.namespaces_user, 60 * MICRO),
    _read("namespaces-depth", "list_namespaces, depth 1", reads.namespaces_depth, 0.6 * MILLI),
    Cell("memory", "memory growth", "read", writes.memory, "bytes", Goal(scaled=_memory_goal), turns=1),
    Cell("disk", "disk, per item", "read", writes.disk, "bytes", turns=1),
    _reopen("reopen-get", "open and first get", writes.reopen_get, Goal(100 * MILLI)),
    _reopen("reopen-semantic", "open and first semantic", writes.reopen_semantic, Goal(200 * MILLI, 1.0)),
    _rebuild("rebuild", "rebuild, events with vectors", writes.rebuild, Goal(20_000, 1.0)),
    _rebuild("rebuild-plain", "rebuild, events without", writes.rebuild_plain, Goal(50_000)),
    Cell("floor", "the disk: 4 KiB, synced", "write", writes.sync_floor, ours_only=True),
    Cell("put", "durable put, one caller", "write", writes.put, goal=Goal(0.40 * MILLI, before_durable=True)),
    _rate("put-threads", "durable puts, 64 threads", writes.put_threads, 8_000),
    _rate("put-tasks", "durable puts, 64 tasks", writes.put_tasks, 15_000),
    _rate("mixed", "mixed 95/5, 8 threads", writes.mixed, 5_000, semantic=True),
)
BY_NAME: Final = {cell.name: cell for cell in CELLS}
