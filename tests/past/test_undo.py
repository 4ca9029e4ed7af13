"""Restoring a version, and undoing what one run, thread or actor wrote."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from langgraph.store.base import PutOp

from eventstore import EventStore, VersionConflict, acting_as
from eventstore.errors import InvalidInput, InvalidType
from tests.logs import OpenStore, Places
from tests.past.replay import Replayed, records_of
from tests.scenarios.kit import ALL, TinyEmbedder, index_of, ranked, rows

ME = ("me",)


def value(store: EventStore, key: str, namespace: tuple[str, ...] = ME) -> dict[str, Any] | None:
    item = store.get(namespace, key, refresh_ttl=False)
    return None if item is None else item.value


def kinds(store: EventStore, key: str) -> list[tuple[str, int | None, tuple[int, ...]]]:
    return [(v.kind, v.restores, v.reverts) for v in store.history(ME, key)]


# ---------------------------------------------------------------------- restore


def test_a_restore_brings_value_and_vectors_without_a_model(places: Places) -> None:
    embedder = TinyEmbedder()
    store = places.open(index=index_of(embedder))
    store.put(ME, "k", {"t": "tea", "tags": ["rain", "tea"]})
    before = ranked(store, ["tea", "rain"])
    store.put(ME, "k", {"t": "coffee"}, index=False)
    store.delete(ME, "k")
    embedder.failure = RuntimeError("the model is down")
    store.restore(ME, "k", 1)
    embedder.failure = None
    assert value(store, "k") == {"t": "tea", "tags": ["rain", "tea"]}
    assert ranked(store, ["tea", "rain"]) == before
    assert kinds(store, "k")[0] == ("restore", 1, ())
    store.restore(ME, "k", 2)
    assert ranked(store, ["tea"]) == {"tea": []}, "version 2 had no vectors"
    store.restore(ME, "k", 4)
    assert ranked(store, ["tea", "rain"]) == before, "a restore can be restored"
    if places.can_reopen:
        live = rows(store)
        store.close()
        assert rows(places.fresh(index=index_of(embedder))) == live


def test_a_restored_memory_lives_its_ttl_again(open_store: OpenStore) -> None:
    store = open_store(ttl={"omit_expired": True})
    store.put(ME, "k", {"n": 1}, ttl=0.01)
    time.sleep(0.62)
    assert value(store, "k") is None
    store.restore(ME, "k", 1)
    assert value(store, "k") == {"n": 1}
    newest, first = store.history(ME, "k")
    assert newest.expires_at == newest.updated_at + (first.expires_at - first.updated_at)  # type: ignore[operator]
    assert newest.created_at == newest.updated_at, "it had expired, so a new life began"


def test_what_cannot_be_restored(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    store.put(ME, "k", {"n": 1})
    store.delete(ME, "k")
    with pytest.raises(InvalidInput, match="version 2 is of kind delete"):
        store.restore(ME, "k", 2)
    with pytest.raises(InvalidInput, match="no version 3; its newest is 2"):
        store.restore(ME, "k", 3)
    with pytest.raises(InvalidInput, match="its newest is 0"):
        store.restore(ME, "nothing", 1)
    with pytest.raises(InvalidType):
        store.restore(ME, "k", "1")  # type: ignore[arg-type]
    with pytest.raises(VersionConflict) as conflict:
        store.restore(ME, "k", 1, expected_version=1)
    assert conflict.value.current == 0
    store.restore(ME, "k", 1, expected_version=0)
    assert store.position[0] == 4, "the refused restore is in the log too"


def test_rejected_versions_are_not_restored(open_store: OpenStore) -> None:
    """A rejected event carries the number of the version that stood against it."""
    store = open_store()
    store.put(ME, "k", {"n": 1})
    with pytest.raises(VersionConflict):
        store.put(ME, "k", {"n": "rejected"}, expected_version=9)
    store.put(ME, "k", {"n": 2})
    store.restore(ME, "k", 1)
    assert value(store, "k") == {"n": 1}


# ---------------------------------------------------------------------- revert


def poison(store: EventStore, run: str = "bad") -> Any:
    return acting_as("intruder", run=run, thread="t9")


def test_a_run_is_shown_then_undone(open_store: OpenStore) -> None:
    store = open_store()
    store.put(ME, "changed", {"n": 1})
    store.put(ME, "deleted", {"n": 1})
    store.put(ME, "edited", {"n": 1})
    with poison(store):
        store.put(ME, "changed", {"n": "evil"})
        store.put(ME, "changed", {"n": "worse"})
        store.delete(ME, "deleted")
        store.put(ME, "made", {"n": "evil"})
        store.put(ME, "edited", {"n": "evil"})
        store.put(ME, "came and went", {"n": "evil"})
        store.delete(ME, "came and went")
    with acting_as("friend"):
        store.put(ME, "edited", {"n": 2})
    end = store.status().end
    shown = store.revert(run_id="bad")
    assert store.status().end == end, "a dry run appends nothing"
    assert [(each.key, each.undone, each.restored) for each in shown.restored] == [
        ("changed", (2, 3), 1),
        ("deleted", (2,), 1),
    ]
    assert [(each.key, each.undone, each.restored) for each in shown.deleted] == [("made", (1,), None)]
    (conflict,) = shown.conflicts
    assert (conflict.key, conflict.undone, conflict.later, conflict.meanwhile) == (
        "edited",
        (2,),
        (3,),
        False,
    )

    with acting_as("operator"):
        done = store.revert(run_id="bad", dry_run=False)
    assert done == shown.model_copy(update={"dry_run": False})
    assert [value(store, key) for key in ("changed", "deleted", "made", "edited", "came and went")] == [
        {"n": 1},
        {"n": 1},
        None,
        {"n": 2},
        None,
    ]
    newest = store.history(ME, "changed")[0]
    assert (newest.kind, newest.restores, newest.reverts, newest.actor) == ("restore", 1, (2, 3), "operator")
    again = store.revert(run_id="bad", dry_run=False)
    assert (again.restored, again.deleted) == ([], []), "what is undone stays undone"
    assert [each.key for each in again.conflicts] == ["edited"]


def test_causes_combine(open_store: OpenStore) -> None:
    store = open_store()
    for run, thread in (("r1", "t1"), ("r1", "t2"), ("r2", "t1")):
        with acting_as("x", run=run, thread=thread):
            store.put((run, thread), "k", {})
    middle = store.events()[1].at
    with acting_as("x", run="r1"):
        store.put(("late",), "k", {})

    def reverted(*prefix: str, **cause: Any) -> set[tuple[str, ...]]:
        return {each.namespace for each in store.revert(prefix, **cause).deleted}

    assert reverted(run_id="r1") == {("r1", "t1"), ("r1", "t2"), ("late",)}
    assert reverted(thread_id="t1") == {("r1", "t1"), ("r2", "t1")}
    assert reverted(run_id="r1", thread_id="t1") == {("r1", "t1")}
    assert len(reverted(actor="x")) == 4 and reverted(actor="y") == set()
    assert reverted(actor="x", until=middle) == {("r1", "t1"), ("r1", "t2")}
    assert reverted(actor="x", since=middle) == {("r1", "t2"), ("r2", "t1"), ("late",)}
    assert reverted("r1", actor="x") == {("r1", "t1"), ("r1", "t2")}
    with pytest.raises(InvalidInput, match="needs a cause"):
        store.revert(since=middle)


def test_reverts_of_several_runs_in_any_order(open_store: OpenStore) -> None:
    """What one revert put back is not poison's comeback for the next."""
    store = open_store()
    for order in ("ab", "ba"):
        key = f"key {order}"
        store.put(ME, key, {"n": "honest"})
        for run in "ab":
            with poison(store, run):
                store.put(ME, key, {"n": run})
        for run in order:
            store.revert(run_id=run, dry_run=False)
        # Under run a the later write of b is somebody else's, so it takes b's revert first.
        store.revert(run_id="a", dry_run=False)
        assert value(store, key) == {"n": "honest"}, order
        end = store.status().end
        assert store.revert(run_id="b", dry_run=False).restored == []
        assert store.status().end == end


