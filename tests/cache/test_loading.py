"""One load for many callers; what happens when loads fail, are cancelled, or are overtaken."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

from eventstore import EventStore
from eventstore.cache import Cache
from eventstore.cache import flights as flights_module
from eventstore.cache.events import Space
from eventstore.errors import InvalidInput, LogUnavailable
from eventstore.log.disposable import DisposableLog
from tests.cache.conftest import Counting, OpenCache
from tests.cache.told import Clock

pytestmark = pytest.mark.asyncio
HOUR = timedelta(hours=1)


class Gated:
    """A loader that is held open until it is let go."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.calls = 0
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()

    async def __call__(self) -> Any:
        self.calls += 1
        self.entered.set()
        await self.gate.wait()
        return self.value


async def until(condition: Any) -> None:
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen in two seconds")


async def test_fifty_threads_and_fifty_tasks_load_once(cache: Cache) -> None:
    calls: list[int] = []

    async def load() -> str:
        calls.append(1)
        await asyncio.sleep(0.3)
        return "v"

    def elsewhere() -> tuple[Any, str]:
        found = asyncio.run(cache.swr("k", load))
        return found.value, found.status

    mine = [asyncio.ensure_future(cache.swr("k", load)) for _ in range(50)]
    await asyncio.sleep(0.02)
    threads = await asyncio.gather(*[_in_thread(elsewhere) for _ in range(50)])
    assert {(each.value, each.status) for each in await asyncio.gather(*mine)} == {("v", "miss")}
    assert set(threads) == {("v", "miss")}
    assert len(calls) == 1


async def test_threads_with_a_stale_entry_get_it_at_once_and_refresh_once(cache: Cache) -> None:
    await cache.swr("k", Counting("old"))
    load = Gated("new")
    await cache.swr("k", load)
    results = await asyncio.gather(
        *[_in_thread(lambda: asyncio.run(cache.swr("k", load))) for _ in range(20)]
    )
    assert {(each.value, each.status) for each in results} == {("old", "stale")}
    load.gate.set()
    await asyncio.sleep(0.05)
    assert load.calls == 1
    assert (await cache.swr("k", Counting(), fresh_for=HOUR)).value == "new"


async def test_waiters_on_another_loop_go_on_when_the_loop_of_the_load_ends(cache: Cache) -> None:
    entered = threading.Event()

    async def never() -> None:
        entered.set()
        await asyncio.sleep(3600)

    async def first() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(cache.swr("k", never), 0.2)

    ended = asyncio.ensure_future(_in_thread(lambda: asyncio.run(first())))
    await asyncio.to_thread(entered.wait, 5)
    found = await asyncio.wait_for(cache.swr("k", Counting("mine")), 5)
    assert (found.value, found.status) == ("mine", "miss")
    await ended


async def test_a_loop_that_was_stopped_does_not_hold_up_others(cache: Cache) -> None:
    """Its task is never cancelled, and never goes on."""
    loop = asyncio.new_event_loop()
    entered = threading.Event()

    async def never() -> None:
        entered.set()
        await asyncio.sleep(3600)

    def elsewhere() -> None:
        task = loop.create_task(cache.swr("k", never))
        loop.call_later(0.3, loop.stop)
        loop.run_forever()
        task.cancel()

    thread = asyncio.ensure_future(_in_thread(elsewhere))
    await asyncio.to_thread(entered.wait, 5)
    assert (await asyncio.wait_for(cache.swr("k", Counting("mine")), 5)).value == "mine"
    await thread
    pending = asyncio.all_tasks(loop)
    for task in pending:
        task.cancel()
    await _in_thread(lambda: loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True)))
    loop.close()


