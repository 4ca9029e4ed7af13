"""Several processes on one cache, on the embedded log and on Kafka; and what a restart keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from eventstore import EventStore
from eventstore.cache import Cache, EventCache
from tests.cache.children import OtherProcess
from tests.cache.conftest import Counting, Place

HOUR = timedelta(hours=1)
ALICE = ("users", "alice")


@pytest.fixture
def other(place: Place) -> Iterator[OtherProcess]:
    with OtherProcess(place.conn, place.views) as child:
        yield child


@pytest.fixture
def mine(place: Place) -> Iterator[EventStore]:
    with EventStore.open(place.conn, views=place.views) as store:
        yield store


@pytest.mark.asyncio
async def test_what_one_process_does_the_other_sees(mine: EventStore, other: OtherProcess) -> None:
    cache = Cache.from_store(mine)
    await cache.cache_set("k", {"n": 1})
    other.do("sync")
    assert other.do("cache_get", "k") == {"n": 1}
    other.do("cache_set", "k", {"n": 2})
    await cache.sync()
    assert await cache.cache_get("k") == {"n": 2}
    other.do("cache_delete", "k")
    await cache.sync()
    assert await cache.cache_get("k") is None
    EventCache(cache).set({(("g", "a,b"), "x"): ([["out", 1]], None)})
    other.do("sync")
    assert other.do("node_get", ["g", "a,b"], "x") == [[["out", 1]]]


@pytest.mark.asyncio
async def test_a_memory_changed_in_one_ends_what_depends_on_it_in_the_other(
    mine: EventStore, other: OtherProcess
) -> None:
    cache = Cache.from_store(mine)
    mine.put(ALICE, "city", {"text": "Lisbon"})
    on_key, on_prefix = [(ALICE, "city")], [("users",)]
    for change in (
        lambda: other.do("put", ALICE, "city", {"text": "Porto"}),
        lambda: other.do("delete", ALICE, "city"),
        lambda: mine.put(ALICE, "city", {"text": "Faro"}),
    ):
        load = Counting("old")
        for key, on in (("by key", on_key), ("by prefix", on_prefix)):
            await cache.swr(key, load, fresh_for=HOUR, depends_on=on)
            assert (await cache.swr(key, load, fresh_for=HOUR, depends_on=on)).status == "fresh"
        other.do("sync")
        options = {"fresh_for": 3600, "depends_on": [[ALICE, "city"]]}
        assert other.do("swr", "by key", "theirs", dict(options)) == ["old", "fresh"]
        change()
        await cache.sync()
        load = Counting("new")
        for key, on in (("by key", on_key), ("by prefix", on_prefix)):
            found = await cache.swr(key, load, fresh_for=HOUR, depends_on=on)
            assert (found.value, found.status) == ("new", "miss")
        other.do("sync")
        assert other.do("swr", "by key", "theirs", dict(options)) == ["new", "fresh"]
        # The next round begins with an entry that both agree on.
        await cache.cache_delete("by key")
        await cache.cache_delete("by prefix")


@pytest.mark.asyncio
async def test_a_restart_keeps_entries_and_what_they_depend_on(place: Place) -> None:
    with EventStore.open(place.conn, views=place.views) as store:
        cache = Cache.from_store(store)
        store.put(ALICE, "city", {"text": "Lisbon"})
        store.put(ALICE, "food", {"text": "rice"})
        await cache.cache_set("plain", [1])
        await cache.swr("city", Counting("c"), fresh_for=HOUR, depends_on=[(ALICE, "city")])
        await cache.swr("food", Counting("f"), fresh_for=HOUR, depends_on=[(ALICE, "food")])
        await cache.swr("all", Counting("a"), fresh_for=HOUR, depends_on=[ALICE])
        EventCache(cache).set({(("g",), "x"): ({1, 2}, None)})
    with EventStore.open(place.conn, views=place.views) as store:
        # No cache is open while this memory changes.
        store.put(ALICE, "city", {"text": "Porto"})
    with EventStore.open(place.conn, views=place.views) as store:
        cache = Cache.from_store(store)
        assert await cache.cache_get("plain") == [1]
        assert EventCache(cache).get([(("g",), "x")]) == {(("g",), "x"): {1, 2}}
        load = Counting("new")
        food = await cache.swr("food", load, fresh_for=HOUR, depends_on=[(ALICE, "food")])
        assert (food.value, food.status) == ("f", "fresh")
        for key, on in (("city", (ALICE, "city")), ("all", ALICE)):
            assert (await cache.swr(key, load, fresh_for=HOUR, depends_on=[on])).status == "miss"


@pytest.mark.asyncio
async def test_what_a_killed_process_set_is_there(tmp_path: Path) -> None:
    conn, views = str(tmp_path / "store"), tmp_path / "views"
    with OtherProcess(conn, views) as child:
        for number in range(50):
            child.do("cache_set", f"k{number}", number)
        child.kill()
        with EventStore.open(conn, views=views) as store:
            cache = Cache.from_store(store)
            assert [await cache.cache_get(f"k{number}") for number in range(50)] == [*range(50)]


@pytest.mark.asyncio
async def test_readers_of_a_stale_entry_in_two_processes(mine: EventStore, other: OtherProcess) -> None:
    """Everyone gets the old value at once; the loader runs once in each process."""
    cache = Cache.from_store(mine)
    await cache.swr("k", Counting("old"), max_age=HOUR)
    other.do("sync")
    load = Counting("new", pause=0.5)
    results = await asyncio.gather(
        asyncio.to_thread(other.do, "swr", "k", "new", {"max_age": 3600, "pause": 0.5}),
        *[cache.swr("k", load, max_age=HOUR) for _ in range(25)],
    )
    assert results[0] == ["old", "stale"]
    assert {(each.value, each.status) for each in results[1:]} == {("old", "stale")}
    await asyncio.sleep(0.8)
    assert (load.calls, other.do("loads")) == (1, 1)
    await cache.sync()
    assert (await cache.swr("k", Counting("x"), fresh_for=HOUR)).value == "new"


@pytest.mark.asyncio
async def test_the_own_writes_of_a_process_end_entries_at_once(mine: EventStore) -> None:
    cache = Cache.from_store(mine)
    for number in range(10):
        load = Counting(number)
        found = await cache.swr("k", load, fresh_for=HOUR, depends_on=[(ALICE, "city")])
        assert (found.value, load.calls) == (number, 1)
        mine.put(ALICE, "city", {"n": number})