def test_a_restored_poison_is_undone_with_its_run(open_store: OpenStore) -> None:
    store = open_store()
    with poison(store, "a"):
        store.put(ME, "k", {"n": "a"})
    with poison(store, "b"):
        store.put(ME, "k", {"n": "b"})
    assert store.revert(run_id="b", dry_run=False).restored[0].restored == 1
    assert value(store, "k") == {"n": "a"}
    assert store.revert(run_id="a", dry_run=False).deleted[0].undone == (1, 3)
    assert value(store, "k") is None
    assert store.revert(run_id="b", dry_run=False).restored == []


def test_an_honest_restore_of_a_poisoned_version_is_left_alone(open_store: OpenStore) -> None:
    store = open_store()
    with poison(store):
        store.put(ME, "k", {"n": "not so bad"})
    store.revert(run_id="bad", dry_run=False)
    with acting_as("friend"):
        store.restore(ME, "k", 1)
    assert store.revert(run_id="bad", dry_run=False).deleted == []
    assert value(store, "k") == {"n": "not so bad"}


def test_expiries_belong_to_what_expired(open_store: OpenStore) -> None:
    """A poisoned memory that expired uncovers the honest one; an honest one stays expired."""
    store = open_store(ttl={})
    store.put(ME, "covered", {"n": 1})
    store.put(ME, "lapsed", {"n": 1}, ttl=0.0001)
    store.put(ME, "swept", {"n": 1}, ttl=0.0001)
    with poison(store):
        store.put(ME, "covered", {"n": "evil"}, ttl=0.0001)
        store.put(ME, "lapsed", {"n": "evil"})
    time.sleep(0.02)
    assert store.sweep_ttl() == 2
    with poison(store):
        store.put(ME, "swept", {"n": "evil"})
    report = store.revert(run_id="bad", dry_run=False)
    assert [(each.key, each.restored) for each in report.restored] == [("covered", 1)]
    assert [each.key for each in report.deleted] == ["lapsed", "swept"] and not report.conflicts
    assert (value(store, "covered"), value(store, "lapsed"), value(store, "swept")) == ({"n": 1}, None, None)


