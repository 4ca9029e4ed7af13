"""``python -m benchmarks.cache``: the cache beside LangGraph's InMemoryCache and SqliteCache, in one run.

All three are node caches, so the calls they share are measured on all of them, taking turns step by
step; ``swr`` and its kin are ours alone. The value is a node's writes with a dozen fields, about
500 bytes. Printed are medians of single calls in µs.

    python -m benchmarks.cache [--turns 5] [--calls 500] [--json]

Exit code 1 when a cache gave a wrong answer, or fifty callers loaded more than once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from langgraph.cache.base import BaseCache
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.sqlite import SqliteCache
from rich.console import Console
from rich.table import Table

from eventstore import EventStore
from eventstore.cache import Cache, EventCache

HOUR = timedelta(hours=1)
GOAL_US = 15.0
"""Of a fresh hit of swr."""
FIELDS = {f"field {number}": f"a value of some length, number {number}" for number in range(12)}
WRITES = deque([("out", FIELDS)])
NODE = ("__pregel_ns_writes", "work", "work")
USER = ("users", "alice")
OURS, IN_MEMORY, SQLITE = "eventstore", "inmemory", "sqlite"

Figures = dict[str, dict[str, float]]


async def measure(turns: int, calls: int, folder: Path) -> tuple[Figures, list[str]]:
    """Medians in µs by cell and cache, and what was wrong."""
    with EventStore.open(folder / "store") as store:
        cache = Cache.from_store(store)
        caches: dict[str, BaseCache[Any]] = {
            OURS: EventCache(cache),
            IN_MEMORY: InMemoryCache(),
            SQLITE: SqliteCache(path=str(folder / "cache.db")),
        }
        taken: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        wrong: list[str] = []
        for turn in range(turns):
            for name, each in caches.items():
                for cell, seconds in (await _node(each, turn, calls, wrong)).items():
                    taken[cell][name] += seconds
            for cell, seconds in (await _swr(cache, turn, calls, wrong)).items():
                taken[cell][OURS] += seconds
        loads = {name: await _stampede(each) for name, each in caches.items()}
        loads[f"{OURS}, swr"] = await _swr_stampede(cache)
        if loads[f"{OURS}, swr"] != 1:
            wrong.append("fifty callers of swr loaded more than once")
    figures = {
        cell: {name: 1e6 * statistics.median(seconds) for name, seconds in by_name.items()}
        for cell, by_name in taken.items()
    }
    figures["50 callers of a missing key: loads"] = {OURS: loads[f"{OURS}, swr"], **_peers(loads)}
    return figures, wrong


async def _node(cache: BaseCache[Any], turn: int, calls: int, wrong: list[str]) -> dict[str, list[float]]:
    """What all caches can do."""
    full = (NODE, f"hit {turn}")
    cache.set({full: (WRITES, 3600)})
    if [tuple(each) for each in cache.get([full])[full]] != list(WRITES):
        wrong.append(f"{type(cache).__name__}: another value than was set")
    fresh = iter(range(10**9))
    return {
        "node get, hit": _timed(lambda: cache.get([full]), calls),
        "node aget, hit": await _atimed(lambda: cache.aget([full]), calls),
        "node get, miss": _timed(lambda: cache.get([(NODE, "absent")]), calls),
        "node set": _timed(lambda: cache.set({(NODE, f"{turn} {next(fresh)}"): (WRITES, 3600)}), calls),
        "node aset": await _atimed(
            lambda: cache.aset({(NODE, f"{turn} a {next(fresh)}"): (WRITES, 3600)}), calls
        ),
    }


async def _swr(cache: Cache, turn: int, calls: int, wrong: list[str]) -> dict[str, list[float]]:
    """What only ours can do. The loader takes no time, so a miss shows what the cache adds."""

    async def load() -> Any:
        return FIELDS

    fresh = iter(range(10**9))
    on = [(USER, "profile")]
    await cache.swr("hit", load, fresh_for=HOUR)
    await cache.swr("depends", load, fresh_for=HOUR, depends_on=on)
    await cache.cache_set("value", FIELDS)
    found = await cache.swr("hit", load, fresh_for=HOUR)
    if (found.value, found.status) != (FIELDS, "fresh") or await cache.cache_get("value") != FIELDS:
        wrong.append("swr or cache_get: another value than was stored")
    return {
        "swr, fresh hit": await _atimed(lambda: cache.swr("hit", load, fresh_for=HOUR), calls),
        "swr, fresh hit, depends on a memory": await _atimed(
            lambda: cache.swr("depends", load, fresh_for=HOUR, depends_on=on), calls
        ),
        "swr, miss": await _atimed(lambda: cache.swr(f"{turn} {next(fresh)}", load), calls),
        "cache_get, hit": await _atimed(lambda: cache.cache_get("value"), calls),
        "cache_set": await _atimed(lambda: cache.cache_set(f"{turn} {next(fresh)}", FIELDS), calls),
    }


async def _stampede(cache: BaseCache[Any]) -> int:
    """How often fifty callers at once load a missing key, when each looks, loads and sets."""
    loads: list[int] = []
    full = (NODE, "stampede")

    async def call() -> None:
        if not await cache.aget([full]):
            loads.append(1)
            await asyncio.sleep(0.05)
            await cache.aset({full: (WRITES, 3600)})

    await asyncio.gather(*[call() for _ in range(50)])
    return len(loads)


async def _swr_stampede(cache: Cache) -> int:
    loads: list[int] = []

    async def load() -> Any:
        loads.append(1)
        await asyncio.sleep(0.05)
        return FIELDS

    await asyncio.gather(*[cache.swr("stampede", load) for _ in range(50)])
    return len(loads)


def _peers(loads: dict[str, int]) -> dict[str, float]:
    return {name: loads[name] for name in (IN_MEMORY, SQLITE)}


def _timed(call: Callable[[], object], calls: int) -> list[float]:
    call()
    taken = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return taken


async def _atimed(call: Callable[[], Awaitable[object]], calls: int) -> list[float]:
    await call()
    taken = []
    for _ in range(calls):
        start = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - start)
    return taken


def table(figures: Figures) -> Table:
    """One row a cell; what a cache cannot do stays empty."""
    made = Table(title="Medians of single calls, µs")
    made.add_column("cell")
    for name in (OURS, IN_MEMORY, SQLITE):
        made.add_column(name, justify="right")
    for cell, by_name in figures.items():
        made.add_row(
            cell, *(f"{by_name[name]:.1f}" if name in by_name else "" for name in (OURS, IN_MEMORY, SQLITE))
        )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="EventStore's cache beside LangGraph's own.")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--calls", type=int, default=500, help="calls per cell, cache and turn")
    parser.add_argument("--dir", type=Path, help="where caches keep their files (default: temporary)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="cache-", dir=options.dir))
    try:
        figures, wrong = asyncio.run(measure(options.turns, options.calls, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        console = Console()
        console.print(table(figures))
        reached = figures["swr, fresh hit"][OURS] <= GOAL_US
        console.print(f"goal, a fresh hit within {GOAL_US:.0f} µs: {'reached' if reached else 'missed'}")
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
