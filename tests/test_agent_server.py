"""What the Agent Server asks of us, without its packages: stand-ins have the names that it has."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict

import orjson
import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langgraph.graph import END, START, StateGraph
from langgraph.types import CachePolicy

from eventstore import EventStore
from eventstore.agent_server import install_cache, node_cache, store
from eventstore.agent_server.holding import Holder, Holding, held
from eventstore.agent_server.settings import Settings
from eventstore.errors import EventStoreError, InvalidConfig, InvalidType, StoreClosed, StoreForked

NS = ("users", "alice")
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("EVENTSTORE_", "LANGGRAPH_")) and "_TEST_" not in name:
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield
    with pytest.raises(StoreClosed):
        _ = held.store


def configure(monkeypatch: pytest.MonkeyPatch, **section: Any) -> None:
    """What the server does with the store section of langgraph.json."""
    monkeypatch.setenv("LANGGRAPH_STORE", json.dumps({"path": "eventstore.agent_server.store", **section}))


def settings(**environment: str) -> Settings:
    return Settings.of_server(environment)


# ---------------------------------------------------------------- the store


@pytest.mark.asyncio
async def test_a_restart_finds_what_was_put_in_the_working_directory(tmp_path: Path) -> None:
    async with store() as first:
        await first.aput(NS, "city", {"text": "Lisbon"})
    assert (tmp_path / ".eventstore" / "log").is_dir()
    with pytest.raises(StoreClosed):
        first.get(NS, "city")
    async with store() as second:
        found = await second.aget(NS, "city")
    assert found is not None and found.value == {"text": "Lisbon"}


@pytest.mark.asyncio
async def test_all_hold_one_store_and_the_last_closes_it() -> None:
    async with store() as first:
        async with store() as second:
            assert second is first
        await first.aput(NS, "k", {})
    with pytest.raises(StoreClosed):
        first.get(NS, "k")


@pytest.mark.asyncio
async def test_many_who_ask_at_once_get_one_store() -> None:
    async def ask() -> EventStore:
        async with store() as mine:
            await asyncio.sleep(0.05)
            return mine

    assert len(set(await asyncio.gather(*(ask() for _ in range(8))))) == 1


@pytest.mark.asyncio
async def test_opening_and_closing_are_done_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[str] = []
    opening, closing = EventStore.open, EventStore.close

    def watched_open(*arguments: Any, **options: Any) -> EventStore:
        where.append(threading.current_thread().name)
        return opening(*arguments, **options)

    def watched_close(self: EventStore) -> None:
        where.append(threading.current_thread().name)
        closing(self)

    monkeypatch.setattr(EventStore, "open", watched_open)
    monkeypatch.setattr(EventStore, "close", watched_close)
    async with store():
        pass
    assert len(where) == 2 and threading.current_thread().name not in where


@pytest.mark.asyncio
async def test_who_asks_for_an_open_store_is_answered_without_a_pause() -> None:
    async with store() as first:
        context = store()
        entering = context.__aenter__()
        with pytest.raises(StopIteration) as ended:
            entering.send(None)
        assert ended.value.value is first
        await context.__aexit__(None, None, None)


@pytest.mark.asyncio
async def test_loops_of_several_threads_share_the_store() -> None:
    async def work(name: str) -> EventStore:
        async with store() as mine:
            await mine.aput(NS, name, {"by": name})
            return mine

    async with store() as first:
        names = [f"thread{number}" for number in range(4)]
        stores = await asyncio.gather(*(asyncio.to_thread(lambda n=n: asyncio.run(work(n))) for n in names))
        assert all(each is first for each in stores)
        assert sorted(item.key for item in await first.asearch(NS)) == names


@pytest.mark.asyncio
async def test_the_end_of_the_main_thread_s_context_is_the_end() -> None:
    """The server never tells its worker threads to leave."""
    workers: list[Any] = []

    async def enter() -> None:
        workers.append(store())
        await workers[0].__aenter__()

    async with store() as first:
        await asyncio.to_thread(lambda: asyncio.run(enter()))
    with pytest.raises(StoreClosed):
        first.get(NS, "k")
    async with store() as second:
        await workers[0].__aexit__(None, None, None)
        assert second.get(NS, "k") is None


@pytest.mark.asyncio
async def test_a_server_that_is_stopped_while_the_store_opens_leaves_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, begun, proceed = EventStore.open, threading.Event(), threading.Event()

    def slow_open(*arguments: Any, **options: Any) -> EventStore:
        begun.set()
        proceed.wait(10)
        return opening(*arguments, **options)

    monkeypatch.setattr(EventStore, "open", slow_open)
    entering = asyncio.ensure_future(store().__aenter__())
    await asyncio.to_thread(begun.wait, 10)
    entering.cancel()
    await asyncio.sleep(0.01)
    proceed.set()
    with pytest.raises(asyncio.CancelledError):
        await entering


def test_who_left_before_the_store_was_opened_does_not_open_it() -> None:
    holding, holder = Holding(), Holder()
    holding.leave(holder)
    with pytest.raises(StoreClosed):
        holding.join(holder, lambda: pytest.fail("was opened"))


@pytest.mark.asyncio
async def test_a_failed_start_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, ttl={"no_such_setting": 1})
    with pytest.raises(InvalidConfig, match="no_such_setting"):
        async with store():
            pass
    configure(monkeypatch)
    async with store() as opened:
        assert opened.get(NS, "k") is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.asyncio
async def test_a_forked_child_is_refused_at_once_and_harms_nobody() -> None:
    async with store() as mine:
        with held._lock:  # as a thread may hold it at the moment of the fork
            child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(StoreForked):
                    held.join(Holder(), lambda: EventStore.open(".eventstore"))
                with pytest.raises(StoreClosed):
                    _ = held.store
                code = 0
            finally:
                os._exit(code)
        status = (await asyncio.to_thread(os.waitpid, child, 0))[1]
        assert os.waitstatus_to_exitcode(status) == 0
        await mine.aput(NS, "k", {})
        assert held.store is mine


# ---------------------------------------------------------------- settings


def test_without_settings_the_store_is_in_the_working_directory() -> None:
    assert settings() == Settings(Path(".eventstore"), None, None, {"omit_expired": True}, None, None)


def test_the_environment_says_where_the_store_is() -> None:
    found = settings(EVENTSTORE_PATH="/var/memory", EVENTSTORE_VIEWS="/var/views")
    assert (found.conn_string, found.views) == (Path("/var/memory"), Path("/var/views"))
    found = settings(EVENTSTORE_PATH="/var/memory", EVENTSTORE_CONN_STRING="kafka://h:9092/topic")
    assert found.conn_string == "kafka://h:9092/topic"


def test_ttl_is_the_server_s_and_hides_what_has_expired_unless_told_otherwise() -> None:
    found = settings(LANGGRAPH_STORE='{"ttl": {"default_ttl": 60, "sweep_interval_minutes": 1}}')
    assert found.ttl == {"omit_expired": True, "default_ttl": 60, "sweep_interval_minutes": 1}
    assert settings(LANGGRAPH_STORE='{"ttl": {"omit_expired": false}}').ttl == {"omit_expired": False}


def test_the_model_is_the_one_the_server_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = DeterministicFakeEmbedding(size=8)
    server = ModuleType("langgraph_api.config")
    server.STORE_CONFIG = {"index": {"dims": 8, "embed": model}}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "langgraph_api.config", server)
    written = {"index": {"dims": 8, "embed": "./embedding.py:embed", "fields": ["text"]}}
    found = settings(LANGGRAPH_STORE=json.dumps(written))
    assert found.index == {"dims": 8, "embed": model, "fields": ["text"]}
    written["index"]["embed"] = "openai:text-embedding-3-small"
    found = settings(LANGGRAPH_STORE=json.dumps(written))
    assert found.index is not None
    assert found.index["model"] == "openai:text-embedding-3-small"  # as it is known without the server
    assert found.index["embed"] is model


def test_a_model_that_is_not_loaded_is_loaded_by_the_server_s_own_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = DeterministicFakeEmbedding(size=8)
    asked: list[dict[str, Any]] = []
    config, graph = ModuleType("langgraph_api.config"), ModuleType("langgraph_api.graph")
    config.STORE_CONFIG = {"index": {"dims": 8, "embed": "./e.py:f"}}  # type: ignore[attr-defined]
    graph.resolve_embeddings = lambda index: (asked.append(index), model)[1]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "langgraph_api.config", config)
    monkeypatch.setitem(sys.modules, "langgraph_api.graph", graph)
    found = settings(LANGGRAPH_STORE='{"index": {"dims": 8, "embed": "./e.py:f", "model": "mine"}}')
    assert found.index == {"dims": 8, "embed": model, "model": "mine"}
    assert [each["embed"] for each in asked] == ["./e.py:f"]


@pytest.mark.asyncio
async def test_index_and_options_reach_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    model = DeterministicFakeEmbedding(size=8)
    server = ModuleType("langgraph_api.config")
    server.STORE_CONFIG = {"index": {"dims": 8, "embed": model}}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "langgraph_api.config", server)
    index = {"dims": 8, "embed": "./e.py:f", "fields": ["text"]}
    configure(monkeypatch, index=index, config={"max_value_bytes": 100})
    async with store() as opened:
        for key, text in (("a", "tea"), ("b", "rain")):
            await opened.aput(NS, key, {"text": text})
        (best, *_) = await opened.asearch(NS, query="rain")
        assert best.key == "b" and best.score == pytest.approx(1.0)
        with pytest.raises(EventStoreError, match="100"):
            await opened.aput(NS, "c", {"text": "x" * 200})


@pytest.mark.asyncio
async def test_expired_memories_are_hidden_and_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, ttl={"sweep_interval_minutes": 0.003})
    async with store() as opened:
        await opened.aput(NS, "short", {"v": 1}, ttl=0.002)
        await asyncio.sleep(0.13)
        assert await opened.aget(NS, "short", refresh_ttl=False) is None
        for _ in range(100):
            kinds = [version.kind for version in opened.history(NS, "short")]
            if len(kinds) > 1:
                break
            await asyncio.sleep(0.02)
        assert len(kinds) == 2


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ("{", InvalidConfig),
        ("[]", InvalidType),
        ('{"index": "openai"}', InvalidType),
        ('{"ttl": 60}', InvalidType),
        ('{"config": []}', InvalidType),
        ('{"cache": "yes"}', InvalidType),
    ],
)
def test_a_section_that_cannot_be_used_is_refused(section: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        settings(LANGGRAPH_STORE=section)


# ---------------------------------------------------------------- the server's cache

Loader = Callable[[], Any]


class Server:
    """Modules of the shape of langgraph_api.cache and langgraph_sdk.cache, as far as they matter here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, has_swr: bool = True) -> None:
        self.api, self.sdk = ModuleType("langgraph_api.cache"), ModuleType("langgraph_sdk.cache")
        api, sdk = vars(self.api), vars(self.sdk)

        async def unused(*arguments: Any, **options: Any) -> Any:
            pytest.fail("the server's own cache was asked")

        async def cache_get(key: str) -> Any:
            found = await api["_cache_get"](key)
            return None if found is None else orjson.loads(found)

        async def cache_set(key: str, value: Any, ttl: timedelta | None = None) -> None:
            await api["_cache_set"](key, orjson.dumps(value), ttl or DAY)

        async def swr(key: str, loader: Loader, **options: Any) -> Any:
            return await sdk["_api_swr"](key, loader, **options)

        api.update(_cache_get=unused, _cache_set=unused, cache_get=cache_get, cache_set=cache_set)
        sdk.update(_cache_get=cache_get, _cache_set=cache_set, _api_swr=None, swr=swr)
        if has_swr:
            api["swr"] = sdk["_api_swr"] = unused
        self.unused = unused
        self.get, self.set, self.swr = cache_get, cache_set, swr
        monkeypatch.setitem(sys.modules, "langgraph_api.cache", self.api)
        monkeypatch.setitem(sys.modules, "langgraph_sdk.cache", self.sdk)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