def test_a_write_in_between_wins(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memory written after it was judged is reported, not overwritten."""
    store = open_store()
    store.put(ME, "a", {"n": 1})
    store.put(ME, "b", {"n": 1})
    with poison(store):
        for key in "abc":
            store.put(ME, key, {"n": "evil"})
    compensate = store._compensate

    def late(verdicts: Any) -> Any:
        store.put(ME, "a", {"n": "meanwhile"})
        store.delete(ME, "c")
        return compensate(verdicts)

    monkeypatch.setattr(store, "_compensate", late)
    report = store.revert(run_id="bad", dry_run=False)
    assert [each.key for each in report.restored] == ["b"] and report.deleted == []
    assert [(each.key, each.later, each.meanwhile) for each in report.conflicts] == [
        ("a", (3,), True),
        ("c", (), True),
    ]
    assert (value(store, "a"), value(store, "b"), value(store, "c")) == ({"n": "meanwhile"}, {"n": 1}, None)
    assert store.history(ME, "a")[0].rejected


def test_a_large_run_is_undone(open_store: OpenStore) -> None:
    store = open_store()
    with poison(store):
        store.batch([PutOp(ME, str(number), {"n": number}) for number in range(1200)])
    report = asyncio.run(store.arevert(run_id="bad", dry_run=False))
    assert len(report.deleted) == 1200 and store.search(()) == []


def test_revert_is_cheap_to_ask_for(open_store: OpenStore) -> None:
    store = open_store()
    assert store.revert(run_id="none", since=datetime(2020, 1, 1, tzinfo=UTC)).restored == []


@pytest.mark.parametrize("seed", range(4))
def test_the_view_is_that_of_a_replay_without_the_run(
    places: Places, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Poisoned and honest writes at random: values and scores are those of the honest events alone."""
    chance = random.Random(seed)
    options: dict[str, Any] = {"index": index_of(TinyEmbedder())}
    store = places.open(**options)
    for _ in range(150):
        poisoned = chance.random() < 0.4
        run = "bad" if poisoned else chance.choice("xy")
        written = [
            ((chance.choice("ab"),), str(chance.randrange(40))) for _ in range(chance.choice([1, 1, 3]))
        ]
        with acting_as("someone", run=run):
            store.batch(
                [
                    PutOp(*place, None)
                    if chance.random() < 0.25
                    else PutOp(*place, {"t": chance.choice(("tea", "rain", "milk")), "by": run})
                    for place in written
                ]
            )
    honest = [each for each in records_of(store) if ("run", b"bad") not in each.headers]
    report = store.revert(run_id="bad", dry_run=False)
    assert report.restored and report.deleted and report.conflicts
    replayed = Replayed(monkeypatch, places.partitions, **options)
    replayed.replay(honest)
    try:
        expected = {(i.namespace[0], i.key): i.value for i in replayed.store.search((), limit=ALL)}
        found = {(i.namespace[0], i.key): i.value for i in store.search((), limit=ALL)}
        assert found == expected
        assert ranked(store, ["tea", "rain"]) == ranked(replayed.store, ["tea", "rain"])
        assert not any(each.value["by"] == "bad" for each in store.search((), limit=ALL))
    finally:
        replayed.close()
        store.close()
