"""``python -m benchmarks.checkpoints``: EventSaver next to the savers that ship with LangGraph, in one run.

    python -m benchmarks.checkpoints --turns 200 --json checkpoints.json

One agent with a tool talks for so many turns in one thread, a turn on each saver after the other. Then, in
the thread as it is, each saver in turn is asked for single calls: the newest checkpoint, a hundred of them,
and is given one more, and writes of a task. At last a process that has the thread open is killed, and a new
one asks for the newest checkpoint. All commits are synced; InMemorySaver keeps nothing.

Exit code 1 when the savers do not end with the same state.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks import servers
from benchmarks.report import amount
from benchmarks.run import machine
from eventstore.checkpoint import EventSaver

Saver = BaseCheckpointSaver[Any]
OURS: Final = "eventsaver"
TITLES: Final = {
    OURS: "EventSaver",
    "sqlite": "SqliteSaver",
    "postgres": "PostgresSaver",
    "memory": "InMemorySaver",
}
SIZE: Final = (
    "select sum(pg_total_relation_size(c.oid)) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " where n.nspname = 'public' and c.relkind = 'r'"
)
"""Tables with their indexes; the server's log of writes is not in it."""
MODULES: Final = {
    OURS: "projector.runtime",
    "sqlite": "langgraph.checkpoint.sqlite",
    "postgres": "langgraph.checkpoint.postgres",
}
DATABASE: Final = "benchmark_checkpoints"
CALLS: Final = {"get_tuple": 60, "list 100": 7, "put": 60, "put_writes": 100}
KILLS: Final = 5
HERE: Final = cast(RunnableConfig, {"configurable": {"thread_id": "thread", "checkpoint_ns": ""}})


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    step: int
    topic: str
    note: str


@dataclass
class Measured:
    """What one saver did. Times in seconds."""

    calls: dict[str, list[float]] = field(default_factory=dict)
    """Of each single call."""
    work: dict[str, list[float]] = field(default_factory=dict)
    """Processor time of this process, all threads, during each; a server's is not in it."""
    figures: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    """Why there is nothing, if there is nothing."""


class Texts:
    """Texts of an agent's turns: words, not noise, and the same for every saver."""

    def __init__(self, turn: int) -> None:
        self._chance = random.Random(turn)
        words = random.Random(0)
        self._words = [
            "".join(words.choices("abcdefghijklmnopqrstuvwxyz", k=2 + n % 8)) for n in range(3_000)
        ]

    def text(self, size: int) -> str:
        made = ""
        while len(made) < size:
            made += self._chance.choice(self._words) + " "
        return made[:size]

    def id(self) -> str:
        return f"call_{self._chance.getrandbits(48):012x}"


def agent(saver: Saver) -> Callable[[int], None]:
    """Plays one turn: the model calls a tool, reads what it gave, and answers. About 2.3 kB of text."""
    texts = Texts(0)

    def model(state: State) -> dict[str, Any]:
        last = state["messages"][-1]
        if isinstance(last, ToolMessage):
            return {"messages": [AIMessage(texts.text(700), id=texts.id())], "step": state.get("step", 0) + 1}
        call = {"name": "search", "args": {"q": texts.text(40)}, "id": texts.id()}
        return {
            "messages": [AIMessage(texts.text(300), tool_calls=[call], id=texts.id())],
            "note": texts.text(30),
        }

    def tool(state: State) -> dict[str, Any]:
        asked = cast(AIMessage, state["messages"][-1]).tool_calls[0]["id"]
        return {"messages": [ToolMessage(texts.text(1_000), tool_call_id=asked, id=texts.id())]}

    def after_model(state: State) -> str:
        return "tool" if getattr(state["messages"][-1], "tool_calls", None) else END

    graph = StateGraph(State)
    graph.add_node("model", model)
    graph.add_node("tool", tool)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", after_model, ["tool", END])
    graph.add_edge("tool", "model")
    compiled = graph.compile(checkpointer=saver)

    def play(turn: int) -> None:
        nonlocal texts
        texts = Texts(turn)
        given = {"messages": [HumanMessage(texts.text(200), id=texts.id())], "topic": texts.text(20)}
        compiled.invoke(cast(Any, given), HERE, durability="sync")

    return play


def opened(name: str, folder: Path) -> AbstractContextManager[Saver]:
    """A saver on its part of a folder, or on the database whose address stands there."""
    if name == OURS:
        return cast(AbstractContextManager[Saver], EventSaver.open(folder / name))
    if name == "memory":
        return contextlib.nullcontext(InMemorySaver())
    if name == "sqlite":
        module = importlib.import_module("langgraph.checkpoint.sqlite")
        made = module.SqliteSaver.from_conn_string(str(folder / "sqlite.db"))
    else:
        module = importlib.import_module("langgraph.checkpoint.postgres")
        made = module.PostgresSaver.from_conn_string((folder / "postgres").read_text())
    return cast(AbstractContextManager[Saver], made)


