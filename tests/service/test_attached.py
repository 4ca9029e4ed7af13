"""Stores attached to the view of another process: what they see, when, and what their writes become."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from langgraph.store.base import PutOp

from eventstore import EventStore
from eventstore.errors import (
    IndexMismatch,
    InvalidConfig,
    StoreClosed,
    StoreForked,
    VersionConflict,
    ViewBehind,
)
from projector import directories
from projector.attached import AttachedRuntime
from projector.attached_view import AttachedView
from projector.rebuild import rebuild
from tests.scenarios.kit import ROOT, TinyEmbedder, in_child, index_of, listed, ranked, runtime_of, together
from tests.service.conftest import Open, Run
from tests.service.kit import Place, eventually

QUERIES = ["tea", "coffee", "the sea", "3", ""]
COUNT = """
import sys
from eventstore import EventStore, VersionConflict
log, views, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
with EventStore.open(log, views=views, config={"attach": True}) as store:
    done = 0
    while done < times:
        item = store.get(("shared",), "counter")
        seen = 0 if item is None else item.value["n"]
        version = 0 if item is None else store.history(("shared",), "counter", limit=1)[0].version
        try:
            store.put(("shared",), "counter", {"n": seen + 1}, expected_version=version)
        except VersionConflict:
            continue
        done += 1
