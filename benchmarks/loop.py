"""``python -m benchmarks.loop``: how late other coroutines are while the store works.

    python -m benchmarks.loop --items 20000 --json loop.json

A heartbeat asks to be woken every millisecond and notes how late it is, first with nothing else on
the loop, then beside calls of each kind, then beside all of them. The embedding model is a sync function
that takes its time. On a busy machine the idle heartbeat is late, too: compare with the first line.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from langgraph.store.base import GetOp, PutOp
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.growing import FILLER, numbered
from benchmarks.report import amount
from benchmarks.run import machine
from eventstore import EventStore

BEAT: Final = 0.001
GOAL: Final = 0.005
"""No call keeps the loop longer than this."""
TASKS: Final = 4
DIMS: Final = 384
IDLE: Final = "nothing"

Act = Callable[[EventStore, random.Random], Awaitable[object]]


class Late(NamedTuple):
    """How late the heartbeat was, in seconds, beside one kind of call."""

    beats: int
    median: float
    p99: float
    worst: float
    calls: int
    work: float
    """The most the loop's thread did itself from one beat to the next: no other program is in it."""


def acts(items: int) -> dict[str, Act]:
    """Calls of every kind, by name."""

    def key(chance: random.Random) -> tuple[tuple[str, ...], str]:
        number = chance.randrange(items)
        return (f"user-{number % 20}", "memories"), f"k{number}"

    # Made beforehand: what the caller does on the loop is not the store's.
    chance = random.Random(0)
    puts = [
        [_memory(chance.randrange(items), chance.randrange(items)) for _ in range(1_000)] for _ in range(8)
    ]
    gets = [[GetOp(*key(chance)) for _ in range(1_000)] for _ in range(8)]

    return {
        "aget": lambda store, chance: store.aget(*key(chance)),
        "aput": lambda store, chance: store.abatch([chance.choice(puts[0])]),
        "abatch, 1,000 puts": lambda store, chance: store.abatch(chance.choice(puts)),
        "abatch, 1,000 gets": lambda store, chance: store.abatch(chance.choice(gets)),
        "asearch, ten newest": lambda store, chance: store.asearch(key(chance)[0], limit=10),
        "asearch, 1,000 newest": lambda store, chance: store.asearch((), limit=1_000),
        "asearch, a filter that scans": lambda store, chance: store.asearch(
            (), filter={"n": {"$lt": 0}}, limit=10
        ),
        "asearch, semantic": lambda store, chance: store.asearch(
            key(chance)[0], query=f"?{chance.randrange(items)}", limit=10
        ),
        "asearch, semantic + filter": lambda store, chance: store.asearch(
            (), query=f"?{chance.randrange(items)}", filter={"n": chance.randrange(items)}, limit=10
        ),
        "alist_namespaces": lambda store, chance: store.alist_namespaces(suffix=("memories",)),
        "adiff": lambda store, chance: store.adiff(0, chance.randrange(1, items // 2)),
    }


def _memory(number: int, content: int) -> PutOp:
    value = {"n": content, "text": f"#{content} {FILLER}"}
    return PutOp((f"user-{number % 20}", "memories"), f"k{number}", value)


def measure(items: int, seconds: float, folder: Path, model_seconds: float = 0.02) -> dict[str, Late]:
    """Lateness beside each kind of call, and beside all at once."""
    embed = numbered(DIMS)

    def slow(texts: Sequence[str]) -> list[list[float]]:
        time.sleep(model_seconds)
        return embed(texts)

    settings: dict[str, Any] = {"dims": DIMS, "embed": embed, "fields": ["text"], "model": "numbers"}
    with EventStore.open(folder / "store", index=settings) as store:
        for start in range(0, items, 500):
            store.batch([_memory(number, number) for number in range(start, min(start + 500, items))])
    with EventStore.open(folder / "store", index={**settings, "embed": slow}) as store:
        # As a service does once it has started: Python's collector need not look through all modules
        # again and again, which stops every thread for longer than anything that is measured here.
        gc.collect()
        gc.freeze()
        kinds = acts(items)
        found = {IDLE: asyncio.run(_beside(store, [], seconds))}
        for name, act in kinds.items():
            found[name] = asyncio.run(_beside(store, [act], seconds))
        found["all of them at once"] = asyncio.run(_beside(store, list(kinds.values()), 2 * seconds))
    return found


async def _beside(store: EventStore, chosen: Sequence[Act], seconds: float) -> Late:
    end = time.perf_counter() + seconds
    calls = 0

    async def run(number: int) -> None:
        nonlocal calls
        chance = random.Random(number)
        while time.perf_counter() < end:
            await chosen[number % len(chosen)](store, chance)
            calls += 1
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(run(number)) for number in range(TASKS + len(chosen) if chosen else 0)]
    late, work = [], []
    while time.perf_counter() < end:
        asked, used = time.perf_counter(), time.thread_time()
        await asyncio.sleep(BEAT)
        late.append(time.perf_counter() - asked - BEAT)
        work.append(time.thread_time() - used)
    await asyncio.gather(*tasks)
    p50, p99 = (float(each) for each in np.percentile(late, (50, 99)))
    return Late(len(late), p50, p99, max(late), calls, max(work))


def table(found: dict[str, Late]) -> Table:
    """The figures for people."""
    made = Table(
        title="How late a heartbeat is on the event loop",
        caption=f"Goal: no call keeps the loop longer than {amount(GOAL, 'seconds')}.",
        box=box.SIMPLE_HEAD,
    )
    for column in ("beside", "median", "p99", "worst", "loop's own work at most", "calls"):
        made.add_column(column, justify="left" if column == "beside" else "right")
    for name, each in found.items():
        times = (each.median, each.p99, each.worst, each.work)
        made.add_row(name, *(amount(max(0.0, value), "seconds") for value in times), f"{each.calls:,}")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop", description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=20_000, help="memories in the store")
    parser.add_argument("--seconds", type=float, default=2.0, help="beside each kind of call")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="loop-") as folder:
        found = measure(given.items, given.seconds, Path(folder))
    console = Console() if sys.stdout.isatty() else Console(width=120)
    on = machine()
    for name, text in on.items():
        console.print(f"[bold]{name}[/] {text}")
    console.print(table(found))
    if given.json is not None:
        figures = {name: each._asdict() for name, each in found.items()}
        given.json.write_text(json.dumps({"machine": on, "beside": figures}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
