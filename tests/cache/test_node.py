"""``EventCache``: what the suites of LangGraph's caches do not ask for."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy
from typing_extensions import TypedDict

from eventstore import EventStore
from eventstore.cache import Cache, EventCache
from eventstore.cache.events import DAY_US, CacheEvent, Kind, Space
from eventstore.errors import InvalidType, LogUnavailable
from eventstore.log.disposable import DisposableLog
from tests.cache.conftest import OpenCache
from tests.cache.handles import log_files
from tests.cache.told import Clock

A = ("graph", "a")


class State(TypedDict, total=False):
    x: Any
    out: Any


class Opaque:
    """Nothing but a pickle can carry it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque)

    __hash__ = None  # type: ignore[assignment]  # as Python sets it for such a class


def graph_of(cache: EventCache, body: Any) -> Any:
    return (
        StateGraph(State)
        .add_node("work", body, cache_policy=CachePolicy())
        .add_edge(START, "work")
        .add_edge("work", END)
        .compile(cache=cache)
    )


def invoke(graph: Any, mode: str) -> Any:
    if mode == "sync":
        return graph.invoke({"x": 1})["out"]
    return asyncio.run(graph.ainvoke({"x": 1}))["out"]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_log_that_fails_never_fails_a_run(
    store: EventStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    cache = EventCache(store)
    calls: list[int] = []

    def work(state: State) -> State:
        calls.append(1)
        return {"out": len(calls)}

    graph = graph_of(cache, work)

    def full(*_: Any) -> None:
        raise LogUnavailable("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(DisposableLog, "append", full)
        assert invoke(graph, mode) == 1
        with pytest.raises(LogUnavailable):
            graph.clear_cache()
    assert "a node's result is not kept (LogUnavailable)" in caplog.text
    assert [invoke(graph, mode), invoke(graph, mode)] == [2, 2]
    Cache.from_store(store).close()
    assert invoke(graph, mode) == 3
    assert "the node cache cannot be read" in caplog.text


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_result_that_cannot_be_serialised_never_fails_a_run(
    store: EventStore, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    cache = EventCache(store)
    graph = graph_of(cache, lambda state: {"out": Opaque()})
    assert invoke(graph, mode) == Opaque()
    assert "a node's result is not kept" in caplog.text
    with pytest.raises(TypeError):
        cache.set({(A, "k"): (Opaque(), None)})


def test_nothing_is_pickled_unless_the_serializer_given_pickles(
    store: EventStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Pickling(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            return "pickle", pickle.dumps(obj)

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return pickle.loads(data[1])

    EventCache(store).set({(A, "plain"): ({"s": {1, 2}}, None)})
    assert b"\x80\x05" not in log_files(tmp_path / "store")
    given = EventCache(store, serde=Pickling())
    given.set({(A, "k"): (Opaque(), None)})
    assert given.get([(A, "k")]) == {(A, "k"): Opaque()}
    assert EventCache(store).get([(A, "k")]) == {}
    assert "a cached result cannot be read" in caplog.text


def test_an_entry_of_an_unknown_form_is_a_miss(store: EventStore) -> None:
    cache = EventCache(store)
    cache.set({(A, "k"): (1, None)})
    shared = Cache.from_store(store).shared
    shared.write([CacheEvent(Kind.SET, cache._digest((A, "k")), Space.NODE, b"?", form="from the future")])
    assert cache.get([(A, "k")]) == {}


def test_names_with_any_separator_are_apart(store: EventStore) -> None:
    """S49: found under its own key, cleared by its own namespace."""
    cache = EventCache(store)
    labels = ["a", "a,b", "a:b", "a/b", "1:a", "\x00", "\x1f", "", "\ud800"]
    keys = [
        (namespace, key)
        for namespace in [(), *((one,) for one in labels), *itertools.product(labels, repeat=2)]
        for key in ("k", "a,b", "")
    ]
    cache.set({full: (number, None) for number, full in enumerate(keys)})
    assert cache.get(keys) == {full: number for number, full in enumerate(keys)}
    cache.clear([("a", "b"), ("a,b",)])
    assert [full for full in keys if full not in cache.get(keys)] == [
        full for full in keys if full[0] in (("a", "b"), ("a,b",))
    ]
    cache.clear([()])
    assert ((), "k") not in cache.get(keys)
    assert (("",), "k") in cache.get(keys)


def test_clearing_everything_and_clearing_the_empty_namespace_are_two_keys_of_the_topic(
    store: EventStore,
) -> None:
    """Else compaction would drop the one for the other."""
    cache = EventCache(store)
    (everything,), (empty,) = cache._clears(None), cache._clears([()])
    assert everything.digest != empty.digest


def test_clearing_is_for_nodes_only(store: EventStore) -> None:
    async def go() -> None:
        cache = Cache.from_store(store)
        await cache.cache_set("k", 1)
        EventCache(cache).clear()
        assert await cache.cache_get("k") == 1

    asyncio.run(go())


def test_without_a_ttl_an_entry_lives_for_a_day(open_told: OpenCache, clock: Clock) -> None:
    cache = EventCache(open_told())
    cache.set({(A, "k"): (1, None), (A, "long"): (2, 7 * 86_400)})
    clock.advance(DAY_US / 1e6 - 1)
    assert len(cache.get([(A, "k"), (A, "long")])) == 2
    clock.advance(1)
    assert cache.get([(A, "k"), (A, "long")]) == {}


@pytest.mark.parametrize("full", [(("a",), 1), ((1,), "k")])
def test_keys_are_text(store: EventStore, full: Any) -> None:
    with pytest.raises(InvalidType):
        EventCache(store).set({full: (1, None)})
    assert EventCache(store).get([full]) == {}