"""

KEEP = """
import sys
from eventstore import EventStore
with EventStore.open(sys.argv[1], views=sys.argv[2]):
    print("up", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def keeper(embedded: Place) -> Iterator[EventStore]:
    """A store of this process that keeps the view others attach to."""
    with EventStore.open(embedded.log, views=embedded.views, config={"follow_interval": 0.002}) as store:
        yield store


def attached_view(store: EventStore) -> AttachedView:
    runtime = store._runtime
    assert isinstance(runtime, AttachedRuntime)
    view = runtime.view
    assert isinstance(view, AttachedView)
    return view


def test_own_writes_are_seen_at_once_and_others_within_a_second(
    place: Place, run: Run, opened: Open, tmp_path: Path
) -> None:
    run(place).until_healthy()
    embedder = TinyEmbedder()
    one, two = (opened(place, index=index_of(embedder)) for _ in range(2))
    outside = opened(place, views=tmp_path / "own", index=index_of(embedder))
    for n in range(30):
        namespace = (f"user-{n % 4}", "notes")
        one.put(namespace, str(n), {"t": f"{QUERIES[n % 4]} {n}", "n": n})
        item = one.get(namespace, str(n))
        assert item is not None
        assert item.value["n"] == n
    assert len(one.search((), limit=100)) == len(two.search((), limit=100)) == 30
    one.delete(("user-1", "notes"), "1")
    assert one.get(("user-1", "notes"), "1") is None
    outside.put(("other",), "k", {"t": "tea from outside"})
    assert eventually(lambda: one.get(("other",), "k"), 1.0)
    outside.wait_for(one.position)
    assert listed(one) == listed(outside)
    assert ranked(one, QUERIES) == ranked(outside, QUERIES)
    assert one.list_namespaces() == outside.list_namespaces()
    assert one.position.covers(outside.position) or one.status().applied == outside.status().applied


def test_conditional_writes_have_one_winner(place: Place, run: Run, opened: Open) -> None:
    run(place).until_healthy()
    opened(place).put(("first",), "k", {})
    counting = [
        subprocess.Popen(
            [sys.executable, "-c", COUNT, place.log, str(place.views), "25"],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for each in counting:
        assert each.communicate(timeout=60)[1] == ""
        assert each.returncode == 0
    store = opened(place)
    item = store.get(("shared",), "counter")
    assert item is not None
    assert item.value == {"n": 50}
    kept = [version for version in store.history(("shared",), "counter") if not version.rejected]
    assert [version.version for version in kept] == list(range(50, 0, -1))


def test_a_conflict_names_the_version_that_is_there(
    keeper: EventStore, embedded: Place, opened: Open
) -> None:
    ttl = {"default_ttl": None, "refresh_on_read": False, "omit_expired": True}
    store = opened(embedded, ttl=ttl)
    store.put(("a",), "k", {"n": 1}, expected_version=0)
    for expected, present in ((0, 1), (7, 1)):
        with pytest.raises(VersionConflict) as conflict:
            store.put(("a",), "k", {"n": 2}, expected_version=expected)
        assert conflict.value.current == present
    store.delete(("a",), "k")
    with pytest.raises(VersionConflict) as conflict:
        store.put(("a",), "k", {"n": 2}, expected_version=2)
    assert conflict.value.current == 0
    store.put(("a",), "short", {"n": 1}, ttl=0.0001)
    time.sleep(0.02)
    with pytest.raises(VersionConflict) as conflict:
        store.put(("a",), "short", {"n": 2}, expected_version=1)
    assert conflict.value.current == 0


def test_a_sweep_counts_what_it_deleted(keeper: EventStore, embedded: Place, opened: Open) -> None:
    store = opened(embedded, ttl={"default_ttl": None, "refresh_on_read": True})
    for n in range(5):
        store.put(("a",), str(n), {"n": n}, ttl=0.001)
    store.put(("a",), "kept", {"n": 9}, ttl=60)
    assert store.get(("a",), "kept", refresh_ttl=True) is not None
    time.sleep(0.08)
    assert store.sweep_ttl() == 5
    assert [item.key for item in store.search(("a",))] == ["kept"]
    assert store.sweep_ttl() == 0
    assert [item.key for item in keeper.search(("a",))] == ["kept"]


def test_the_past_is_there_too(keeper: EventStore, embedded: Place, opened: Open) -> None:
    embedder = TinyEmbedder()
    keeper.put(("z",), "no vectors", {"n": 0})
    store = opened(embedded, index=index_of(embedder))
    store.put(("a",), "k", {"t": "tea", "n": 1})
    then = store.position
    store.put(("a",), "k", {"t": "coffee", "n": 2})
    store.restore(("a",), "k", 1)
    assert [version.version for version in store.history(("a",), "k")] == [3, 2, 1]
    assert store.as_of(then).search(("a",), query="tea")[0].value["n"] == 1
    assert [change.key for change in store.changes(follow=False)] == ["no vectors", "k", "k", "k"]
    assert store.diff(then, store.position).changed == []
    with pytest.raises(IndexMismatch):
        opened(embedded, index=index_of(embedder, distance_type="l2"))


def test_coroutines_write_together(keeper: EventStore, embedded: Place, opened: Open) -> None:
    store = opened(embedded)

    async def main() -> None:
        async def one(n: int) -> None:
            await store.aput(("a",), str(n), {"n": n})
            item = await store.aget(("a",), str(n))
            assert item is not None

        await asyncio.gather(*(one(n) for n in range(100)))
        with pytest.raises(VersionConflict):
            await store.aput(("a",), "1", {"n": 0}, expected_version=0)

    asyncio.run(main())
    assert len(store.search(("a",), limit=200)) == 100


def test_a_moment_is_whole_while_its_owner_writes_flushes_and_compacts(
    keeper: EventStore, embedded: Place, opened: Open
) -> None:
    store = opened(embedded)
    done = threading.Event()
    db = runtime_of(keeper).materialized.db

    def writing() -> None:
        for n in range(400):
            same = [PutOp(("same", str(j)), "k", {"n": n}) for j in range(4)]
            keeper.batch([*same, PutOp(("new", str(n % 5)), str(n), {"n": n})])
        done.set()

    def rewriting() -> None:
        while not done.wait(0.02):
            for family in (db.default, db.items, db.recency, db.namespaces, db.history):
                family.flush()
            db.items.compact_range(None, None)

    def reading() -> int:
        reads = last = 0
        while not done.is_set():
            with attached_view(store).read() as view:
                keys = [row.key for row in view.scan(b"")]
                assert len({row.data for row in view.scan(b"\x02same\x00")}) <= 1
                assert view.count(b"") == len(keys) == len(set(view.newest(b"")))
                assert len(keys) >= last
                last, reads = len(keys), reads + 1
        return reads

    *_, first, second = together(writing, rewriting, reading, reading)
    assert first > 5
    assert second > 5
    store.put(("last",), "k", {})
    assert len(store.search(("new",), limit=1_000)) == 400


def test_a_long_read_neither_moves_nor_holds_anybody_up(
    keeper: EventStore, embedded: Place, opened: Open
) -> None:
    store = opened(embedded)
    store.put(("a",), "0", {"n": 0})
    view = attached_view(store)
    with view.read() as early, view.read() as inner:
        for n in range(1, 4):
            store.put(("a",), str(n), {"n": n})
            assert len(store.search(("a",))) == n + 1
        assert early.count(b"") == inner.count(b"") == len(list(early.scan(b""))) == 1
    assert len(view.replicas()) <= 2
    eventually(lambda: len(view.replicas()) == 1)


def test_without_its_projector_reads_go_on_and_writes_say_so(embedded: Place, opened: Open) -> None:
    keeper = EventStore.open(embedded.log, views=embedded.views)
    keeper.put(("a",), "k", {"n": 1})
    store = opened(embedded, config={"wait_timeout": 0.3})
    keeper.close()
    with pytest.raises(ViewBehind, match=r"the write is in the log.*views/0, which no process keeps") as late:
        store.put(("a",), "late", {"n": 2})
    assert "start `projector run`" in str(late.value)
    assert late.value.retriable
    assert asyncio.run(_raised(store)) is ViewBehind
    assert [item.key for item in store.search(("a",))] == ["k"]
    with EventStore.open(embedded.log, views=embedded.views):
        assert eventually(lambda: store.get(("a",), "late"))
        store.put(("a",), "more", {"n": 3})
    assert {item.key for item in store.search(("a",))} == {"k", "late", "async", "more"}


async def _raised(store: EventStore) -> type[BaseException] | None:
    try:
        await store.aput(("a",), "async", {"n": 2})
    except ViewBehind as error:
        return type(error)
    return None


def test_it_moves_to_a_view_that_is_kept(embedded: Place, opened: Open) -> None:
    first = EventStore.open(embedded.log, views=embedded.views)
    first.put(("a",), "k", {"t": "tea"})
    store = opened(embedded, index=index_of(TinyEmbedder()))
    with subprocess.Popen(
        [sys.executable, "-c", KEEP, embedded.log, str(embedded.views)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as second:
        assert second.stdout is not None
        assert second.stdout.readline() == b"up\n"
        assert attached_view(store).home.name == "0"
        first.close()
        store.put(("a",), "own", {"t": "coffee"})
        assert attached_view(store).home.name == "1"
        assert len(store.search(("a",), query="tea")) == 1
        assert store.get(("a",), "k") is not None
        second.communicate(b"", timeout=30)


def test_it_follows_a_rebuild(keeper: EventStore, embedded: Place, opened: Open) -> None:
    store = opened(embedded, index=index_of(TinyEmbedder()))
    for n in range(20):
        store.put(("a",), str(n), {"t": str(n)})
    before = ranked(store, QUERIES)
    with attached_view(store).read() as early:
        assert rebuild(keeper).outcome == "exchanged"
        store.put(("b",), "after", {"t": "tea"})
        assert early.count(b"") == 20
    assert attached_view(store).replicas()[0].folder == directories.current(embedded.views / "0")
    store.delete(("b",), "after")
    assert ranked(store, QUERIES) == before


def test_it_keeps_what_it_shows_while_the_view_is_made_again(embedded: Place, opened: Open) -> None:
    with EventStore.open(embedded.log, views=embedded.views) as keeper:
        for n in range(20):
            keeper.put(("a",), str(n), {"n": n})
    store = opened(embedded)
    (embedded.views / "0" / "damaged").touch()
    with EventStore.open(embedded.log, views=embedded.views):
        assert len(store.search(("a",), limit=100)) == 20
        store.put(("a",), "more", {})
        assert len(store.search(("a",), limit=100)) == 21


def test_what_cannot_be_attached_to_is_refused(embedded: Place, opened: Open, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="no store in"):
        opened(embedded)
    with EventStore.open(embedded.log, views=tmp_path / "own"):
        with pytest.raises(InvalidConfig, match="start `projector run`"):
            opened(embedded)
        assert not embedded.views.exists()
    with pytest.raises(InvalidConfig, match="temporary"):
        EventStore.open("memory:", config={"attach": True})


def test_stores_on_one_place_share_and_end_together(
    keeper: EventStore, embedded: Place, opened: Open
) -> None:
    one, two = opened(embedded), opened(embedded)
    assert one._runtime is two._runtime
    assert one._runtime is not keeper._runtime
    one.close()
    two.put(("a",), "k", {})
    two.close()
    for act in _uses(two):
        with pytest.raises(StoreClosed):
            act()
    assert keeper.get(("a",), "k") is not None


def _uses(store: EventStore) -> list[Callable[[], object]]:
    return [
        lambda: store.get(("a",), "k"),
        lambda: store.search(("a",)),
        lambda: store.put(("a",), "k", {}),
    ]


def test_a_forked_child_is_told(keeper: EventStore, embedded: Place, opened: Open) -> None:
    store = opened(embedded)
    store.put(("a",), "k", {})

    def child() -> None:
        with pytest.raises(StoreForked):
            store.get(("a",), "k")

    assert in_child(child) == 0
    store.put(("a",), "after", {})


def test_latest_waits_for_the_view(keeper: EventStore, embedded: Place, opened: Open) -> None:
    store = opened(embedded, config={"read_consistency": "latest"})
    for n in range(20):
        keeper.put(("a",), str(n), {"n": n})
        assert store.get(("a",), str(n)) is not None


def test_what_it_needs_on_disk_goes_with_it(embedded: Place, opened: Open) -> None:
    with EventStore.open(embedded.log, views=embedded.views) as keeper:
        keeper.put(("a",), "k", {"t": "tea"})
    before = {path.name for path in embedded.views.iterdir()}
    store = opened(embedded, index=index_of(TinyEmbedder()))
    assert {path.name for path in embedded.views.iterdir()} > before
    store.close()
    assert {path.name for path in embedded.views.iterdir()} == before
