"""The past of a log on a topic, with several partitions and with transactions' markers among the offsets."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from datetime import UTC, datetime

from langgraph.store.base import PutOp

from eventstore import Position, acting_as
from eventstore.feed import Change
from tests.kafka.kit import Place, within
from tests.past.replay import answers
from tests.past.test_as_of import PLACES, act
from tests.scenarios.kit import TinyEmbedder, index_of


def test_every_position_and_time_answers_as_then(place: Place) -> None:
    chance = random.Random(8)
    store = place.open(index=index_of(TinyEmbedder()))
    kept = []
    for _ in range(40):
        act(store, chance)
        # A topic tells times to the millisecond.
        time.sleep(0.003)
        kept.append((Position.of(store.status().applied), datetime.now(UTC), answers(store, PLACES[:4])))
        time.sleep(0.003)
    for position, at, expected in kept:
        if any(position):
            assert answers(store.as_of(position), PLACES[:4]) == expected
            assert answers(store.as_of(at), PLACES[:4]) == expected


def test_expiry_at_a_position(place: Place) -> None:
    store = place.open(ttl={"omit_expired": True})
    store.put(("u",), "brief", {"n": 1}, ttl=0.001)
    alive = store.position
    time.sleep(0.1)
    store.put(("u",), "later", {"n": 2})
    assert store.as_of(alive).get(("u",), "brief") is not None
    assert store.as_of(store.position).get(("u",), "brief") is None


def test_the_feed_follows_another_view(place: Place) -> None:
    one, two = place.open("one"), place.open("two")
    feed = one.changes(timeout=20)
    writing = threading.Thread(target=lambda: [two.put((f"u{n % 4}",), "k", {"n": n}) for n in range(40)])
    writing.start()
    seen = [next(feed) for _ in range(15)]
    feed.close()
    resumed = one.changes(start=seen[-1].position, timeout=20)
    seen += [next(resumed) for _ in range(25)]
    resumed.close()
    writing.join()
    assert sorted(change.value["n"] for change in seen if change.value) == list(range(40))
    for user in range(4):
        versions = [change.version for change in seen if change.namespace == (f"u{user}",)]
        assert versions == list(range(1, 11))
    # Between partitions the order is the reader's own; what is missing after a position is not.
    rest = one.changes(start=seen[19].position, follow=False)
    assert {each.event_id for each in rest} == {each.event_id for each in seen[20:]}


def test_a_feed_whose_time_is_up_holds_no_thread_and_goes_on_later(place: Place) -> None:
    store = place.open()
    store.put(("u",), "k", {"n": 0})
    feed, other = store.changes(timeout=0.2), store.changes(timeout=0.2)

    async def rest() -> list[Change]:
        return [change async for change in other]

    assert [change.value for change in feed] == [{"n": 0}] == [change.value for change in asyncio.run(rest())]
    for number in range(1, 4):
        # One is the store's own.
        assert within(3, lambda: readers() == 1), threading.enumerate()
        store.put((f"u{number}",), "k", {"n": number})
        store.batch([PutOp((f"b{user}",), "k", {"n": number}) for user in range(4)])
        assert sorted(change.namespace for change in feed) == [
            *((f"b{user}",) for user in range(4)),
            (f"u{number}",),
        ]
        assert len(asyncio.run(rest())) == 5
    resumed = store.changes(start=feed.position, timeout=0.2)
    assert list(resumed) == []


def readers() -> int:
    return sum(thread.name.endswith("eventstore-reader") for thread in threading.enumerate())


def test_a_run_is_undone(place: Place) -> None:
    store = place.open(index=index_of(TinyEmbedder()))
    for n in range(6):
        store.put((f"u{n}",), "k", {"t": "tea", "n": n})
    with acting_as("intruder", run="bad"):
        for n in range(0, 8, 2):
            store.put((f"u{n}",), "k", {"t": "rain"})
    store.put(("u2",), "k", {"t": "honest"})
    report = store.revert(run_id="bad", dry_run=False)
    assert [(each.namespace, each.restored) for each in report.restored] == [(("u0",), 1), (("u4",), 1)]
    assert [each.namespace for each in report.deleted] == [("u6",)]
    assert [each.namespace for each in report.conflicts] == [("u2",)]
    assert store.get(("u4",), "k").value == {"t": "tea", "n": 4}
    assert len(store.search((), query="tea", limit=20)) == 6