async def test_a_refresh_that_fails_is_tried_again_after_a_pause(
    open_told: OpenCache, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    cache = open_told()
    await cache.swr("k", Counting("old"), max_age=HOUR)
    bad = Counting(OSError("down"))
    with caplog.at_level(logging.WARNING, "eventstore.cache"):
        for _ in range(200):
            found = await cache.swr("k", bad, max_age=HOUR)
            assert (found.value, found.status) == ("old", "stale")
            await asyncio.sleep(0.002)
    assert 2 <= bad.calls <= 6
    assert "a refresh failed (OSError); the old value goes on being served" in caplog.text
    clock.advance(3600)
    with pytest.raises(OSError, match="down"):
        await cache.swr("k", bad, max_age=HOUR)
    found = await cache.swr("k", Counting("new"), max_age=HOUR)
    assert (found.value, found.status) == ("new", "expired")


async def test_an_entry_lives_no_longer_than_its_writer_said(open_told: OpenCache, clock: Clock) -> None:
    cache = open_told()
    await cache.swr("k", Counting("old"), max_age=timedelta(seconds=10))
    clock.advance(10)
    found = await cache.swr("k", Counting("new"), fresh_for=HOUR, max_age=HOUR)
    assert (found.value, found.status) == ("new", "expired")


async def test_who_must_wait_does_not_wait_for_a_pause(open_told: OpenCache, clock: Clock) -> None:
    cache = open_told()
    await cache.swr("k", Counting("old"), max_age=HOUR)
    bad = Counting(OSError("down"))
    for _ in range(8):
        await cache.swr("k", bad, max_age=HOUR)
        await asyncio.sleep(0.02)
    clock.advance(3600)
    found = await asyncio.wait_for(cache.swr("k", Counting("new"), max_age=HOUR), 1)
    assert (found.value, found.status) == ("new", "expired")


async def test_a_refresh_that_is_cancelled_leaves_the_key_usable(cache: Cache) -> None:
    await cache.swr("k", Counting("old"))
    load = Gated("never")
    await cache.swr("k", load)
    await load.entered.wait()
    flight = cache._loading._flights.of(cache._digest(Space.SWR, "k"))
    assert flight is not None
    assert flight.task is not None
    flight.task.cancel()
    await until(lambda: not flight.is_alive)
    assert (await cache.swr("k", Counting("new"))).value == "old"
    await until(lambda: cache.shared.find(cache._digest(Space.SWR, "k")).value == b'"new"')


async def test_a_refresh_that_cannot_begin_costs_no_answer(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await cache.swr("k", Counting("old"))

    def refuse(self: Any, *_: Any, **__: Any) -> None:
        raise RuntimeError("cannot schedule new futures after shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(flights_module.Flights, "begin", refuse)
        found = await cache.swr("k", Counting("new"))
    assert (found.value, found.status) == ("old", "stale")
    assert "a refresh could not begin" in caplog.text
    load = Counting("new")
    await cache.swr("k", load)
    await until(lambda: load.calls == 1)


@pytest.mark.parametrize("end", ["mutate", "delete", "peer"])
async def test_a_write_beats_a_load_that_began_earlier(open_told: OpenCache, end: str) -> None:
    cache, peer = open_told(), open_told()
    earlier = await cache.swr("k", Counting("old"))
    load = Gated("loaded")
    await cache.swr("k", load)
    await load.entered.wait()
    if end == "mutate":
        await earlier.mutate("written")
    elif end == "peer":
        await (await peer.swr("k", Counting("x"), fresh_for=HOUR)).mutate("written")
    else:
        await cache.cache_delete("k")
    load.gate.set()
    await until(lambda: cache._loading._flights.of(cache._digest(Space.SWR, "k")) is None)
    found = await cache.swr("k", Counting("later"), fresh_for=HOUR)
    assert (found.value, found.status) == (("later", "miss") if end == "delete" else ("written", "fresh"))


async def test_a_loaded_value_is_returned_when_the_log_cannot_take_it(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise LogUnavailable("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(DisposableLog, "append", full)
        found = await cache.swr("k", Counting("v"))
        assert (found.value, found.status) == ("v", "miss")
        with pytest.raises(LogUnavailable):
            await cache.cache_set("k", 1)
        with pytest.raises(LogUnavailable):
            await found.mutate("w")
        assert found.value == "v"
    assert "a loaded value is not kept" in caplog.text
    assert (await cache.swr("k", Counting("again"))).status == "miss"


async def test_a_loader_that_asks_for_its_own_key_is_told(cache: Cache) -> None:
    async def around() -> Any:
        return (await asyncio.create_task(cache.swr("k", around))).value

    with pytest.raises(InvalidInput, match="this very key"):
        await asyncio.wait_for(cache.swr("k", around), 5)
    assert (await cache.swr("k", Counting("v"))).value == "v"


async def test_last_good_answers_in_an_outage(store: EventStore, cache: Cache) -> None:
    """Searches through the cache: each answer belongs to its own question, and says that it is stale."""
    for user in ("alice", "bob"):
        for number in range(3):
            store.put((user,), f"m{number}", {"text": f"{user} {number}", "n": number})
    down = False

    async def ask(user: str, **question: Any) -> Any:
        async def search() -> Any:
            if down:
                raise ConnectionError("the broker is down")
            return [item.value for item in await store.asearch((user,), **question)]

        return await cache.swr(json.dumps([user, question], sort_keys=True), search, depends_on=[(user,)])

    questions: list[tuple[str, dict[str, Any]]] = [
        (user, question)
        for user in ("alice", "bob")
        for question in ({"limit": 2}, {"limit": 2, "offset": 1}, {"limit": 3, "filter": {"n": 1}})
    ]
    good = [(await ask(user, **question)).value for user, question in questions]
    down = True
    for (user, question), value in zip(questions, good, strict=True):
        found = await ask(user, **question)
        assert (found.value, found.status) == (value, "stale")
        assert all(each["text"].startswith(user) for each in found.value)
    with pytest.raises(ConnectionError):
        await ask("carol", limit=2)


def _in_thread(work: Any) -> Any:
    """A thread of its own: the loop's executor is too small for fifty that wait."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            loop.call_soon_threadsafe(done.set_exception, error)
        else:
            loop.call_soon_threadsafe(done.set_result, result)

    threading.Thread(target=run, daemon=True).start()
    return done
