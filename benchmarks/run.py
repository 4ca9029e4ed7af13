"""``python -m benchmarks.run``: EventStore beside the stores a user would pick instead, in one run.

    python -m benchmarks.run --items 1000 10000 100000 --json figures.json

Every store has a process of its own. Cell by cell the stores take turns, in an order that rotates,
so that ratios hold on a busy machine. ``docs/benchmarks.md`` says how to read the tables.

Exit code 1 when EventStore gave a wrong answer or none; goals that are missed are only shown.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import servers
from benchmarks.cells import CELLS
from benchmarks.figures import Results
from benchmarks.peers import CONTENDERS, run_name
from benchmarks.race import Limits, Race
from benchmarks.report import as_json, growth_table, main_table, markdown
from benchmarks.workload import Spec

OURS, *PEERS = CONTENDERS
PACKAGES = (
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "rocksdict",
    "faiss-cpu",
    "numpy",
)


def run(
    items: Sequence[int],
    *,
    peers: Sequence[str] = tuple(PEERS),
    dims: int = 384,
    seed: int = 1,
    limits: Limits | None = None,
    directory: Path | None = None,
    console: Console | None = None,
    given: Mapping[str, str] | None = None,
) -> list[Results]:
    """Measure at each number of items; folders below ``directory`` are removed afterwards.

    ``given`` are servers that are there already, by the variable that names them.
    """
    said = console or Console(stderr=True)
    several = []
    with contextlib.ExitStack() as stack, said.status("starting servers") as status:
        missing = _start_servers(stack, peers, given or {})
        for count in sorted(items):
            with tempfile.TemporaryDirectory(prefix="benchmark-", dir=directory) as folder:
                spec, asked = Spec(count, dims, seed), limits or Limits()
                race = Race(spec, [OURS, *peers], asked, Path(folder), status.update, missing)
                try:
                    several.append(race.run())
                finally:
                    if servers.POSTGRES in os.environ:
                        servers.drop_databases(os.environ[servers.POSTGRES], run_name(Path(folder)))
    return several


def _start_servers(
    stack: contextlib.ExitStack, peers: Sequence[str], given: Mapping[str, str]
) -> dict[str, str]:
    """Have the servers that the peers need; of the peers whose server cannot be had, the reasons."""
    starts = {servers.POSTGRES: servers.postgres, servers.KAFKA: servers.kafka}
    reasons: dict[str, str | None] = {}
    missing = {}
    for name in peers:
        needed = CONTENDERS[name].server
        if needed is None:
            continue
        if needed not in reasons:
            start = functools.partial(starts[needed], given.get(needed))
            reasons[needed] = servers.enter(stack, needed, start)
        if (reason := reasons[needed]) is not None:
            missing[name] = reason
    return missing


def wrong(several: Sequence[Results]) -> list[str]:
    """Cells in which EventStore gave a wrong answer, or no answer."""
    found = []
    for results in several:
        for cell in CELLS:
            figure = results.figures[cell.name][OURS]
            if figure.middle is None:
                found.append(f"{results.spec.items:,} items, {cell.title}: {figure.reason}")
            elif figure.right is not None and figure.right < 1:
                found.append(f"{results.spec.items:,} items, {cell.title}: {figure.right:.1%} right")
    return found


def machine() -> dict[str, str]:
    """What the figures were taken on."""
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "processor": f"{model}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, nargs="+", default=[1_000, 10_000], help="sizes to measure at")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, help="stores to compare with")
    parser.add_argument("--postgres", metavar="DSN", help="a PostgreSQL to use; else one is started")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a broker to use; else one is started")
    parser.add_argument("--dims", type=int, default=384, help="dimensions of the vectors")
    parser.add_argument("--seed", type=int, default=1, help="of the workload")
    parser.add_argument("--budget", type=float, default=3.0, help="seconds for one cell of one store")
    parser.add_argument("--turns", type=int, default=3, help="into which the budget is divided")
    parser.add_argument("--load-budget", type=float, default=300.0, help="seconds in which a store must load")
    parser.add_argument(
        "--directory", type=Path, help="where stores are made (default: the temporary folder)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE")
    given = parser.parse_args(arguments)
    if min(given.items) < 200:
        parser.error("--items: at least 200, or the users are too small to ask anything of")
    limits = Limits(given.budget, given.turns, given.load_budget)
    several = run(
        given.items,
        peers=given.peers,
        dims=given.dims,
        seed=given.seed,
        limits=limits,
        directory=given.directory,
        given={
            name: address
            for name, address in ((servers.POSTGRES, given.postgres), (servers.KAFKA, given.kafka))
            if address is not None
        },
    )
    console = Console() if sys.stdout.isatty() else Console(width=110 + 32 * len(given.peers))
    on = machine()
    for name, text in on.items():
        console.print(f"[bold]{name}[/] {text}")
    tables = [main_table(results) for results in several]
    if len(several) > 1:
        tables.append(growth_table(several))
    for table in tables:
        console.print(table)
    if given.markdown is not None:
        given.markdown.write_text("\n".join(map(markdown, tables)))
    if given.json is not None:
        given.json.write_text(json.dumps(as_json(several, on), indent=1) + "\n")
    for line in (failed := wrong(several)):
        console.print(f"[bold red]wrong[/] {line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
