"""Entries that name memories end when one of these changes, and only then."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from eventstore import EventStore
from eventstore.cache import Cache, changes
from eventstore.errors import InvalidInput, InvalidType
from eventstore.log.embedded import EmbeddedLog
from tests.cache.conftest import Counting, OpenCache

pytestmark = pytest.mark.asyncio
HOUR = timedelta(hours=1)
ALICE = ("users", "alice")
CITY = (ALICE, "city")


async def status(cache: Cache, on: Any, key: str = "k") -> str:
    return (await cache.swr(key, Counting(key), fresh_for=HOUR, depends_on=on)).status


def refresh(store: EventStore) -> None:
    """Late enough for it not to be left out, and written at once."""
    before = store._runtime.log.high_water_mark()
    time.sleep(0.1)
    store.get(ALICE, "city", refresh_ttl=True)
    store._expiry.flush()
    assert store._runtime.log.high_water_mark() != before


CHANGES: dict[str, tuple[Callable[[EventStore], Any], bool]] = {
    "put": (lambda store: store.put(ALICE, "city", {"n": 2}), True),
    "delete": (lambda store: store.delete(ALICE, "city"), True),
    "restore": (lambda store: store.restore(ALICE, "city", 1), True),
    "another key": (lambda store: store.put(ALICE, "city2", {"n": 2}), False),
    "the same key elsewhere": (lambda store: store.put(("users", "bob"), "city", {"n": 2}), False),
    "a namespace below": (lambda store: store.put((*ALICE, "deep"), "city", {"n": 2}), False),
    "a label that begins alike": (lambda store: store.put(("users", "alice2"), "city", {"n": 2}), False),
    "a refresh of its expiry": (lambda store: refresh(store), False),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_what_ends_an_entry_that_names_a_memory(tmp_path: Path, name: str) -> None:
    change, ends = CHANGES[name]
    with EventStore.open(tmp_path / "s", ttl={"default_ttl": 0.1, "refresh_on_read": False}) as store:
        store.put(ALICE, "city", {"n": 1})
        cache = Cache.from_store(store)
        await status(cache, [CITY])
        change(store)
        assert await status(cache, [CITY]) == ("miss" if ends else "fresh")


@pytest.mark.parametrize(
    ("prefix", "ends"),
    [
        ((), True),
        (("users",), True),
        (ALICE, True),
        ((*ALICE, "deep"), True),
        ((*ALICE, "deep", "er"), False),
        (("user",), False),
        (("users", "alic"), False),
    ],
)
async def test_what_ends_an_entry_that_names_a_prefix(
    store: EventStore, cache: Cache, prefix: tuple[str, ...], ends: bool
) -> None:
    await status(cache, [prefix])
    store.put((*ALICE, "deep"), "k", {"n": 1})
    assert await status(cache, [prefix]) == ("miss" if ends else "fresh")


async def test_the_loader_runs_once_after_a_change(store: EventStore, cache: Cache) -> None:
    """What it reads belongs to the moment it began at, so its entry is not ended by what came before."""

    async def load() -> Any:
        calls.append(1)
        item = await store.aget(*CITY)
        return item and item.value["n"]

    calls: list[int] = []
    for number in range(5):
        store.put(*CITY, {"n": number})
        for _ in range(3):
            found = await cache.swr("k", load, fresh_for=HOUR, depends_on=[CITY])
            assert found.value == number
    assert len(calls) == 5


async def test_a_change_while_loading_ends_the_entry_and_is_not_hidden_by_the_load(
    store: EventStore, cache: Cache
) -> None:
    store.put(*CITY, {"n": 1})
    entered, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        item = store.get(*CITY)
        entered.set()
        await gate.wait()
        return item and item.value["n"]

    first = asyncio.ensure_future(cache.swr("k", slow, fresh_for=HOUR, depends_on=[CITY]))
    await entered.wait()
    store.put(*CITY, {"n": 2})
    # Who wrote, or came after, must not get what was read before.
    second = await asyncio.wait_for(cache.swr("k", Counting(2), fresh_for=HOUR, depends_on=[CITY]), 5)
    assert second.value == 2
    gate.set()
    assert (await first).value == 1
    assert (await cache.swr("k", Counting(3), fresh_for=HOUR, depends_on=[CITY])).value != 1


async def test_an_entry_that_arrives_late_is_held_against_what_happened_before(
    store: EventStore, open_told: OpenCache
) -> None:
    here, there = open_told(), open_told()
    await status(there, [("other",)], key="keeps it following")
    entered, gate = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        entered.set()
        await gate.wait()
        return "old"

    loading = asyncio.ensure_future(here.swr("k", slow, fresh_for=HOUR, depends_on=[CITY]))
    await entered.wait()
    store.put(*CITY, {"n": 2})
    assert await status(there, [("other",)], key="keeps it following") == "fresh"
    gate.set()
    await loading
    assert await status(there, [CITY]) == "miss"


async def test_beyond_what_is_remembered_an_entry_ends_to_be_safe(
    store: EventStore, open_told: OpenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "REMEMBERED", 10)
    here, there = open_told(), open_told()
    await status(there, [("other",)], key="keeps it following")
    for late, expected in ((5, "fresh"), (20, "miss")):
        entered, gate = asyncio.Event(), asyncio.Event()

        async def slow(entered: asyncio.Event = entered, gate: asyncio.Event = gate) -> str:
            entered.set()
            await gate.wait()
            return "v"

        loading = asyncio.ensure_future(here.swr(f"k{late}", slow, fresh_for=HOUR, depends_on=[CITY]))
        await entered.wait()
        for number in range(late):
            store.put(("unrelated",), f"{number}", {})
        await status(there, [("other",)], key="keeps it following")
        gate.set()
        await loading
        assert await status(there, [CITY], key=f"k{late}") == expected


async def test_mutate_keeps_the_dependencies(store: EventStore, cache: Cache) -> None:
    found = await cache.swr("k", Counting("v"), fresh_for=HOUR, depends_on=[CITY])
    store.put(*CITY, {"n": 1})
    await found.mutate("w")
    assert (await cache.swr("k", Counting("x"), fresh_for=HOUR, depends_on=[CITY])).value == "w"
    store.put(*CITY, {"n": 2})
    assert await status(cache, [CITY]) == "miss"


async def test_an_entry_answers_only_who_asks_for_no_more_than_it_depends_on(cache: Cache) -> None:
    await status(cache, [])
    assert await status(cache, [CITY]) == "miss"
    assert await status(cache, [CITY, ALICE]) == "miss"
    assert await status(cache, [ALICE]) == "fresh"
    assert await status(cache, []) == "fresh"


async def test_nothing_is_followed_while_nothing_depends(store: EventStore, cache: Cache) -> None:
    follower = cache.shared.changes
    await cache.cache_set("k", 1)
    assert follower._position is None
    await status(cache, [CITY])
    assert follower._position is not None
    store.put(*CITY, {"n": 1})
    await cache.sync()
    follower.tidy()
    assert follower._position is None
    assert await status(cache, [CITY]) == "miss"
    store.put(*CITY, {"n": 2})
    assert await status(cache, [CITY]) == "miss"


async def test_memories_that_cannot_be_followed_make_a_miss(
    store: EventStore, cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await status(cache, [CITY])
    store.put(("x",), "y", {})

    def broken(*_: Any) -> Any:
        raise changes.LogError("cannot be read")

    monkeypatch.setattr(EmbeddedLog, "chunks", broken)
    assert cache.shared.changes.catch_up() is False
    assert "counts as missing" in caplog.text


@pytest.mark.parametrize("bad", ["users", [["users"]], [("users", 5)], ["users"], [("users", "")], 5])
async def test_dependencies_that_make_no_sense(cache: Cache, bad: Any) -> None:
    load = Counting()
    with pytest.raises((InvalidType, InvalidInput)):
        await cache.swr("k", load, depends_on=bad)
    assert load.calls == 0


async def test_an_entry_from_memories_that_are_gone_is_a_miss(tmp_path: Path) -> None:
    """The log of memories was restored from an older copy; the cache was not."""
    folder = tmp_path / "s"
    with EventStore.open(folder) as store:
        store.put(*CITY, {"n": 1})
    shutil.copytree(folder / "log", tmp_path / "copy")
    with EventStore.open(folder) as store:
        store.put(*CITY, {"n": 2})
        await status(Cache.from_store(store), [CITY])
    shutil.rmtree(folder / "log")
    shutil.rmtree(folder / "views")
    shutil.move(tmp_path / "copy", folder / "log")
    with EventStore.open(folder) as store:
        assert await status(Cache.from_store(store), [CITY]) == "miss"
