"""``store.as_of(config)``: the memories as they were between the step that ended and the one behind it."""

from __future__ import annotations

import asyncio
import operator
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Command, interrupt
from typing_extensions import TypedDict

from eventstore import EventStore
from eventstore.checkpoint import EventSaver
from eventstore.errors import NoSuchMoment
from tests.checkpoint.kit import config

ALL = 10_000
Moment = tuple[int, int, int]
"""Number of a run, step of its graph, and step of a graph in that."""


class State(TypedDict, total=False):
    trail: Annotated[list[str], operator.add]
    bulk: Annotated[str, lambda _, new: new]
    answer: str


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    with EventStore.open(tmp_path / "s") as opened:
        yield opened


def _remember(store: BaseStore, given: RunnableConfig, name: str, outer: int | None = None) -> None:
    """What a node writes says in which step of which run it was written."""
    named = given["configurable"]
    step = given["metadata"]["langgraph_step"]
    moment = (named["run"], step, 0) if outer is None else (named["run"], outer, step)
    for part in ("first", "last"):
        key = f"{name} {part} " + " ".join(map(str, moment))
        store.put(("m", named["thread_id"]), key, {"moment": list(moment)})


def node(name: str) -> Any:
    def act(state: State, config: RunnableConfig, *, store: BaseStore) -> State:
        _remember(store, config, name)
        return {"trail": [name], "bulk": name * 20_000}

    return act


def looping(state: State) -> str:
    return "a" if state["trail"].count("d") % 2 else END


def graph(saver: EventSaver, store: EventStore) -> Any:
    """Steps of one node and of two, twice over; its states are slow to be saved."""
    made = StateGraph(State)
    for name in "abcd":
        made.add_node(name, node(name))
    made.add_edge(START, "a")
    made.add_edge("a", "b")
    made.add_edge("a", "c")
    made.add_edge(["b", "c"], "d")
    made.add_conditional_edges("d", looping, ["a", END])
    return made.compile(checkpointer=saver, store=store)


def remembered(store: Any, thread: str) -> dict[Moment, int]:
    """How many memories of each moment there are."""
    return Counter(tuple(item.value["moment"]) for item in store.search(("m", thread), limit=ALL))


def up_to(until: Moment, memories: dict[Moment, int]) -> dict[Moment, int]:
    return {moment: count for moment, count in memories.items() if moment <= until}


def check(saver: EventSaver, store: EventStore, thread: str) -> int:
    """Of every checkpoint of a thread's graph: what was remembered up to its step, and nothing else."""
    all_of_them = remembered(store, thread)
    number = 0
    for found in saver.list(config(thread, "")):
        meta: Any = found.metadata
        until = (meta["run"], meta["step"], ALL)
        past = store.as_of(found.config)
        assert remembered(past, thread) == up_to(until, all_of_them), meta
        number += 1
    return number


def run_config(thread: str, run: int, id: str | None = None) -> Any:
    given: Any = config(thread, "", id)
    given["configurable"]["run"] = run
    del given["configurable"]["checkpoint_ns"]
    return given


@pytest.mark.parametrize("face", ["invoke", "ainvoke"])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_checkpoint_of_some_runs(store: EventStore, durability: str, face: str) -> None:
    saver = EventSaver.from_store(store)
    made = graph(saver, store)
    for run in range(3):
        given = run_config("t", run)
        if face == "invoke":
            made.invoke({"trail": []}, given, durability=durability)
        else:
            asyncio.run(made.ainvoke({"trail": []}, given, durability=durability))
    assert check(saver, store, "t") == (3 if durability == "exit" else len(remembered(store, "t")) + 6)


def test_a_fork_and_an_update_are_of_their_own_time(store: EventStore) -> None:
    """A fork goes back in the thread, not in what is remembered."""
    saver = EventSaver.from_store(store)
    made = graph(saver, store)
    made.invoke({"trail": []}, run_config("t", 0))
    (middle,) = (each for each in saver.list(config("t")) if each.metadata["step"] == 2)
    made.invoke(None, run_config("t", 1, middle.checkpoint["id"]))
    changed = made.update_state(run_config("t", 2, middle.checkpoint["id"]), {"answer": "x"}, as_node="a")
    past = remembered(store.as_of(changed), "t")
    assert past == remembered(store, "t")
    made.invoke(None, {"configurable": {**changed["configurable"], "run": 3}})
    assert past == remembered(store.as_of(changed), "t")
    assert past.keys() < remembered(store, "t").keys()
    assert check(saver, store, "t") > 10


