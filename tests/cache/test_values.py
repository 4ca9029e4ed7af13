"""Values: where they are kept, for how long, how they are bound to a store, and what is never on disk."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from eventstore import EventStore
from eventstore import cache as functions
from eventstore.cache import Cache, EventCache, default
from eventstore.cache.events import DAY_US
from eventstore.cache.sealing import ENVIRONMENT, Seal
from eventstore.errors import InvalidConfig, InvalidType, StoreClosed, UndecodableEvent
from eventstore.log.high_water import HighWater
from eventstore.log.position import Position
from tests.cache.conftest import Counting, OpenCache
from tests.cache.handles import log_files
from tests.cache.told import Clock

pytestmark = pytest.mark.asyncio
HOUR = timedelta(hours=1)
TOKEN = "Bearer-4f9a61-secret"
SECRET = base64.b64encode(bytes(range(32))).decode()


async def fill(cache: Cache) -> None:
    await cache.cache_set(TOKEN, {"plan": "gold-value"})
    await cache.swr(TOKEN, Counting({"plan": "gold-value"}), fresh_for=HOUR)
    EventCache(cache).set({((TOKEN,), TOKEN): ("gold-value", None)})


async def test_keys_are_not_on_disk(tmp_path: Path, cache: Cache) -> None:
    await fill(cache)
    files = log_files(tmp_path / "store")
    assert TOKEN.encode() not in files
    assert TOKEN.encode().hex().encode() not in files
    assert b"gold-value" in files
    assert await cache.cache_get(TOKEN) == {"plan": "gold-value"}


async def test_with_a_secret_values_are_not_on_disk_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, SECRET)
    with EventStore.open(tmp_path / "store") as store:
        await fill(Cache.from_store(store))
    files = log_files(tmp_path / "store")
    assert TOKEN.encode() not in files
    assert b"gold-value" not in files
    with EventStore.open(tmp_path / "store") as store:
        cache = Cache.from_store(store)
        assert await cache.cache_get(TOKEN) == {"plan": "gold-value"}
        assert EventCache(cache).get([((TOKEN,), TOKEN)]) == {((TOKEN,), TOKEN): "gold-value"}


async def test_another_secret_or_none_finds_nothing_and_breaks_nothing(open_told: OpenCache) -> None:
    one, other, none = open_told(seal=Seal(bytes(32))), open_told(seal=Seal(b"1" * 32)), open_told()
    for cache in (one, other, none):
        await fill(cache)
    EventCache(none).clear()
    for cache in (one, other, none):
        assert await cache.cache_get(TOKEN) == {"plan": "gold-value"}
        assert EventCache(cache).get([((TOKEN,), TOKEN)]) == {}


async def test_a_sealed_value_belongs_to_its_key() -> None:
    seal = Seal(bytes(32))
    sealed = seal.close(b"value", b"digest")
    assert seal.open(sealed, b"digest") == b"value"
    assert seal.close(b"value", b"digest") != sealed
    for changed, digest in ((sealed, b"other"), (sealed[:-1] + b"x", b"digest"), (b"", b"digest")):
        with pytest.raises(UndecodableEvent, match="does not open"):
            seal.open(changed, digest)


@pytest.mark.parametrize("secret", ["short", "%%%", base64.b64encode(bytes(31)).decode()])
async def test_a_secret_of_the_wrong_kind(
    store: EventStore, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv(ENVIRONMENT, secret)
    with pytest.raises(InvalidConfig):
        Cache.from_store(store)


async def test_a_put_costs_no_sync_unless_asked(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("eventstore.log.embedded.sync_data", synced.append)
    monkeypatch.setattr("eventstore.log.disposable.sync_data", synced.append)
    for number in range(10):
        await cache.cache_set("k", number)
        await cache.swr(f"k{number}", Counting(1))
    assert not synced
    await cache.cache_set("k", 1, durable=True)
    assert len(synced) == 1


async def test_memory_is_bounded_and_what_is_used_stays(open_told: OpenCache) -> None:
    cache = open_told(memory_bytes=200_000)
    await cache.cache_set("used", "u" * 1000)
    for number in range(500):
        await cache.cache_set(f"k{number}", "v" * 1000)
        assert await cache.cache_get("used") == "u" * 1000
    assert await cache.cache_get("k499") == "v" * 1000
    assert await cache.cache_get("k0") is None
    assert cache.shared._entries.size <= 200_000
    await cache.cache_set("huge", "h" * 300_000)
    assert await cache.cache_get("huge") is None


async def test_expired_entries_leave_memory(open_told: OpenCache, clock: Clock) -> None:
    cache = open_told()
    await cache.cache_set("short", 1, ttl=timedelta(seconds=5))
    await cache.cache_set("long", 1)
    clock.advance(5)
    cache.shared._tidy()
    assert len(cache.shared._entries) == 1
    again = open_told()
    assert len(again.shared._entries) == 1
    assert await again.cache_get("long") == 1


async def test_delete_removes_what_both_kinds_stored(cache: Cache) -> None:
    await cache.cache_set("k", 1)
    await cache.swr("k", Counting(2), fresh_for=HOUR)
    await cache.cache_delete("k")
    assert await cache.cache_get("k") is None
    assert (await cache.swr("k", Counting(3), fresh_for=HOUR)).status == "miss"
    await cache.cache_delete("never there")


@pytest.mark.parametrize("key", [1, None, b"k", ("a",)])
async def test_keys_are_text(cache: Cache, key: Any) -> None:
    for call in (cache.cache_get(key), cache.cache_delete(key), cache.cache_set(key, 1)):
        with pytest.raises(InvalidType):
            await call


async def test_keys_with_any_character_are_apart(cache: Cache) -> None:
    """S49"""
    parts = ["a", "a,b", "a:b", "a/b", "a\x00b", "a\x1fb", "a\nb", "", "\ud800", "%", "é", "e\u0301"]
    keys = parts + [f"{one}{sep}{two}" for one, two in itertools.product(parts, parts) for sep in (",", ":")]
    for number, key in enumerate(dict.fromkeys(keys)):
        await cache.cache_set(key, number)
    assert [await cache.cache_get(key) for key in dict.fromkeys(keys)] == [*range(len(set(keys)))]


def _open_files() -> list[str]:
    found = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return [os.readlink(path) for path in found if os.path.lexists(path)]


# ------------------------------------------------------------------ a store's cache


async def test_one_cache_per_store_and_it_ends_with_the_store(tmp_path: Path) -> None:
    store, again = EventStore.open(tmp_path / "s"), EventStore.open(tmp_path / "s")
    cache = Cache.from_store(store)
    assert Cache.from_store(again) is cache
    store.close()
    await cache.cache_set("k", 1)
    again.close()
    with pytest.raises(StoreClosed):
        await cache.cache_get("k")
    for _ in range(100):
        if cache.shared._closed.is_set():
            break
        time.sleep(0.02)
    time.sleep(0.1)
    assert not [path for path in _open_files() if path.startswith(str(tmp_path / "s" / "cache"))]
    with pytest.raises(StoreClosed):
        Cache.from_store(store)


async def test_a_cache_that_was_closed_can_be_made_again(store: EventStore) -> None:
    async with Cache.from_store(store) as cache:
        await cache.cache_set("k", 1)
    with pytest.raises(StoreClosed, match="make another"):
        await cache.cache_set("k", 2)
    assert await Cache.from_store(store).cache_get("k") == 1


async def test_only_stores_have_a_cache() -> None:
    with pytest.raises(InvalidType):
        Cache.from_store({})  # type: ignore[arg-type]  # the point of the test


async def test_a_temporary_store_has_one_too() -> None:
    with EventStore.open("memory:") as store:
        cache = Cache.from_store(store)
        await cache.cache_set("k", 1)
        assert await cache.cache_get("k") == 1


@pytest.fixture
def unbound() -> Any:
    before, default._default[:] = [*default._default], []
    yield
    default._default[:] = before


async def test_functions_bound_to_a_store(tmp_path: Path, store: EventStore, unbound: Any) -> None:
    with pytest.raises(InvalidConfig, match="bind"):
        await functions.cache_get("k")
    assert functions.bind(store) is Cache.from_store(store)
    await functions.cache_set("k", 1, ttl=HOUR)
    assert await functions.cache_get("k") == 1
    with EventStore.open(tmp_path / "other") as other, functions.bound(other):
        assert await functions.cache_get("k") is None
        assert (await functions.swr("k", Counting(2))).status == "miss"
        assert await asyncio.gather(functions.cache_get("k")) == [None]
    assert await functions.cache_get("k") == 1
    await functions.cache_delete("k")
    assert await functions.cache_get("k") is None


async def test_inside_a_graph_its_store_is_used(store: EventStore, unbound: Any) -> None:
    class State(TypedDict, total=False):
        out: Any

    async def node(state: State) -> State:
        found = await functions.swr("k", Counting("v"), fresh_for=HOUR)
        return {"out": [found.value, found.status]}

    graph = StateGraph(State).add_node("n", node).add_edge(START, "n").add_edge("n", END).compile(store=store)
    assert (await graph.ainvoke({}))["out"] == ["v", "miss"]
    assert (await graph.ainvoke({}))["out"] == ["v", "fresh"]
    assert (await Cache.from_store(store).swr("k", Counting("w"), fresh_for=HOUR)).value == "v"


# ------------------------------------------------------------------ the log


async def test_the_log_forgets_what_is_older_than_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.cache.place.SEGMENT_BYTES", 64 * 1024)
    with EventStore.open(tmp_path / "s") as store:
        cache = Cache.from_store(store)
        for number in range(300):
            await cache.cache_set(f"k{number}", "v" * 1000)
        folder = tmp_path / "s" / "cache"
        assert len(list(folder.glob("*.seg"))) > 3
        now = cache.shared.clock()
        cache.shared.clock = lambda: now + DAY_US
        cache.shared._tidy()
        assert len(list(folder.glob("*.seg"))) == 1
        await cache.cache_set("after", 1)
    with EventStore.open(tmp_path / "s") as store:
        cache = Cache.from_store(store)
        assert await cache.cache_get("after") == 1
        assert await cache.cache_get("k0") is None


async def test_the_log_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventstore.cache.place.SEGMENT_BYTES", 64 * 1024)
    with EventStore.open(tmp_path / "s") as store:
        cache = Cache.from_store(store, log_bytes=200_000)
        for number in range(500):
            await cache.cache_set(f"k{number}", "v" * 1000)
        cache.shared._tidy()
        segments = list((tmp_path / "s" / "cache").glob("*.seg"))
        assert sum(path.stat().st_size for path in segments) <= 200_000 + 64 * 1024
    with EventStore.open(tmp_path / "s") as store:
        cache = Cache.from_store(store)
        assert await cache.cache_get("k499") == "v" * 1000
        assert await cache.cache_get("k0") is None


async def test_a_damaged_segment_loses_entries_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eventstore.cache.place.SEGMENT_BYTES", 64 * 1024)
    with EventStore.open(tmp_path / "s") as store:
        store.put(("a",), "k", {"n": 1})
        cache = Cache.from_store(store)
        for number in range(200):
            await cache.cache_set(f"k{number}", "v" * 1000)
    first = min((tmp_path / "s" / "cache").glob("*.seg"))
    data = bytearray(first.read_bytes())
    data[20_000] ^= 0xFF
    first.write_bytes(data)
    with EventStore.open(tmp_path / "s") as store:
        cache = Cache.from_store(store)
        assert "the cache starts empty" in caplog.text
        assert await cache.cache_get("k199") is None
        await cache.cache_set("k", 1)
        assert await cache.cache_get("k") == 1
        assert store.get(("a",), "k") is not None
        cache.shared._tidy()
    caplog.clear()
    with EventStore.open(tmp_path / "s") as store:
        assert await Cache.from_store(store).cache_get("k") == 1
    assert not caplog.text


async def test_entries_survive_a_look_between_append_and_announcement(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own appends are visible before the mark moves; that is no sign of damage."""
    publish = HighWater.publish

    def look_first(mark: HighWater, end: int) -> None:
        looking = threading.Thread(target=cache.shared.catch_up)
        looking.start()
        looking.join()
        publish(mark, end)

    monkeypatch.setattr(HighWater, "publish", look_first)
    for number in range(5):
        await cache.cache_set(f"k{number}", number)
    assert [await cache.cache_get(f"k{number}") for number in range(5)] == [*range(5)]


async def test_a_write_that_arrives_after_a_later_one_of_its_writer_changes_nothing(cache: Cache) -> None:
    shared = cache.shared
    await cache.cache_set("k", 1)
    await cache.cache_set("k", "later")
    *_, chunk = shared._log.chunks(Position(0))
    record = chunk.records[-1]
    early = record._replace(offset=record.offset + 1, sequence=record.sequence - 1, value=b'"earlier"')
    # While this is held nobody sees that the log has no such records.
    with shared._applying:
        shared._apply([early])
        found = shared.find(record.key)
        assert found is not None
        assert found.value == b'"later"'
        shared._apply([early._replace(offset=record.offset + 2, session=b"another session.")])
        found = shared.find(record.key)
        assert found is not None
        assert found.value == b'"earlier"'
        shared._position = chunk.position