@contextlib.contextmanager
def postgres(given: str, folder: Path) -> Iterator[None]:
    """A database of its own on a server that is given, or (``auto``) started for the run."""
    connect = importlib.import_module("psycopg").connect
    with (
        servers.postgres(None if given == "auto" else given) as server,
        connect(server, autocommit=True) as connection,
    ):
        connection.execute(f"drop database if exists {DATABASE}")
        connection.execute(f"create database {DATABASE}")
        head, _, query = server.partition("?")
        address = head.rpartition("/")[0] + f"/{DATABASE}" + (f"?{query}" if query else "")
        (folder / "postgres").write_text(address)
        with opened("postgres", folder) as saver:
            cast(Any, saver).setup()
        yield
        connection.execute(f"drop database {DATABASE} with (force)")


def measure(
    turns: int,
    *,
    server: str | None = "auto",
    directory: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Measured]:
    """Measure all savers; ``server`` is a PostgreSQL's address, ``auto``, or ``None`` for none."""
    found = {name: Measured() for name in TITLES}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="checkpoints-", dir=directory)))
        if server is None:
            found["postgres"].reason = "not asked for"
        else:
            try:
                stack.enter_context(postgres(server, folder))
            except (servers.Unavailable, ImportError) as error:
                found["postgres"].reason = str(error)
        there = [name for name in TITLES if not found[name].reason]
        with ExitStack() as open_savers:
            savers = {name: open_savers.enter_context(opened(name, folder)) for name in there}
            _play(savers, found, turns, say)
            say("single calls")
            _call(savers, found)
        for name in there:
            found[name].figures |= _bytes(name, folder)
        for number in range(KILLS):
            say(f"killed and opened again, {number + 1} of {KILLS}")
            for name in there:
                if name != "memory":
                    whole, inside = _resumed(name, folder)
                    found[name].calls.setdefault("resume after a kill", []).append(whole)
                    found[name].calls.setdefault("of it, open and get_tuple", []).append(inside)
    return found


def _play(
    savers: dict[str, Saver], found: dict[str, Measured], turns: int, say: Callable[[str], None]
) -> None:
    agents = {name: agent(saver) for name, saver in savers.items()}
    spent = dict.fromkeys(savers, 0.0)
    worked = dict.fromkeys(savers, 0.0)
    names = list(savers)
    for turn in range(turns):
        say(f"turn {turn + 1} of {turns}")
        for name in names:
            began, before = time.perf_counter(), time.process_time()
            agents[name](turn)
            spent[name] += time.perf_counter() - began
            worked[name] += time.process_time() - before
        names = names[1:] + names[:1]
    for name, saver in savers.items():
        at = saver.get_tuple(HERE)
        assert at is not None
        found[name].figures = {
            "all turns": spent[name],
            "all turns, its work": worked[name],
            "messages": float(len(at.checkpoint["channel_values"]["messages"])),
        }


def _call(savers: dict[str, Saver], found: dict[str, Measured]) -> None:
    """Single calls in the thread as it is, saver after saver, so that noise falls on all alike."""
    acts: dict[str, Callable[[Saver, int], Callable[[], Any]]] = {
        "get_tuple": lambda saver, number: lambda: saver.get_tuple(HERE),
        "list 100": lambda saver, number: lambda: list(saver.list(HERE, limit=100)),
        "put": _one_more,
        "put_writes": _writes,
    }
    for act, times in CALLS.items():
        names = list(savers)
        for number in range(times):
            for name in names:
                call = acts[act](savers[name], number)
                began, before = time.perf_counter(), time.process_time()
                call()
                spent, worked = time.perf_counter() - began, time.process_time() - before
                if number:  # the first one warms up
                    found[name].calls.setdefault(act, []).append(spent)
                    found[name].work.setdefault(act, []).append(worked)
            names = names[1:] + names[:1]


def _one_more(saver: Saver, number: int) -> Callable[[], Any]:
    """Puts a checkpoint that continues the newest by one message, as a step of the agent does."""
    at = saver.get_tuple(HERE)
    assert at is not None
    made = cast(Any, {**at.checkpoint, "id": str(uuid6())})
    version = saver.get_next_version(cast(Any, made["channel_versions"]["messages"]), None)
    texts = Texts(10_000 + number)
    message = AIMessage(texts.text(700), id=texts.id())
    made["channel_values"] = {
        **made["channel_values"], "messages": [*made["channel_values"]["messages"], message]
    }  # fmt: skip
    made["channel_versions"] = {**made["channel_versions"], "messages": version}
    metadata = cast(Any, {"source": "loop", "step": 10_000 + number, "parents": {}})
    return lambda: saver.put(at.config, made, metadata, {"messages": version})


def _writes(saver: Saver, number: int) -> Callable[[], Any]:
    at = saver.get_tuple(HERE)
    assert at is not None
    texts = Texts(20_000 + number)
    message = AIMessage(texts.text(700), id=texts.id())
    return lambda: saver.put_writes(at.config, [("messages", [message]), ("step", number)], f"task-{number}")