@pytest.mark.asyncio
async def test_the_server_s_values_are_on_the_log(server: Server) -> None:
    install_cache()
    async with store():
        assert await server.get("k") is None
        await server.set("k", {"a": [1, None, "텍스트"]})
        await server.set("short", 1, timedelta(milliseconds=80))
        assert await server.get("k") == {"a": [1, None, "텍스트"]}
        assert await server.get("short") == 1
        await asyncio.sleep(0.1)
        assert await server.get("short") is None
    with pytest.raises(StoreClosed):
        await server.get("k")
    async with store():
        assert await server.get("k") == {"a": [1, None, "텍스트"]}


@pytest.mark.asyncio
async def test_swr_of_the_server_is_ours(server: Server) -> None:
    install_cache()
    loads: list[int] = []

    async def load() -> int:
        loads.append(1)
        return len(loads)

    window = {"fresh_for": timedelta(minutes=1), "max_age": DAY, "model": None}
    async with store():
        assert repr(await server.swr("k", load, **window)) == "SWRResult(value=1, status='miss')"
        result = await server.swr("k", load, **window)
        assert (result.value, result.status) == (1, "fresh")
        await result.mutate(7)
        assert (await vars(server.api)["swr"]("k", load, fresh_for=timedelta(minutes=1))).value == 7
        assert await server.get("k") is None


