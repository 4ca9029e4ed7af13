"""What other savers hold moves over whole: SQLite, PostgreSQL, memory; and graphs go on with it."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run as run_process
from typing import Annotated, Any, TypedDict, cast

import psycopg
import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from eventstore import EventStore
from eventstore.checkpoint import EventSaver, FolderKeys
from eventstore.errors import InvalidConfig, InvalidInput, InvalidType, NoSuchMoment
from projector.transfer import migrate_threads, open_saver, savers
from tests.checkpoint_ops.kit import agent, config, talk
from tests.scenarios.kit import ROOT

Saver = BaseCheckpointSaver[Any]
KINDS = ("memory", "sqlite", "postgres")
HERE = cast(Any, {"configurable": {"thread_id": "t", "checkpoint_ns": ""}})
TABLES = "checkpoints, checkpoint_blobs, checkpoint_writes, checkpoint_migrations"


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Saver]:
    """An empty saver of each kind."""
    with opened(request, tmp_path, request.param) as saver:
        yield saver


@contextmanager
def opened(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> Iterator[Saver]:
    if kind == "memory":
        yield InMemorySaver()
    elif kind == "sqlite":
        with SqliteSaver.from_conn_string(str(tmp_path / "source.db")) as saver:
            yield saver
    else:
        with (
            empty_postgres(request.getfixturevalue("postgres")) as address,
            PostgresSaver.from_conn_string(address) as saver,
        ):
            yield saver


@contextmanager
def empty_postgres(address: str) -> Iterator[str]:
    with psycopg.connect(address, autocommit=True) as database:
        database.execute(f"drop table if exists {TABLES} cascade")
        with PostgresSaver.from_conn_string(address) as saver:
            saver.setup()
        yield address
        database.execute(f"drop table if exists {TABLES} cascade")


def told(saver: Saver, thread: str | None = None) -> list[dict[str, Any]]:
    """All that ``list`` says, by thread, namespace and id."""
    found = [each._asdict() for each in saver.list(None if thread is None else config(thread))]
    return sorted(found, key=lambda each: sorted(each["config"]["configurable"].items()))


def fill(source: Saver) -> None:
    """Threads of each kind: finished, waiting, forked, with a failed task, and with subgraphs."""
    graph = agent(source)
    talk(graph, "done", ["hello", "again"])
    talk(graph, "waiting", ["question"], approve=False)
    talk(graph, "a thread: ünïcödé", ["hello"])
    talk(graph, "forked", ["hello"])
    past = [state for state in graph.get_state_history(config("forked")) if state.next == ("worker",) * 3]
    graph.update_state(past[0].config, {"seen": ["by hand"]}, as_node="answer")


def test_all_of_a_saver_comes_over(source: Saver, tmp_path: Path) -> None:
    fill(source)
    before = told(source)
    with EventSaver.open(tmp_path / "place") as target:
        done = migrate_threads(source, target)
        assert told(target) == before
        assert (done.threads, done.read, done.written) == (4, len(before), len(before))
        assert (done.present, done.conflicts) == (0, 0)
        for thread in ("done", "waiting", "forked"):
            assert told(target, thread) == told(source, thread)
    assert told(source) == before
    with EventSaver.open(tmp_path / "place") as reopened:
        assert told(reopened) == before


def test_it_can_be_repeated_and_brings_what_is_new(source: Saver, tmp_path: Path) -> None:
    fill(source)
    with EventSaver.open(tmp_path / "place") as target:
        first = migrate_threads(source, target)
        again = migrate_threads(source, target)
        assert (again.written, again.present) == (0, first.read)
        agent(source).invoke(Command(resume="yes"), config("waiting"))
        more = migrate_threads(source, target)
        assert more.conflicts == 0
        # The checkpoint that waited has new writes, and there are new ones behind it.
        assert more.written == more.read - first.read + 1
        assert told(target) == told(source)


def test_what_the_target_did_since_is_not_undone(source: Saver, tmp_path: Path) -> None:
    fill(source)
    with EventSaver.open(tmp_path / "place") as target:
        migrate_threads(source, target)
        graph = agent(target)
        graph.invoke(Command(resume="yes"), config("waiting"))
        talk(graph, "done", ["and on"])
        before = told(target)
        again = migrate_threads(source, target)
        assert (again.written, again.conflicts) == (0, 0)
        assert told(target) == before


def test_graphs_go_on_with_it(source: Saver, tmp_path: Path) -> None:
    """The same turns on both sides give the same states, from an interrupt and in a finished thread."""
    fill(source)
    with EventSaver.open(tmp_path / "place") as target:
        migrate_threads(source, target)
        states = []
        for saver in (source, target):
            graph = agent(saver)
            assert graph.get_state(config("waiting")).interrupts[0].value == "go on?"
            graph.invoke(Command(resume="yes"), config("waiting"))
            talk(graph, "done", ["and on"])
            past = next(each for each in graph.get_state_history(config("forked")) if each.next == ("ask",))
            graph.invoke(None, past.config)
            states.append(
                [
                    [(m.type, m.content) for m in graph.get_state(config(thread)).values["messages"]]
                    + graph.get_state(config(thread)).values["seen"]
                    for thread in ("waiting", "done", "forked")
                ]
            )
        assert states[0] == states[1]


def test_only_some_threads(source: Saver, tmp_path: Path) -> None:
    fill(source)
    with EventSaver.open(tmp_path / "place") as target:
        done = migrate_threads(source, target, threads=["done", "nobody"])
        assert done.threads == 1
        assert told(target) == told(source, "done")


def test_pages_of_a_source_whose_threads_share_ids(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savers, "PAGE", 3)
    with opened(request, tmp_path, "postgres") as source:
        talk(agent(source), "first", ["hello"])
        for copy in ("second", "third", "fourth", "fifth"):
            copied(source, "first", copy)
        with EventSaver.open(tmp_path / "place") as target:
            assert migrate_threads(source, target).threads == 5
            assert told(target) == told(source)


def put(saver: Saver, values: dict[str, Any], metadata: dict[str, Any] | None = None) -> Any:
    """The first checkpoint of thread t, by hand."""
    made = {"v": 4, "id": "1", "ts": "t", "channel_values": values, "versions_seen": {}}
    made["channel_versions"] = versions = dict.fromkeys(values, 7)
    return saver.put(HERE, cast(Any, made), cast(Any, metadata or {"step": 0}), cast(Any, versions))


def copied(saver: Saver, thread: str, to: str) -> None:
    for found in sorted(saver.list(config(thread)), key=lambda each: each.checkpoint["id"]):
        named = found.config["configurable"]
        parent = None if found.parent_config is None else found.parent_config["configurable"]["checkpoint_id"]
        where = {"thread_id": to, "checkpoint_ns": named["checkpoint_ns"], "checkpoint_id": parent}
        versions = found.checkpoint["channel_versions"]
        at = saver.put(cast(Any, {"configurable": where}), found.checkpoint, found.metadata, versions)
        for task in {task for task, _, _ in found.pending_writes or ()}:
            writes = [(channel, value) for name, channel, value in found.pending_writes or () if name == task]
            saver.put_writes(at, writes, task)


def test_order_of_tasks_is_kept_where_their_ids_do_not_give_it(tmp_path: Path) -> None:
    """Only the path orders the writes of a step, and no saver tells it."""
    source = InMemorySaver()
    at = put(source, {})
    for number, task in enumerate(("zz", "mm", "aa")):
        source.put_writes(at, [("x", number), ("y", number), ("__interrupt__", number)], task, f"~{number}")
    with EventSaver.open(tmp_path / "place") as target:
        migrate_threads(source, target)
        assert by_task(target.get_tuple(config("t"))) == by_task(source.get_tuple(config("t")))
        assert list(by_task(target.get_tuple(config("t")))) == ["zz", "mm", "aa"]
        assert migrate_threads(source, target).present == 1


def test_a_special_write_that_is_newer_in_the_target_stays(tmp_path: Path) -> None:
    """Of interrupts the last counts: the target may be at the second question by now."""
    source = InMemorySaver()
    at = put(source, {})
    source.put_writes(at, [("__interrupt__", "first")], "task")
    with EventSaver.open(tmp_path / "place") as target:
        migrate_threads(source, target)
        target.put_writes(at, [("__interrupt__", "second")], "task")
        source.put_writes(at, [("__resume__", ["yes"])], "task")
        assert migrate_threads(source, target).written == 1
        assert by_task(target.get_tuple(HERE)) == {
            "task": [("__interrupt__", "second"), ("__resume__", ["yes"])]
        }


def by_task(found: CheckpointTuple | None) -> dict[str, list[tuple[str, Any]]]:
    assert found is not None
    made: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in found.pending_writes or ():
        made.setdefault(task, []).append((channel, value))
    return {task: sorted(writes) for task, writes in made.items()}


def joined(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*(state or []), *(text for write in writes for text in write)]


class Texts(TypedDict):
    texts: Annotated[list[str], DeltaChannel(joined)]


def delta_graph(saver: Saver) -> Any:
    graph = StateGraph(Texts)
    for name in ("zulu", "alpha", "mike"):
        graph.add_node(name, lambda _, name=name: {"texts": [name]})
        graph.add_edge(START, name)
    return graph.compile(checkpointer=saver)


def test_delta_channels_are_rebuilt_the_same(source: Saver, tmp_path: Path) -> None:
    graph = delta_graph(source)
    for number in range(4):
        graph.invoke({"texts": [f"turn {number}"]}, config("delta"))
    with EventSaver.open(tmp_path / "place") as target:
        migrate_threads(source, target)
        theirs, ours = delta_graph(source), delta_graph(target)
        for state in theirs.get_state_history(config("delta")):
            assert ours.get_state(state.config).values == state.values
        for each in (theirs, ours):
            each.invoke({"texts": ["more"]}, config("delta"))
        assert ours.get_state(config("delta")).values == theirs.get_state(config("delta")).values


def test_pending_sends_of_an_old_thread(
    request: pytest.FixtureRequest, postgres: str, tmp_path: Path
) -> None:
    """Before format 4 sends were writes of the parent; PostgresSaver gives them as a channel."""
    with opened(request, tmp_path, "postgres") as source:
        graph = agent(source)
        graph.invoke({"messages": [("user", "hello")]}, config("old"), interrupt_before=["worker"])
        at = source.get_tuple(config("old"))
        assert at is not None
        sends = at.checkpoint["channel_values"]["__pregel_tasks"]
        with psycopg.connect(postgres, autocommit=True) as database:
            database.execute(
                "update checkpoints set checkpoint = jsonb_set(checkpoint, '{v}', '3')"
                " #- '{channel_versions,__pregel_tasks}' where checkpoint_id = %s",
                (at.checkpoint["id"],),
            )
        old = source.get_tuple(config("old"))
        assert old is not None and old.checkpoint["v"] == 3
        assert old.checkpoint["channel_values"]["__pregel_tasks"] == sends
        with EventSaver.open(tmp_path / "place") as target:
            migrate_threads(source, target)
            assert told(target) == told(source)
            ours = agent(target)
            assert ours.get_state(config("old")).next == ("worker",) * 3
            ours.invoke(None, config("old"))
            assert ours.get_state(config("old")).next == ("ask",)


@dataclasses.dataclass
class Own:
    """A class of the user's."""

    text: str