def _bytes(name: str, folder: Path) -> dict[str, float]:
    if name == OURS:
        # Without what is allocated ahead in the last segment.
        log = sum(len(path.read_bytes().rstrip(b"\0")) for path in (folder / name).glob("checkpoints/*.seg"))
        view = sum(path.stat().st_size for path in (folder / name).rglob("*.sst"))
        return {"log, bytes": float(log), "view, bytes": float(view), "on disk, bytes": float(log + view)}
    if name == "sqlite":
        return {"on disk, bytes": float(sum(path.stat().st_size for path in folder.glob("sqlite.db*")))}
    if name == "postgres":
        with importlib.import_module("psycopg").connect((folder / "postgres").read_text()) as connection:
            (size,) = connection.execute(SIZE).fetchone()
            return {"on disk, bytes": float(size)}
    return {}


def _resumed(name: str, folder: Path) -> tuple[float, float]:
    """A process that has just put a checkpoint is killed; seconds until a new one has the newest."""
    line = [sys.executable, "-m", "benchmarks.checkpoints", "--child", name, str(folder)]
    root = Path(__file__).resolve().parent.parent
    with subprocess.Popen([*line, "stay"], stdout=subprocess.PIPE, text=True, cwd=root) as child:
        assert child.stdout is not None
        child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
    began = time.perf_counter()
    with subprocess.Popen([*line, "resume"], stdout=subprocess.PIPE, text=True, cwd=root) as child:
        assert child.stdout is not None
        inside = float(child.stdout.readline())
        return time.perf_counter() - began, inside


def child(name: str, folder: Path, what: str) -> None:
    """A process of :func:`_resumed`: prints how long opening and reading took, once all was imported."""
    importlib.import_module(MODULES[name])
    began = time.perf_counter()
    with opened(name, folder) as saver:
        assert saver.get_tuple(HERE) is not None
        print(time.perf_counter() - began, flush=True)
        if what == "stay":
            _one_more(saver, 0)()
            time.sleep(60)


def wrong(found: dict[str, Measured]) -> list[str]:
    """Savers that did not end where the others did."""
    counts = {name: each.figures.get("messages") for name, each in found.items() if not each.reason}
    return [name for name, count in counts.items() if count != counts[OURS]]


def table(found: dict[str, Measured], turns: int) -> Table:
    """The figures for people."""
    made = Table(title=f"{turns} turns of an agent in one thread", box=box.SIMPLE_HEAD)
    names = [name for name in found if not found[name].reason]
    made.add_column("")
    for name in names:
        made.add_column(TITLES[name], justify="right")
    for act in (*CALLS, "resume after a kill", "of it, open and get_tuple"):
        made.add_row(f"{act}, p50 / p99", *(_pair(found[name].calls.get(act)) for name in names))
        if act in CALLS:
            made.add_row(f"{act}, its work", *(_middle(found[name].work.get(act)) for name in names))
    for figure in ("log, bytes", "view, bytes", "on disk, bytes", "all turns", "all turns, its work"):
        unit: Any = "bytes" if figure.endswith("bytes") else "seconds"
        made.add_row(
            figure.removesuffix(", bytes"),
            *(
                amount(found[name].figures[figure], unit) if figure in found[name].figures else ""
                for name in names
            ),
        )
    return made


def _pair(times: list[float] | None) -> str:
    if not times:
        return ""
    ordered = sorted(times)
    last = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"{amount(statistics.median(ordered), 'seconds')} / {amount(last, 'seconds')}"


def _middle(times: list[float] | None) -> str:
    return amount(statistics.median(times), "seconds") if times else ""


def as_json(found: dict[str, Measured], on: dict[str, str], turns: int) -> dict[str, Any]:
    """Everything that was measured, for programs. Times in seconds."""
    return {
        "machine": on,
        "turns": turns,
        "savers": {
            name: {
                "reason": each.reason,
                "p50": {act: statistics.median(times) for act, times in each.calls.items()},
                "p99": {act: sorted(times)[int(len(times) * 0.99)] for act, times in each.calls.items()},
                "work": {act: statistics.median(times) for act, times in each.work.items()},
                **each.figures,
            }
            for name, each in found.items()
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpoints", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--turns", type=int, default=200, help="of the agent (default: 200)")
    parser.add_argument(
        "--postgres", metavar="DSN", default="auto", help="a PostgreSQL to use, or none; else one is started"
    )
    parser.add_argument("--directory", type=Path, help="where data is kept meanwhile")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        child(given.child[0], Path(given.child[1]), given.child[2])
        return 0
    if given.turns < 1:
        parser.error("--turns: at least 1")
    with Console(stderr=True).status("") as status:
        server = None if given.postgres == "none" else given.postgres
        found = measure(given.turns, server=server, directory=given.directory, say=status.update)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    on = machine()
    for name, text in on.items():
        console.print(f"[bold]{name}[/] {text}")
    console.print(table(found, given.turns))
    for name, each in found.items():
        if each.reason:
            console.print(f"[dim]without {TITLES[name]}: {each.reason}[/]")
    if given.json is not None:
        given.json.write_text(json.dumps(as_json(found, on, given.turns), indent=1) + "\n")
    for name in wrong(found):
        console.print(f"[bold red]wrong[/] {TITLES[name]} ended with another state")
    return 1 if wrong(found) else 0


if __name__ == "__main__":
    sys.exit(main())