def test_a_thread_that_waits_for_an_answer(store: EventStore) -> None:
    """What a node wrote before it asked came behind the checkpoint it runs from."""

    def ask(state: State, config: RunnableConfig, *, store: BaseStore) -> State:
        _remember(store, config, "before")
        answer = interrupt("?")
        _remember(store, config, "after")
        return {"answer": answer, "trail": ["ask"]}

    saver = EventSaver.from_store(store)
    made = StateGraph(State)
    made.add_node("a", node("a"))
    made.add_node("ask", ask)
    made.add_node("d", node("d"))
    made.add_edge(START, "a")
    made.add_edge("a", "ask")
    made.add_edge("ask", "d")
    compiled = made.compile(checkpointer=saver, store=store)
    compiled.invoke({"trail": []}, run_config("t", 0))
    waiting = compiled.get_state(run_config("t", 0)).config
    assert remembered(store.as_of(waiting), "t") == {(0, 1, 0): 2}
    assert remembered(store, "t") == {(0, 1, 0): 2, (0, 2, 0): 2}
    compiled.invoke(Command(resume="yes"), run_config("t", 0))
    assert remembered(store.as_of(waiting), "t") == {(0, 1, 0): 2}
    assert remembered(store, "t") == {(0, 1, 0): 2, (0, 2, 0): 4, (0, 3, 0): 2}
    assert check(saver, store, "t") == 5


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_checkpoints_of_a_graph_in_a_graph(store: EventStore, durability: str) -> None:
    def inner_node(name: str) -> Any:
        def act(state: State, config: RunnableConfig, *, store: BaseStore) -> State:
            outer = config["metadata"]["outer"]
            _remember(store, config, name, outer)
            return {"trail": [name], "bulk": name * 9_000}

        return act

    inner = StateGraph(State)
    inner.add_sequence([("x", inner_node("x")), ("y", inner_node("y"))])
    inner.add_edge(START, "x")
    compiled_inner = inner.compile(checkpointer=True)

    def call(state: State, config: RunnableConfig) -> State:
        metadata = {**config["metadata"], "outer": config["metadata"]["langgraph_step"]}
        compiled_inner.invoke({"trail": []}, {**config, "metadata": metadata})
        return {"trail": ["inner"]}

    made = StateGraph(State)
    made.add_sequence([("a", node("a")), ("inner", call), ("d", node("d"))])
    made.add_edge(START, "a")
    saver = EventSaver.from_store(store)
    compiled = made.compile(checkpointer=saver, store=store)
    for run in range(2):
        compiled.invoke({"trail": []}, run_config("t", run), durability=durability)
    check(saver, store, "t")
    every = remembered(store, "t")
    own = [each for each in saver.list({"configurable": {"thread_id": "t"}}) if _namespace(each)]
    assert len(own) >= 8
    for found in own:
        meta: Any = found.metadata
        if meta["source"] == "loop":
            until = (meta["run"], meta["outer"], meta["step"])
            assert remembered(store.as_of(found.config), "t") == up_to(until, every), meta


def _namespace(found: Any) -> str:
    return str(found.config["configurable"]["checkpoint_ns"])


def test_two_threads_side_by_side(store: EventStore) -> None:
    saver = EventSaver.from_store(store)
    made = graph(saver, store)

    def talk(thread: str) -> None:
        for run in range(3):
            made.invoke({"trail": []}, run_config(thread, run))

    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(talk, thread) for thread in ("t", "u")]:
            each.result(60)
    for thread in ("t", "u"):
        assert check(saver, store, thread) > 20


def test_a_moment_of_a_checkpoint_that_is_gone(store: EventStore) -> None:
    saver = EventSaver.from_store(store)
    made = graph(saver, store)
    for thread in ("t", "u"):
        made.invoke({"trail": []}, run_config(thread, 0))
    newest, *_, oldest = [each.config for each in saver.list(config("t"))]
    saver.prune(["t"])
    saver.delete_thread("u")
    for gone in (oldest, config("u"), config("none"), config("t", "", "none")):
        with pytest.raises(NoSuchMoment):
            store.as_of(gone)
    assert remembered(store.as_of(newest), "t") == remembered(store.as_of(config("t")), "t")
    saver.copy_thread("t", "copy")
    assert remembered(store.as_of(config("copy")), "t") == remembered(store.as_of(newest), "t")


def test_a_moment_is_the_same_for_whoever_opens_later(tmp_path: Path) -> None:
    with EventStore.open(tmp_path / "s") as store:
        saver = EventSaver.from_store(store)
        graph(saver, store).invoke({"trail": []}, run_config("t", 0))
    with EventStore.open(tmp_path / "s") as store:
        store.put(("m", "t"), "later", {"moment": [9, 9, 9]})
        store.delete(("m", "t"), "a first 0 1 0")
        with EventSaver.from_store(store) as saver:
            every = {(0, step, 0): 4 if step in (2, 5) else 2 for step in range(1, 7)}
            for found in saver.list(config("t")):
                past = remembered(store.as_of(found.config), "t")
                assert past == up_to((0, found.metadata["step"], 0), every)
