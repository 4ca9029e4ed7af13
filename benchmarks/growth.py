"""``python -m benchmarks.growth``: what becomes slower as a store grows, is updated, and is emptied.

    python -m benchmarks.growth --items 1000 1000000 --json growth.json

Three questions, each with a goal: whether a call costs the same among a thousand memories and among a
million; whether one memory that is updated again and again slows its namespace; whether deleted
memories leave anything behind that a listing has to pass. Only EventStore is measured.

Exit code 1 when an answer was wrong; goals that are missed are only shown.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks import growing
from benchmarks.growing import WORK, Figures, Pair, Shape
from benchmarks.report import amount
from benchmarks.run import machine

T = TypeVar("T")

TIMES: Final = 2.0
"""How many times slower a call may become."""
FLAT: Final = tuple(
    f"{name}{WORK}"
    for name in ("get", "put", "list ten newest", "semantic, a user of 40", "list_namespaces of a user")
)
"""Held against the goal by their work: sizes are measured one after the other, and the machine does
other things meanwhile."""
AT_MOST: Final = {
    "open and first get": 2.0,
    "open and first semantic": 2.0,
    "peak memory of loading, bytes": 8.0 * 2**30,
    "peak memory of answering, bytes": 8.0 * 2**30,
}


@dataclass
class Growth:
    """Everything that was measured."""

    sizes: dict[int, Figures] = field(default_factory=dict)
    """By number of memories."""
    updates: dict[str, Pair] = field(default_factory=dict)
    deletions: dict[str, Pair] = field(default_factory=dict)


def measure(
    items: Sequence[int],
    *,
    updates: int = 50_000,
    deleted: int = 100_000,
    dims: int = 384,
    seconds: float = 2.0,
    directory: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Growth:
    """Measure growth; folders below ``directory`` are removed afterwards."""
    found = Growth()
    for count in sorted(items):
        with tempfile.TemporaryDirectory(prefix="growth-", dir=directory) as folder:
            shape = Shape(count, dims, Path(folder) / "store")
            figures = found.sizes[count] = {}
            for act in (growing.load, growing.first_get, growing.first_semantic):
                say(f"{count:,} memories: {act.__name__.replace('_', ' ')}")
                figures.update(_apart(act, shape))
            say(f"{count:,} memories: single calls")
            figures.update(_apart(growing.operations, shape, seconds))
    with tempfile.TemporaryDirectory(prefix="growth-", dir=directory) as folder:
        say(f"{updates:,} updates of one memory")
        found.updates = _apart(growing.hot_key, Shape(8_000, dims, Path(folder) / "hot"), updates, seconds)
        say(f"{deleted:,} deletions")
        found.deletions = _apart(growing.deleted, Shape(0, dims, Path(folder) / "deleted"), deleted, seconds)
    return found


def _apart(act: Callable[..., T], *arguments: Any) -> T:
    """In a process of its own, so that its memory and its first answers are its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(act, *arguments).result()


def missed(found: Growth) -> list[str]:
    """The goals that were not met."""
    lines = []
    counts = sorted(found.sizes)
    for name in FLAT if len(counts) > 1 else ():
        times = found.sizes[counts[-1]][name] / found.sizes[counts[0]][name]
        if times > TIMES:
            lines.append(f"{name}: {times:.2g} times slower among {counts[-1]:,} memories")
    for count, figures in found.sizes.items():
        lines += [
            f"{name}: {_shown(name, figures[name])} at {count:,} memories"
            for name, most in AT_MOST.items()
            if figures[name] > most
        ]
    for title, pairs in (("updates", found.updates), ("deletions", found.deletions)):
        lines += [
            f"{name}: {pair.after / pair.before:.2g} times slower after the {title}"
            for name, pair in pairs.items()
            if pair.after > TIMES * pair.before
        ]
    return lines


def tables(found: Growth, updates: int, deleted: int) -> list[Table]:
    """The figures for people."""
    counts = sorted(found.sizes)
    sizes = Table(title="By number of memories, users of 40", box=box.SIMPLE_HEAD)
    for column in ("", *(f"{count:,}" for count in counts), "times", "goal"):
        sizes.add_column(column, justify="right" if column else "left")
    for name in found.sizes[counts[0]]:
        values = [found.sizes[count][name] for count in counts]
        times = values[-1] / values[0] if values[0] else 0.0
        goal = (
            f"≤ {_shown(name, AT_MOST[name])}" if name in AT_MOST else f"≤ {TIMES:g}x" if name in FLAT else ""
        )
        sizes.add_row(
            name, *(_shown(name, value) for value in values), f"{times:.2f}x" if times else "", goal
        )
    made = [sizes]
    for title, first, last, pairs in (
        (f"One memory, {updates:,} updates", "before", "after", found.updates),
        (f"A namespace, {deleted:,} memories and namespaces deleted", "fresh", "used", found.deletions),
    ):
        table = Table(title=title, box=box.SIMPLE_HEAD)
        for column in ("", first, last, "times"):
            table.add_column(column, justify="right" if column else "left")
        for name, pair in pairs.items():
            times = pair.after / pair.before
            style = "bold red" if times > TIMES else ""
            table.add_row(
                name, _shown(name, pair.before), _shown(name, pair.after), Text(f"{times:.2f}x", style=style)
            )
        made.append(table)
    return made


def _shown(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return amount(value, "bytes")
    if name.endswith("share"):
        return f"{value:.1%}"
    return amount(value, "per second" if name.endswith("per second") else "seconds")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--items", type=int, nargs="+", default=[1_000, 100_000], help="sizes to measure at")
    parser.add_argument("--updates", type=int, default=50_000, help="of one memory")
    parser.add_argument("--deleted", type=int, default=100_000, help="memories, and as many namespaces")
    parser.add_argument("--dims", type=int, default=384, help="dimensions of the vectors")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each kind of call")
    parser.add_argument(
        "--directory", type=Path, help="where stores are made (default: the temporary folder)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    given = parser.parse_args(arguments)
    if min(given.items) < 400:
        parser.error("--items: at least 400, which is ten users")
    with Console(stderr=True).status("") as status:
        try:
            found = measure(
                given.items,
                updates=given.updates,
                deleted=given.deleted,
                dims=given.dims,
                seconds=given.seconds,
                directory=given.directory,
                say=status.update,
            )
        except growing.Wrong as wrong:
            print(f"wrong: {wrong}", file=sys.stderr)
            return 1
    console = Console() if sys.stdout.isatty() else Console(width=140)
    on = machine()
    for name, text in on.items():
        console.print(f"[bold]{name}[/] {text}")
    for table in tables(found, given.updates, given.deleted):
        console.print(table)
    for line in missed(found):
        console.print(f"[bold red]goal missed[/] {line}")
    if given.json is not None:
        given.json.write_text(json.dumps(as_json(found, on), indent=1) + "\n")
    return 0


def as_json(found: Growth, on: dict[str, str]) -> dict[str, Any]:
    """Everything that was measured, for programs. Times in seconds."""
    return {
        "machine": on,
        "sizes": {str(count): figures for count, figures in found.sizes.items()},
        "updates": {name: pair._asdict() for name, pair in found.updates.items()},
        "deletions": {name: pair._asdict() for name, pair in found.deletions.items()},
        "missed": missed(found),
    }


if __name__ == "__main__":
    sys.exit(main())