@pytest.mark.asyncio
async def test_the_known_way_to_end_an_entry_of_swr_still_ends_it(server: Server) -> None:
    install_cache()

    async def load() -> str:
        return "loaded"

    async with store():
        await server.set("k", "value")
        for _ in range(2):
            assert (await server.swr("k", load, fresh_for=DAY)).status == "miss"
            await server.set("__lg_swr__:k", None)
        assert await server.get("k") == "value"


@pytest.mark.asyncio
async def test_loops_of_several_threads_load_once(server: Server) -> None:
    install_cache()
    loads: list[int] = []

    async def load() -> str:
        loads.append(1)
        await asyncio.sleep(0.2)
        return "v"

    async def ask() -> str:
        return str((await server.swr("k", load, fresh_for=DAY)).value)

    async with store():
        asking = (asyncio.to_thread(lambda: asyncio.run(ask())) for _ in range(4))
        assert await asyncio.gather(*asking) == ["v"] * 4
    assert len(loads) == 1


@pytest.mark.asyncio
async def test_an_older_server_without_swr_keeps_two_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(monkeypatch, has_swr=False)
    install_cache()
    async with store():
        await server.set("k", 1)
        assert await server.get("k") == 1
    assert "swr" not in vars(server.api) and vars(server.sdk)["_api_swr"] is None


