"""The change feed: whole, in order, from any position, whoever writes."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time

import pytest
from langgraph.store.base import PutOp

from eventstore import Change, Position, VersionConflict
from eventstore.errors import NoSuchMoment, StoreClosed, UndecodableEvent
from eventstore.log import Record
from tests.logs import OpenStore, Places, can_be_opened_twice
from tests.scenarios.kit import ROOT, runtime_of

WRITER = """
import sys
from eventstore import EventStore
with EventStore.open(sys.argv[1], views=sys.argv[2]) as store:
    for number in range(int(sys.argv[3])):
        if number % 7 == 3:
            store.delete(("u", str(number % 3)), "k")
        else:
            store.put(("u", str(number % 3)), "k", {"n": number, "from": "other"})
"""


def write_elsewhere(places: Places, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WRITER, places.url(), str(places.views()), str(count)]
    return subprocess.Popen(command, cwd=ROOT)


def facts(changes: list[Change]) -> list[tuple[int, str, int]]:
    return [(change.offset, change.kind, change.version) for change in changes]


def test_a_finite_feed_is_the_log(open_store: OpenStore) -> None:
    store = open_store(ttl={}, partitions=1)
    store.put(("a",), "k", {"n": 1}, ttl=0.01)
    store.put(("ab",), "k", {"n": 2})
    store.delete(("a",), "none")
    with pytest.raises(VersionConflict):
        store.put(("a",), "k", {"n": 3}, expected_version=7)
    time.sleep(0.02)
    store.get(("a",), "k", refresh_ttl=True)
    store._expiry.flush()
    assert store.status().end == "5"
    store.delete(("a",), "k")
    store.restore(("a",), "k", 1)
    changes = list(store.changes(follow=False))
    assert [(c.kind, c.namespace, c.rejected, c.value) for c in changes] == [
        ("put", ("a",), False, {"n": 1}),
        ("put", ("ab",), False, {"n": 2}),
        ("put", ("a",), True, {"n": 3}),
        ("delete", ("a",), False, None),
        ("restore", ("a",), False, {"n": 1}),
    ], "a delete of nothing is void, a refresh no change"
    assert [c.position for c in changes] == [Position(c.offset + 1) for c in changes]
    assert changes[2].model_dump(mode="json")["position"] == "4"
    under = list(store.changes(("a",), follow=False))
    assert under == [change for change in changes if change.namespace == ("a",)]


def test_it_resumes_from_any_position(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    for number in range(30):
        store.put(("a", str(number % 2)), "k", {"n": number})
    whole = list(store.changes(follow=False))
    for start in range(0, 31, 5 if store.status().log.startswith("kafka:") else 1):
        assert list(store.changes(start=start, follow=False)) == whole[start:]
    for change in whole[::7]:
        rest = store.changes(start=str(change.position), follow=False)
        assert list(rest) == whole[change.offset + 1 :]
        assert rest.position == Position(30)
    later = [change for change in whole if change.at > whole[9].at]  # a topic has times to the millisecond
    assert list(store.changes(start=whole[9].at, follow=False)) == later
    with pytest.raises(NoSuchMoment):
        store.changes(start=31)


def test_the_position_passes_over_what_is_not_asked_for(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    store.put(("a",), "k", {})
    for _ in range(10):
        store.put(("b",), "k", {})
    feed = store.changes(("a",), follow=False)
    assert next(feed).position == Position(1)
    assert next(feed, None) is None
    assert feed.position == Position(11)


def test_it_waits_and_ends_with_its_timeout(open_store: OpenStore) -> None:
    store = open_store()
    # A topic has to be connected to first, which may outlast a timeout of zero.
    store.put(("a",), "k", {"n": 0})
    feed = store.changes(timeout=10)
    assert next(feed).value == {"n": 0}
    feed.close()
    feed = store.changes(start=feed.position, timeout=0.3)
    threading.Timer(0.1, lambda: store.put(("a",), "k", {"n": 1})).start()
    assert next(feed).value == {"n": 1}
    began = time.monotonic()
    assert next(feed, None) is None
    assert 0.25 < time.monotonic() - began < 2
    store.put(("a",), "k", {"n": 2})
    assert [change.value for change in store.changes(follow=False)] == [{"n": n} for n in range(3)]
    assert [change.value for change in store.changes(timeout=0)] == [{"n": n} for n in range(3)]


@pytest.mark.parametrize("end", ["store", "feed"])
def test_closing_ends_it(open_store: OpenStore, end: str) -> None:
    store = open_store()
    store.put(("a",), "k", {})
    feed = store.changes()
    next(feed)
    threading.Timer(0.1, store.close if end == "store" else feed.close).start()
    began = time.monotonic()
    assert list(feed) == []
    assert time.monotonic() - began < 2
    if end == "store":
        with pytest.raises(StoreClosed):
            store.changes()


def test_it_reports_what_stopped_the_projection(open_store: OpenStore) -> None:
    """What came before is delivered first."""
    store = open_store()
    store.put(("a",), "k", {"n": 1})
    log = runtime_of(store).log
    log.append([log.prepare([Record(b"\x02a\x00\x01k", b"{}", (("type", b"put/9"), ("id", b"00")))])])
    feed = store.changes(timeout=5)
    assert next(feed).offset == 0
    with pytest.raises(UndecodableEvent, match="offset 1"):
        next(feed)


@can_be_opened_twice
def test_stopping_and_resuming_at_random_misses_nothing(places: Places) -> None:
    """Two processes write; a consumer that is interrupted again and again sees each event once."""
    chance = random.Random(5)
    store = places.open(partitions=1)
    other = write_elsewhere(places, 200)
    seen: list[Change] = []
    position: Position | None = None
    written = 0
    running = True
    while running:
        running = other.poll() is None
        for _ in range(chance.randrange(4)):
            store.put(("u", str(chance.randrange(3))), "k", {"n": written, "from": "here"})
            written += 1
        follow = store.changes(start=position, timeout=chance.choice([0, 0.01, 0.05]))
        for _ in range(chance.randrange(20)):
            change = next(follow, None)
            if change is None:
                break
            seen.append(change)
        position = follow.position if chance.random() < 0.5 or not seen else seen[-1].position
        follow.close()
    assert other.wait() == 0
    seen += store.changes(start=position, follow=False)
    events = store.events()
    assert facts(seen) == [(e.offset, e.kind, e.version) for e in events]
    assert len(events) > 150 + written
    for user in "012":
        numbers = [change.version for change in seen if change.namespace == ("u", user)]
        assert numbers == sorted(set(numbers))


@can_be_opened_twice
def test_coroutines_follow_other_processes(places: Places) -> None:
    store = places.open(partitions=1)
    position: Position | None = None
    seen: list[Change] = []

    async def consume() -> None:
        nonlocal position
        async for change in store.changes(("u",), position, timeout=1.0):
            seen.append(change)
            position = change.position
            if len(seen) % 50 == 0:
                return

    async def main() -> None:
        other = write_elsewhere(places, 120)
        while other.poll() is None or len(seen) % 50 == 0:
            await store.aput(("u", "9"), "k", {"n": 1})
            await consume()

    asyncio.run(main())
    assert facts(seen) == [(e.offset, e.kind, e.version) for e in store.events(("u",))]


def test_a_cancelled_wait_loses_nothing(open_store: OpenStore) -> None:
    store = open_store()

    async def main() -> list[Change]:
        feed = store.changes()
        seen = []
        for number in range(20):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(feed), 0.01)
            await store.aput(("a",), "k", {"n": number})
            seen.append(await asyncio.wait_for(anext(feed), 5))
        feed.close()
        return seen

    seen = asyncio.run(main())
    assert [change.value for change in seen] == [{"n": number} for number in range(20)]


def test_many_feeds_at_once(open_store: OpenStore) -> None:
    """Waiting takes no thread of the loop's pool, so waiting feeds do not hold each other up.

    On a topic each has a connection of its own, and takes a thread while it polls.
    """
    store = open_store()
    feeds, timeout = (5, 2.0) if store.status().log.startswith("kafka:") else (40, 0.5)

    async def count(feed: object) -> int:
        return len([change async for change in feed])  # type: ignore[attr-defined]

    async def main() -> list[int]:
        counts = [asyncio.create_task(count(store.changes(timeout=timeout))) for _ in range(feeds)]
        for number in range(20):
            await store.aput(("a",), str(number), {})
        return await asyncio.gather(*counts)

    assert asyncio.run(main()) == [20] * feeds


def test_a_long_past_is_read_in_steps(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    for first in range(0, 3000, 500):
        store.batch([PutOp(("a",), str(first + at), {"n": at}) for at in range(500)])
    changes = list(store.changes(follow=False))
    assert [change.key for change in changes] == [str(number) for number in range(3000)]
    rest = store.changes(start=changes[2499].position, follow=False)
    assert [change.offset for change in rest] == [change.offset for change in changes[2500:]]
