"""What a store does, asked from outside, the same on every log."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)

from eventstore import EventStore, VersionConflict, acting_as
from eventstore.errors import InvalidFilter, InvalidInput, InvalidType, ViewBehind
from tests.logs import OpenStore, Places, can_be_opened_twice
from tests.scenarios.kit import TinyEmbedder, index_of

ME = ("users", "me")


def keys(found: list[Any]) -> list[str]:
    return [item.key for item in found]


# ---------------------------------------------------------------------- memories


def test_put_get_update_delete_and_their_times(open_store: OpenStore) -> None:
    store = open_store()
    began = datetime.now(UTC)
    assert store.get(ME, "k") is None
    store.put(ME, "k", {"n": 1, "deep": {"list": [1, None, "é"]}})
    first = store.get(ME, "k")
    assert (first.namespace, first.key, first.value) == (ME, "k", {"n": 1, "deep": {"list": [1, None, "é"]}})
    assert began <= first.created_at == first.updated_at <= datetime.now(UTC)
    store.put(ME, "k", {"n": 2})
    second = store.get(ME, "k")
    assert second.value == {"n": 2} and second.created_at == first.created_at
    assert second.updated_at > first.updated_at
    store.delete(ME, "k")
    store.delete(ME, "k")
    assert store.get(ME, "k") is None and store.list_namespaces() == []
    store.put(ME, "k", {"n": 3})
    assert store.get(ME, "k").created_at > second.updated_at, "a new life"


def test_what_is_refused_changes_nothing(open_store: OpenStore) -> None:
    store = open_store()
    for namespace in ((), ("",), ("a.b",), ("langgraph",)):
        with pytest.raises(InvalidNamespaceError):
            store.put(namespace, "k", {})
    for value in ({"n": float("nan")}, {"n": {1}}):
        with pytest.raises((InvalidInput, InvalidType)):
            store.batch([PutOp(ME, "good", {}), PutOp(ME, "k", value)])
    assert store.search(()) == [] and not any(store.position)


def test_a_batch_reads_first_and_writes_all_at_once(open_store: OpenStore) -> None:
    store = open_store()
    store.put(ME, "old", {"n": 0})
    users = [(f"user{n}",) for n in range(6)]
    puts = [PutOp(user, "k", {"n": n}) for n, user in enumerate(users)]
    results = store.batch(
        [
            *puts,
            PutOp(ME, "twice", {"n": 1}),
            PutOp(ME, "twice", {"n": 2}),
            PutOp(ME, "old", None),
            GetOp(ME, "old"),
            GetOp(users[0], "k"),
            SearchOp(()),
            ListNamespacesOp(),
        ]
    )
    assert results[:9] == [None] * 9
    assert results[9].value == {"n": 0} and results[10] is None
    assert keys(results[11]) == ["old"] and results[12] == [ME]
    after = store.batch([GetOp(user, "k") for user in users] + [GetOp(ME, "twice"), GetOp(ME, "old")])
    assert [item and item.value["n"] for item in after] == [0, 1, 2, 3, 4, 5, 2, None]
    assert store.batch([]) == []


# ---------------------------------------------------------------------- search


FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "abcd"),
    ({"n": 1}, "a"),
    ({"n": {"$eq": 1}}, "a"),
    ({"n": {"$ne": 1}}, "bc"),
    ({"n": {"$gt": 1}}, "bc"),
    ({"n": {"$gte": 2, "$lt": 3}}, "b"),
    ({"n": {"$lte": 1}}, "a"),
    ({"s": {"$in": ["x", "z"]}}, "ac"),
    ({"s": {"$nin": ["x", "z"]}}, "bd"),
    ({"n": {"$exists": False}}, "d"),
    ({"tags": {"$contains": "red"}}, "ab"),
    ({"tags": ["red"]}, "a"),
    ({"deep": {"m": True}}, "c"),
    ({"$or": [{"n": 1}, {"s": "z"}]}, "ac"),
    ({"$and": [{"n": {"$gt": 1}}, {"s": "y"}]}, "b"),
    ({"$not": {"n": {"$exists": True}}}, "d"),
    ({"n": 1, "s": "y"}, ""),
]


@pytest.fixture
def filled(open_store: OpenStore) -> EventStore:
    store = open_store()
    store.put(ME, "a", {"n": 1, "s": "x", "tags": ["red"]})
    store.put(ME, "b", {"n": 2, "s": "y", "tags": ["red", "blue"]})
    store.put(("users", "you"), "c", {"n": 3, "s": "z", "deep": {"m": True}})
    store.put(("userspace",), "d", {"s": "w"})
    return store


def test_filters(filled: EventStore) -> None:
    found = filled.batch([SearchOp((), wanted) for wanted, _ in FILTERS])
    for (wanted, expected), items in zip(FILTERS, found, strict=True):
        assert "".join(sorted(keys(items))) == expected, wanted
    with pytest.raises(InvalidFilter):
        filled.search((), filter={"n": {"$almost": 1}})


def test_prefixes_order_and_pages(filled: EventStore) -> None:
    assert keys(filled.search(())) == ["d", "c", "b", "a"], "most recently updated first"
    assert keys(filled.search(("users",))) == ["c", "b", "a"], "labels are whole"
    assert keys(filled.search(("users", "*"))) == []
    filled.put(ME, "a", {"n": 1})
    assert keys(filled.search(())) == ["a", "d", "c", "b"]
    # One batch, so one time as far as anybody can tell: pages neither repeat nor miss one.
    filled.batch([PutOp((f"p{n % 7}",), f"k{n:02}", {"page": 1}) for n in range(57)])
    whole = filled.search((), filter={"page": 1}, limit=100)
    pages = [filled.search((), filter={"page": 1}, limit=10, offset=at) for at in range(0, 60, 10)]
    assert [item for page in pages for item in page] == whole and len({*whole}) == 57
    order = [(-item.updated_at.timestamp(), item.namespace, item.key) for item in whole]
    assert order == sorted(order)
    assert len(filled.search((), filter={"page": 1})) == 10
    assert filled.search((), limit=0) == [] == filled.search((), offset=1000)
    with pytest.raises(InvalidInput):
        filled.search((), limit=-1)


def test_namespaces(open_store: OpenStore) -> None:
    store = open_store()
    names = [("a", "b", "c"), ("a", "b", "d"), ("a", "x", "c"), ("b", "x"), ("ab",)]
    store.batch([PutOp(name, "k", {}) for name in names])
    assert store.list_namespaces() == sorted(names)
    assert store.list_namespaces(prefix=("a", "*", "c")) == [names[0], names[2]]
    assert store.list_namespaces(suffix=("x",)) == [("b", "x")]
    assert store.list_namespaces(suffix=("x", "*")) == [("a", "x", "c")]
    assert store.list_namespaces(prefix=("a",), max_depth=2) == [("a", "b"), ("a", "x")]
    assert store.list_namespaces(max_depth=1, limit=2, offset=1) == [("ab",), ("b",)]
    conditions = (MatchCondition("prefix", ("a",)), MatchCondition("suffix", ("c",)))
    assert store.batch([ListNamespacesOp(conditions)]) == [[names[0], names[2]]]


# ---------------------------------------------------------------------- meaning


def test_search_by_meaning(open_store: OpenStore) -> None:
    embedder = TinyEmbedder()
    store = open_store(index=index_of(embedder))
    store.put(ME, "one", {"t": "tea", "n": 1})
    store.put(("users", "you"), "many", {"t": "rain", "tags": ["milk", "tea"], "n": 2})
    store.put(ME, "other fields", {"t": "tea", "tags": ["coffee"], "n": 3}, index=["tags[*]"])
    store.put(ME, "unindexed", {"t": "tea", "n": 4}, index=False)
    store.put(ME, "no text", {"n": 5})
    hits = store.search((), query="tea", limit=9)
    assert keys(hits)[:2] == ["one", "many"], "equal scores go by namespace and key"
    assert [hit.score for hit in hits[:2]] == pytest.approx([1.0, 1.0]), "the best of a memory's vectors"
    assert {*keys(hits)} == {"one", "many", "other fields"}
    assert keys(store.search(ME, query="tea", filter={"n": {"$lt": 3}})) == ["one"]
    assert keys(store.search((), query="tea", limit=1, offset=1)) == ["many"]
    assert {*keys(store.search(ME))} == {"one", "other fields", "unindexed", "no text"}
    store.put(ME, "one", {"t": "coffee"})
    store.delete(("users", "you"), "many")
    assert store.search(ME, query="coffee")[0].key in ("one", "other fields")
    assert "many" not in keys(store.search((), query="tea"))


@can_be_opened_twice
def test_a_fresh_view_ranks_alike_and_asks_no_model(places: Places) -> None:
    store = places.open(index=index_of(TinyEmbedder()))
    store.batch([PutOp((f"u{n % 4}",), str(n), {"t": f"text {n % 9}", "tags": [str(n)]}) for n in range(40)])
    store.put(("u1",), "1", {"t": "text 8"})
    ranked = [(hit.key, hit.score) for hit in store.search((), query="text 8", limit=50)]
    listed = store.search((), limit=50)
    store.close()
    embedder = TinyEmbedder()
    fresh = places.fresh(index=index_of(embedder))
    assert [(hit.key, hit.score) for hit in fresh.search((), query="text 8", limit=50)] == ranked
    assert fresh.search((), limit=50) == listed
    assert (embedder.documents, embedder.queries) == (0, 1)


# ---------------------------------------------------------------------- expiry


def test_expiry(open_store: OpenStore) -> None:
    store = open_store(ttl={"default_ttl": 10, "omit_expired": True, "refresh_on_read": False})
    store.put(ME, "default", {"n": 1})
    store.put(ME, "forever", {"n": 2}, ttl=None)
    store.put(ME, "brief", {"n": 3}, ttl=0.0001)
    time.sleep(0.02)
    assert store.get(ME, "brief") is None and {*keys(store.search(()))} == {"default", "forever"}
    assert store.sweep_ttl() == 1 and store.sweep_ttl() == 0
    newest = store.history(ME, "brief")[0]
    assert (newest.kind, newest.version) == ("expire", 2)
    expiries = [store.history(ME, key)[0].expires_at for key in ("default", "forever")]
    assert expiries[0] is not None and expiries[1] is None


def test_expired_memories_are_there_until_they_are_swept(open_store: OpenStore) -> None:
    store = open_store(ttl={})
    store.put(ME, "brief", {"n": 1}, ttl=0.0001)
    time.sleep(0.02)
    assert store.get(ME, "brief", refresh_ttl=False) is not None
    assert store.sweep_ttl() == 1
    assert store.get(ME, "brief") is None


def test_a_read_refreshes(open_store: OpenStore) -> None:
    store = open_store(ttl={"omit_expired": True})
    store.put(ME, "k", {"n": 1}, ttl=0.01)
    time.sleep(0.3)
    assert store.get(ME, "k", refresh_ttl=True) is not None
    time.sleep(0.4)
    assert store.get(ME, "k", refresh_ttl=False) is not None, "beyond the first 0.6 s"
    assert len(store.history(ME, "k")) == 1, "a refresh is no version"


# ---------------------------------------------------------------------- versions


def test_conditions(open_store: OpenStore) -> None:
    store = open_store()
    store.put(ME, "k", {"n": 1}, expected_version=0)
    store.put(ME, "k", {"n": 2}, expected_version=1)
    for expected in (0, 1, 3):
        with pytest.raises(VersionConflict) as conflict:
            store.put(ME, "k", {"n": "lost"}, expected_version=expected)
        assert conflict.value.current == 2
    assert store.get(ME, "k").value == {"n": 2}
    assert [(v.version, v.rejected) for v in store.history(ME, "k")] == [(2, True)] * 3 + [
        (2, False),
        (1, False),
    ]


def test_history_tells_what_who_and_when(open_store: OpenStore) -> None:
    store = open_store(actor="store")
    store.put(ME, "k", {"n": 1})
    with acting_as("ann", run="r", thread="t"):
        store.put(ME, "k", {"n": 2})
    store.delete(ME, "k")
    store.restore(ME, "k", 1)
    told = [(v.version, v.kind, v.actor, v.run, v.thread, v.value) for v in store.history(ME, "k")]
    assert told == [
        (4, "restore", "store", None, None, {"n": 1}),
        (3, "delete", "store", None, None, None),
        (2, "put", "ann", "r", "t", {"n": 2}),
        (1, "put", "store", None, None, {"n": 1}),
    ]
    newest = store.history(ME, "k", limit=2)
    assert store.history(ME, "k", before=newest[-1].offset) == store.history(ME, "k")[2:]
    assert store.history(ME, "nothing") == []


# ---------------------------------------------------------------------- positions and company


def test_positions(open_store: OpenStore) -> None:
    store = open_store()
    assert not any(store.position)
    store.put(ME, "k", {"n": 1})
    then = store.position
    store.batch([PutOp(("you",), "k", {"n": 2}), PutOp(ME, "k", {"n": 3})])
    assert store.position.covers(then) and store.position != then
    store.wait_for(store.position)
    store.wait_for(str(then))
    with pytest.raises(ViewBehind):
        store.wait_for(",".join(str(offset + 100) for offset in store.position), timeout=0.1)
    assert store.as_of(then).get(ME, "k").value == {"n": 1}
    assert store.as_of(then).get(("you",), "k") is None
    assert store.as_of(store.position).get(ME, "k").value == {"n": 3}


@can_be_opened_twice
def test_two_stores_on_one_log(places: Places) -> None:
    one, two = places.open(), places.fresh()
    for n in range(10):
        one.put((f"u{n % 4}",), "k", {"n": n})
    two.wait_for(one.position)
    assert two.search((), limit=20) == one.search((), limit=20)
    two.put(("u1",), "k", {"n": "two"}, expected_version=3)
    one.wait_for(two.position)
    assert one.get(("u1",), "k").value == {"n": "two"}
    assert one.history(("u1",), "k") == two.history(("u1",), "k")


def test_two_logs_are_two_stores(open_store: OpenStore) -> None:
    one, two = open_store(sub="one"), open_store(sub="two")
    one.put(ME, "k", {"n": 1})
    assert two.get(ME, "k") is None


def test_coroutines(open_store: OpenStore) -> None:
    store = open_store(index=index_of(TinyEmbedder()), ttl={})

    async def main() -> None:
        await asyncio.gather(*(store.aput((f"u{n % 5}",), str(n), {"t": "tea", "n": n}) for n in range(20)))
        assert len(await store.asearch((), limit=50)) == 20
        assert len(await store.asearch(("u1",), query="tea")) == 4
        got, _, names = await store.abatch(
            [GetOp(("u0",), "0"), PutOp(("u0",), "0", None), ListNamespacesOp()]
        )
        assert got.value["n"] == 0 and len(names) == 5
        assert await store.aget(("u0",), "0") is None
        await store.adelete(("u0",), "5")
        with pytest.raises(VersionConflict):
            await store.aput(("u1",), "1", {}, expected_version=0)
        await store.aput(("u1",), "1", {}, ttl=0.0001)
        await asyncio.sleep(0.02)
        assert await store.asweep_ttl() == 1
        assert len(await store.alist_namespaces(prefix=("u*",))) == 0

    asyncio.run(main())
    assert len(store.search((), limit=50)) == 17