@pytest.mark.asyncio
async def test_the_cache_of_another_store_can_be_named(server: Server, tmp_path: Path) -> None:
    with EventStore.open(tmp_path / "other") as other:
        install_cache(other)
        await server.set("k", 1)
        assert await server.get("k") == 1
    assert not (tmp_path / ".eventstore").exists()


def test_a_server_that_is_made_otherwise_is_left_as_it_is(server: Server) -> None:
    del vars(server.api)["_cache_set"]
    with pytest.raises(InvalidConfig, match="_cache_set"):
        install_cache()
    assert vars(server.api)["_cache_get"] is vars(server.sdk)["_api_swr"] is server.unused


def test_outside_of_a_server_there_is_nothing_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langgraph_api.cache", None)
    with pytest.raises(InvalidConfig, match=r"eventstore\.cache"):
        install_cache()


@pytest.mark.parametrize(
    ("edition", "asked", "installed"),
    [("inmem", None, True), ("inmem", False, False), ("postgres", None, False), ("postgres", True, True)],
)
@pytest.mark.asyncio
async def test_the_store_brings_the_cache_where_the_server_s_own_forgets(
    server: Server, monkeypatch: pytest.MonkeyPatch, edition: str, asked: bool | None, installed: bool
) -> None:
    monkeypatch.setitem(sys.modules, "langgraph_api.config", ModuleType("langgraph_api.config"))
    monkeypatch.setenv("LANGGRAPH_RUNTIME_EDITION", edition)
    configure(monkeypatch, **({} if asked is None else {"cache": asked}))
    async with store():
        assert (vars(server.api)["_cache_get"] is not server.unused) is installed


@pytest.mark.asyncio
async def test_a_server_whose_cache_cannot_be_taken_starts_unless_it_was_asked_for(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del vars(server.api)["_cache_get"]
    monkeypatch.setitem(sys.modules, "langgraph_api.config", ModuleType("langgraph_api.config"))
    monkeypatch.setenv("LANGGRAPH_RUNTIME_EDITION", "inmem")
    async with store():
        assert "keeps its own cache" in caplog.text
    configure(monkeypatch, cache=True)
    with pytest.raises(InvalidConfig, match="_cache_get"):
        async with store():
            pass


# ---------------------------------------------------------------- the node cache


class State(TypedDict, total=False):
    question: str
    answer: str


@pytest.mark.asyncio
async def test_a_graph_made_before_the_store_is_open_is_cached_once_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs: list[str] = []

    def think(state: State) -> State:
        runs.append(state["question"])
        return {"answer": state["question"].upper()}

    graph = (
        StateGraph(State)
        .add_node("think", think, cache_policy=CachePolicy(ttl=600))
        .add_edge(START, "think")
        .add_edge("think", END)
        .compile(cache=node_cache())
    )
    assert (await graph.ainvoke({"question": "why"}))["answer"] == "WHY"
    assert graph.invoke({"question": "why"})["answer"] == "WHY"
    assert len(runs) == 2 and "no node cache" in caplog.text
    with pytest.raises(StoreClosed):
        await graph.aclear_cache()
    for _ in range(2):
        async with store():
            assert (await graph.ainvoke({"question": "why"}))["answer"] == "WHY"
            assert graph.invoke({"question": "why"})["answer"] == "WHY"
    assert len(runs) == 3
    async with store():
        await graph.aclear_cache()
        graph.invoke({"question": "why"})
        graph.clear_cache()
        await graph.ainvoke({"question": "why"})
    assert len(runs) == 5