def test_classes_of_the_user_come_over_as_bytes(tmp_path: Path) -> None:
    """The target loads them only if it is told to; moving them over loads none of its own."""
    source = InMemorySaver()
    put(source, {"own": Own("x" * 700)})
    with EventSaver.open(tmp_path / "place") as target:
        assert migrate_threads(source, target).written == 1
        assert migrate_threads(source, target).present == 1
    with EventSaver.open(tmp_path / "place", allowed_types=[Own]) as target:
        assert told(target) == told(source)


def test_into_sealed_threads(tmp_path: Path) -> None:
    source = InMemorySaver()
    fill(source)
    keys = FolderKeys(tmp_path / "keys", b"k" * 32)
    with EventSaver.open(tmp_path / "place", keys=keys) as target:
        migrate_threads(source, target)
        assert told(target) == told(source)
        assert migrate_threads(source, target).written == 0
        assert all(thread.sealed for thread in target.threads())
    assert not any(b"answer to" in path.read_bytes() for path in (tmp_path / "place").rglob("*.seg"))


def test_what_memories_a_checkpoint_knew_is_not_made_up(tmp_path: Path) -> None:
    source = InMemorySaver()
    fill(source)
    with EventStore.open(tmp_path / "place") as store, EventSaver.from_store(store) as target:
        store.put(("a",), "k", {"n": 1})
        migrate_threads(source, target)
        with pytest.raises(NoSuchMoment):
            store.as_of(config("done"))
        talk(agent(target), "done", ["here"])
        assert store.as_of(config("done")).get(("a",), "k") is not None


