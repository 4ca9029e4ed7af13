"""The store on a topic behaves as on the embedded log, in one process and between several views."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp

from eventstore.errors import VersionConflict, ViewBehind
from tests.kafka.kit import ALL, Place, indexed, keys_in, runtime_of, state, within


def test_what_is_put_is_read_at_once(place: Place) -> None:
    store = place.open()
    for n in range(30):
        store.put(("u", str(n % 3)), f"k{n}", {"n": n})
        assert store.get(("u", str(n % 3)), f"k{n}").value == {"n": n}
    store.delete(("u", "0"), "k0")
    assert store.get(("u", "0"), "k0") is None
    assert [item.key for item in store.search(("u", "1"), limit=3)] == ["k28", "k25", "k22"]
    assert keys_in(store, "u") == {f"k{n}" for n in range(1, 30)}
    assert store.list_namespaces(prefix=("u",)) == [("u", "0"), ("u", "1"), ("u", "2")]


def test_search_by_filter_and_by_meaning(place: Place) -> None:
    store = place.open(index=indexed())
    for n, text in enumerate(["red", "blue green", "red", "yellow"]):
        store.put((f"user{n}",), "k", {"t": text, "n": n})
    hits = store.search((), query="red", limit=4)
    assert {hits[0].namespace, hits[1].namespace} == {("user0",), ("user2",)}
    assert hits[0].score == hits[1].score == pytest.approx(1.0)
    assert [hit.namespace for hit in store.search((), filter={"n": {"$gte": 3}})] == [("user3",)]


def test_a_batch_is_all_or_nothing_and_seen_at_once(place: Place) -> None:
    store = place.open()
    store.batch([PutOp((f"user{n}",), "k", {"n": n}) for n in range(12)])
    read = store.batch([GetOp((f"user{n}",), "k") for n in range(12)] + [SearchOp((), limit=20)])
    assert [item.value["n"] for item in read[:12]] == list(range(12))
    assert len(read[12]) == 12
    # A marker of the transaction stands behind each partition's records.
    assert sum(store.position) > 12 or within(5, lambda: sum(runtime_of(store).applied) > 12)
    store.put(("user1",), "k", {"n": -1})
    assert store.get(("user1",), "k").value == {"n": -1}


def test_conditions_have_one_winner(place: Place) -> None:
    one, two = place.open("one"), place.open("two")
    one.put(("u",), "k", {"n": 1}, expected_version=0)
    with pytest.raises(VersionConflict) as conflict:
        two.put(("u",), "k", {"n": 2}, expected_version=0)
    assert conflict.value.current == 1

    def count(store: object) -> None:
        for _ in range(10):
            while True:
                seen = store.history(("u",), "counter")
                now = next((version for version in seen if not version.rejected), None)
                try:
                    store.put(
                        ("u",),
                        "counter",
                        {"n": now.value["n"] + 1 if now else 1},
                        expected_version=now.version if now else 0,
                    )
                except VersionConflict:
                    continue
                break

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(count, one), pool.submit(count, two)]:
            done.result(60)
    one.wait_for(two.position)
    assert one.get(("u",), "counter").value == {"n": 20}


def test_time_to_live(place: Place) -> None:
    store = place.open(ttl={"refresh_on_read": True, "omit_expired": True})
    store.put(("u",), "short", {"n": 1}, ttl=0.0001)
    store.put(("u",), "long", {"n": 2}, ttl=10)
    assert within(2, lambda: store.get(("u",), "short") is None)
    assert store.sweep_ttl() == 1
    assert keys_in(store, "u") == {"long"}


def test_two_stores_with_views_of_their_own(place: Place) -> None:
    one, two = place.open("one"), place.open("two")
    for n in range(20):
        one.put((f"user{n % 5}",), f"k{n}", {"n": n})
    two.wait_for(one.position, timeout=10)
    assert state(two) == state(one)
    two.put(("user0",), "k0", {"n": "two"})
    one.wait_for(str(two.position), timeout=10)
    assert one.get(("user0",), "k0").value == {"n": "two"}


def test_a_position_nobody_wrote_is_not_waited_for_for_ever(place: Place) -> None:
    store = place.open()
    with pytest.raises(ViewBehind, match="not yet at"):
        store.wait_for("5,5,5", timeout=0.3)


def test_latest_reads_see_what_others_had_acknowledged(place: Place) -> None:
    writer = place.open("one")
    reader = place.open("two", config={"read_consistency": "latest"})
    for n in range(15):
        writer.put((f"user{n % 4}",), "k", {"n": n})
        assert reader.get((f"user{n % 4}",), "k").value == {"n": n}
        writer.batch([PutOp((f"user{user}",), "b", {"n": n}) for user in range(4)])
        assert {reader.get((f"user{user}",), "b").value["n"] for user in range(4)} == {n}


def test_history_and_earlier_moments(place: Place) -> None:
    store = place.open(actor="ann")
    store.put(("u",), "k", {"n": 1})
    then = store.position
    store.put(("u",), "k", {"n": 2})
    store.delete(("u",), "k")
    assert [version.kind for version in store.history(("u",), "k")] == ["delete", "put", "put"]
    past = store.as_of(then)
    assert past.get(("u",), "k").value == {"n": 1}
    at = store.history(("u",), "k")[0].at
    assert store.as_of(at).get(("u",), "k") is None
    changes = list(store.changes(("u",), follow=False))
    assert [change.kind for change in changes] == ["put", "put", "delete"]


def test_reopening_goes_on_where_it_stopped(place: Place) -> None:
    store = place.open(index=indexed())
    store.put(("u",), "k", {"t": "red"})
    before = state(store)
    store.close()
    again = place.open(index=indexed())
    assert state(again) == before
    again.put(("u",), "k2", {"t": "blue"})
    assert len(again.search((), limit=ALL)) == 2


def test_several_event_loops_and_threads(place: Place) -> None:
    store = place.open()

    async def write(who: int) -> None:
        await asyncio.gather(*(store.aput((f"user{who}",), f"k{n}", {"n": n}) for n in range(10)))
        found = await store.asearch((f"user{who}",), limit=20)
        assert len(found) == 10
        await store.abatch([PutOp((f"user{who}",), f"b{n}", {"n": n}) for n in range(3)])

    loops = [threading.Thread(target=lambda who=who: asyncio.run(write(who))) for who in range(4)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(60)
    assert len(store.search((), limit=ALL)) == 4 * 13
