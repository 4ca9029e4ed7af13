"""Random histories against a model, on a told clock, through two handles and across restarts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventstore import EventStore
from eventstore.cache import Cache
from tests.cache.conftest import Counting
from tests.cache.handles import told_cache
from tests.cache.told import Clock

KEYS = st.sampled_from(["a", "b", "a,b", ""])
WHO = st.integers(0, 1)
SECONDS = st.sampled_from([0.001, 1, 10, 60, 3600, 86_400])
USERS = st.sampled_from(["alice", "bob"])
NAMED = st.sampled_from(["", "alice", "bob", "alice/city", "bob/city"])

SET = st.tuples(st.just("set"), WHO, KEYS, st.one_of(st.none(), SECONDS))
GET = st.tuples(st.just("get"), WHO, KEYS)
DELETE = st.tuples(st.just("delete"), WHO, KEYS)
SWR = st.tuples(st.just("swr"), WHO, KEYS, SECONDS, SECONDS, NAMED)
MUTATE = st.tuples(st.just("mutate"), WHO, KEYS, SECONDS)
PUT = st.tuples(st.just("put"), USERS, st.sampled_from(["city", "food"]))
ADVANCE = st.tuples(st.just("advance"), SECONDS)
RESTART = st.tuples(st.just("restart"))
OPERATIONS = st.lists(st.one_of(SET, GET, DELETE, SWR, SWR, SWR, MUTATE, PUT, ADVANCE, RESTART), max_size=30)


@dataclass
class Kept:
    value: Any
    at: int
    life: int
    on: str = ""


def changes(named: str, user: str, key: str) -> bool:
    return named in (user, f"{user}/{key}") if named else False


def dependency(named: str) -> Any:
    user, _, key = named.partition("/")
    return ((user,), key) if key else (user,)


class Driver:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.plain: dict[str, Kept] = {}
        self.loaded: dict[str, Kept] = {}
        self.count = 0
        self.open()

    def open(self) -> None:
        self.store = EventStore.open(self.folder / "s")
        self.caches: list[Cache] = [told_cache(self.store, self.clock) for _ in range(2)]

    def close(self) -> None:
        for cache in self.caches:
            cache.close()
        self.store.close()

    async def set(self, who: int, key: str, ttl: float | None) -> None:
        self.count += 1
        life = None if ttl is None else timedelta(seconds=ttl)
        await self.caches[who].cache_set(key, self.count, ttl=life)
        self.plain[key] = Kept(self.count, self.clock(), round((ttl or 86_400) * 1e6))

    async def get(self, who: int, key: str) -> None:
        kept = self.plain.get(key)
        alive = kept is not None and self.clock() < kept.at + kept.life
        assert await self.caches[who].cache_get(key) == (kept.value if kept and alive else None)

    async def delete(self, who: int, key: str) -> None:
        await self.caches[who].cache_delete(key)
        self.plain.pop(key, None)
        self.loaded.pop(key, None)

    async def swr(self, who: int, key: str, fresh: float, age: float, named: str) -> None:
        fresh, age = min(fresh, age), max(fresh, age)
        self.count += 1
        load = Counting(self.count)
        found = await self.caches[who].swr(
            key,
            load,
            fresh_for=timedelta(seconds=fresh),
            max_age=timedelta(seconds=age),
            depends_on=[dependency(named)] if named else (),
        )
        kept = self.loaded.get(key)
        if kept is not None and named and kept.on != named:
            kept = None
        passed = 0 if kept is None else self.clock() - kept.at
        if kept is None or passed >= min(kept.life, round(age * 1e6)):
            assert found.value == self.count
            # An expired entry may have been swept, and is then a miss.
            assert found.status in (("miss",) if kept is None else ("miss", "expired"))
        else:
            status = "fresh" if passed < round(fresh * 1e6) else "stale"
            assert (found.value, found.status) == (kept.value, status)
            if status == "fresh":
                assert load.calls == 0
                return
            while load.calls == 0 or self.caches[who]._loading._flights._flights:
                await asyncio.sleep(0)
        assert load.calls == 1
        self.loaded[key] = Kept(self.count, self.clock(), round(age * 1e6), named)

    async def mutate(self, who: int, key: str, age: float) -> None:
        await self.swr(who, key, age, age, "")
        self.count += 1
        self.clock.advance(0.5)
        life = timedelta(seconds=age)
        found = await self.caches[who].swr(key, Counting("unused"), fresh_for=life, max_age=life)
        await found.mutate(self.count)
        self.loaded[key] = Kept(self.count, self.clock(), round(age * 1e6))

    async def put(self, user: str, key: str) -> None:
        self.store.put((user,), key, {"n": self.count})
        self.loaded = {name: kept for name, kept in self.loaded.items() if not changes(kept.on, user, key)}

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def restart(self) -> None:
        self.close()
        self.open()


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(OPERATIONS)
def test_any_history_is_as_the_model_says(operations: list[tuple[Any, ...]]) -> None:
    folder = Path(tempfile.mkdtemp())
    driver = Driver(folder)

    async def run() -> None:
        for name, *arguments in operations:
            await getattr(driver, name)(*arguments)
        for key in driver.plain:
            for who in (0, 1):
                await driver.get(who, key)

    try:
        asyncio.run(run())
    finally:
        driver.close()
        shutil.rmtree(folder)