def test_another_checkpoint_under_the_same_id_is_left_alone(tmp_path: Path) -> None:
    source, other = InMemorySaver(), InMemorySaver()
    put(source, {"a": "x"})
    put(other, {"a": "y"})
    with EventSaver.open(tmp_path / "place") as target:
        migrate_threads(source, target)
        assert migrate_threads(other, target).conflicts == 1
        assert told(target) == told(source)


def test_a_serializer_that_loses_something_is_noticed(tmp_path: Path) -> None:
    class Forgetting(type(InMemorySaver().serde)):  # type: ignore[misc]  # whatever class it is
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            kept = {k: v for k, v in obj.items() if k != "source"} if isinstance(obj, dict) else obj
            self.calls = getattr(self, "calls", 0) + 1
            return super().dumps_typed(kept if self.calls < 4 else obj)

    source = InMemorySaver()
    put(source, {"a": 1}, {"source": "input", "step": 0})
    with (
        EventSaver.open(tmp_path / "place", serde=Forgetting()) as target,
        pytest.raises(InvalidInput, match="its metadata differs"),
    ):
        migrate_threads(source, target)


# ------------------------------------------------------------------ the command


def command(*arguments: object) -> Any:
    script = "from projector.cli import main; main()"
    line = [sys.executable, "-c", script, "migrate", *map(str, arguments)]
    return run_process(line, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_from_a_sqlite_file_and_from_a_factory(tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "source.db")) as source:
        fill(source)
        before = told(source)
    done = command(f"sqlite:{tmp_path / 'source.db'}", tmp_path / "place", "--checkpoints", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written"] == len(before)
    (tmp_path / "given.py").write_text(
        "from langgraph.checkpoint.sqlite import SqliteSaver\n"
        f"def saver(): return SqliteSaver.from_conn_string({str(tmp_path / 'source.db')!r})\n"
    )
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from projector.cli import main; main()"
    line = [sys.executable, "-c", script, "migrate", "given:saver", str(tmp_path / "place"), "--checkpoints"]
    again = run_process([*line, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert json.loads(again.stdout)["present"] == len(before), again.stderr
    some = command(
        f"sqlite:{tmp_path / 'source.db'}", tmp_path / "one", "--checkpoints", "--thread", "done", "--json"
    )
    assert json.loads(some.stdout)["threads"] == 1
    with EventSaver.open(tmp_path / "place") as target:
        assert told(target) == before


def test_from_postgres_after_a_kill(postgres: str, tmp_path: Path) -> None:
    """Killed in the middle and started again, it brings everything, once."""
    with empty_postgres(postgres) as address:
        with PostgresSaver.from_conn_string(address) as source:
            for number in range(6):
                talk(agent(source), f"thread {number}", ["hello", "again"])
            before = told(source)
        script = (
            "import os, signal, sys\n"
            "from eventstore.checkpoint.engine import Engine\n"
            "write, calls = Engine.write, []\n"
            "def counted(*given):\n"
            "    calls.append(write(*given))\n"
            "    if len(calls) == 70: os.kill(os.getpid(), signal.SIGKILL)\n"
            "Engine.write = counted\n"
            "from projector.cli import main\n"
            f"sys.argv = ['x', 'migrate', {address!r}, {str(tmp_path / 'place')!r}, '--checkpoints']\n"
            "main()\n"
        )
        killed = run_process([sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=120)
        assert killed.returncode == -signal.SIGKILL
        with EventSaver.open(tmp_path / "place") as target:
            assert 0 < len(told(target)) < len(before)
        done = command(address, tmp_path / "place", "--checkpoints", "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["present"] > 0 and report["present"] + report["written"] == len(before)
        with EventSaver.open(tmp_path / "place") as target:
            assert told(target) == before


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("nothing", InvalidConfig, "names no store or saver"),
        ("sqlite:/nowhere/x.db", InvalidConfig, "no SQLite file"),
        ("postgresql://nobody:secret@127.0.0.1:1/x", InvalidConfig, "cannot be read"),
        ("collections:OrderedDict", InvalidType, "no BaseCheckpointSaver"),
        ("collections:Nothing", InvalidConfig, "no Nothing"),
    ],
)
def test_a_source_that_is_none_is_named(name: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says) as raised, open_saver(name):
        pass
    assert "secret" not in str(raised.value)


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    for arguments in (("--checkpoints", "--ttl", "5"), ("--thread", "t")):
        done = command("sqlite:none.db", tmp_path / "place", *arguments)
        assert done.returncode == 2
        assert "--checkpoints" in done.stderr or "--thread" in done.stderr
    assert not (tmp_path / "place").exists()
