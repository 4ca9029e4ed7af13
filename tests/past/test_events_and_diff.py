"""Versions across memories, and what two moments differ in: S43."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime

import pytest
from langgraph.store.base import PutOp

from eventstore import VersionConflict, acting_as
from eventstore.errors import InvalidInput, InvalidType, NoSuchMoment
from tests.logs import OpenStore

ME = ("users", "me")


def test_the_whole_life_of_one_memory(open_store: OpenStore) -> None:
    """S43: put, update by another agent, expiry, put, delete; a restore makes the sixth event."""
    store = open_store(ttl={})
    started = datetime.now(UTC)
    with acting_as("planner", thread="t1", run="r1"):
        store.put(ME, "plan", {"n": 1})
    with acting_as("critic", thread="t2", run="r2"):
        store.put(ME, "plan", {"n": 2}, ttl=0.0001)
    time.sleep(0.02)
    with acting_as("janitor"):
        assert store.sweep_ttl() == 1
    with acting_as("planner"):
        store.put(ME, "plan", {"n": 3})
        store.delete(ME, "plan")
    past = store.history(ME, "plan")
    assert [(v.version, v.kind, v.offset, v.actor, v.value) for v in past] == [
        (5, "delete", 4, "planner", None),
        (4, "put", 3, "planner", {"n": 3}),
        (3, "expire", 2, "janitor", None),
        (2, "put", 1, "critic", {"n": 2}),
        (1, "put", 0, "planner", {"n": 1}),
    ]
    assert all(started <= v.at <= datetime.now(UTC) and v.at.tzinfo is UTC for v in past)
    assert [v.at for v in past] == sorted((v.at for v in past), reverse=True)
    assert (past[3].thread, past[3].run, past[3].namespace, past[3].key) == ("t2", "r2", ME, "plan")

    first = store.history(ME, "plan", limit=2)
    with acting_as("operator"):
        store.restore(ME, "plan", 2)
    assert store.history(ME, "plan", before=first[-1].offset) == past[2:], "paging is stable"
    newest = store.history(ME, "plan")[0]
    assert (newest.version, newest.kind, newest.restores, newest.actor) == (6, "restore", 2, "operator")
    assert store.get(ME, "plan").value == {"n": 2}  # type: ignore[union-attr]


def test_events_by_cause_prefix_and_time(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    with acting_as("a", run="r1", thread="t1"):
        store.put(ME, "x", {"n": 1})
        store.put(("users", "you"), "x", {"run": "r2", "n": 2})
    with acting_as("b", run="r2", thread="t1"):
        store.put(ME, "y", {"n": 3})
    between = store.history(ME, "y")[0].at
    time.sleep(0.001)
    with acting_as("ö", run="r2"):
        store.delete(ME, "x")
        with pytest.raises(VersionConflict):
            store.put(ME, "y", {"n": 4}, expected_version=9)

    def offsets(prefix: tuple[str, ...] = (), **options: object) -> list[int]:
        return [version.offset for version in store.events(prefix, **options)]  # type: ignore[arg-type]

    assert offsets() == [0, 1, 2, 3, 4]
    assert [v.rejected for v in store.events()] == [False] * 4 + [True]
    assert offsets(ME) == [0, 2, 3, 4]
    assert offsets(("users",)) == [0, 1, 2, 3, 4] and offsets(("user",)) == []
    assert offsets(run_id="r1") == [0, 1]
    assert offsets(run_id="r2") == [2, 3, 4], "a value that says r2 is not a cause"
    assert offsets(run_id="r2", thread_id="t1") == [2]
    assert offsets(actor="ö") == [3, 4] and offsets(actor="nobody") == []
    assert offsets(since=between) == [2, 3, 4] and offsets(until=between) == [0, 1, 2]
    assert offsets(since=between, until=between) == [2]
    assert offsets(limit=2) == [0, 1] and offsets(limit=0) == []
    assert offsets(limit=2, after=1) == [2, 3]
    with pytest.raises(InvalidInput, match="time zone"):
        store.events(since=datetime.now())
    with pytest.raises(InvalidType, match="run_id"):
        store.events(run_id="")
    with pytest.raises(NoSuchMoment):
        store.events(after=17)


def test_pages_of_events_are_whole(open_store: OpenStore) -> None:
    """Batches share a time; pages still neither repeat nor miss an event, refreshes left out."""
    chance = random.Random(3)
    store = open_store(ttl={}, partitions=1)
    for _ in range(40):
        ops = [PutOp(("a",), str(chance.randrange(9)), {"n": 1}, None, 0.005) for _ in range(5)]
        store.batch(ops)
        time.sleep(0.006)
        store.get(("a",), "0", refresh_ttl=True)
        store._expiry.flush()
    whole = store.events()
    assert store.status().end != str(len(whole)), "there were refreshes"
    by_version, by_offset = [], []
    page = store.events(limit=7)
    while page:
        by_version += page
        page = store.events(limit=7, after=page[-1])
    page = store.events(limit=7)
    while page:
        by_offset += page
        page = store.events(limit=7, after=page[-1].offset)
    assert by_version == by_offset == whole
    assert [each.offset for each in whole] == sorted(each.offset for each in whole)


def test_diff_of_two_moments(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    store.put(ME, "kept", {"n": 1})
    store.put(ME, "gone", {"n": 1})
    store.put(ME, "changed", {"deep": {"a": 1, "b": [1, 2, {"c": 3}]}, "same": [1], "old": None})
    store.put(("other",), "changed", {"n": 1})
    before = store.position
    store.put(ME, "changed", {"deep": {"a": True, "b": [1, 5, {"c": 4}, 6]}, "same": [1], "new": None})
    store.put(ME, "kept", {"n": 2})
    store.put(ME, "kept", {"n": 1})
    store.delete(ME, "gone")
    store.put(ME, "born", {"n": 1})
    store.put(("other",), "changed", {"n": 2})
    found = store.diff(before, store.position, ME)
    assert (found.before, found.after) == ("4", "10")
    assert [(each.key, each.version, each.value) for each in found.added] == [("born", 1, {"n": 1})]
    assert [(each.key, each.version, each.value) for each in found.removed] == [("gone", 1, {"n": 1})]
    (changed,) = found.changed
    assert (changed.namespace, changed.key) == (ME, "changed")
    assert (changed.before_version, changed.after_version) == (1, 2)
    assert [(field.path, field.kind, field.before, field.after) for field in changed.fields] == [
        (("deep", "a"), "changed", 1, True),
        (("deep", "b", 1), "changed", 2, 5),
        (("deep", "b", 2, "c"), "changed", 3, 4),
        (("deep", "b", 3), "added", None, 6),
        (("old",), "removed", None, None),
        (("new",), "added", None, None),
    ]
    backwards = store.diff(store.position, before, ME)
    assert [each.key for each in backwards.added] == ["gone"]
    assert [each.key for each in backwards.removed] == ["born"]
    assert len(store.diff(0, store.position).added) == 4
    assert store.diff(5, 5) == store.diff(5, 5, ("nobody",))


def test_diff_sees_what_each_moment_showed(open_store: OpenStore) -> None:
    """An expiry is a removal where expired memories are hidden, though no event says so yet."""
    store = open_store(ttl={"omit_expired": True}, partitions=1)
    store.put(ME, "brief", {"n": 1}, ttl=0.0005)
    born = store.history(ME, "brief")[0].at
    time.sleep(0.04)
    gone = store.diff(born, datetime.now(UTC))
    assert [each.key for each in gone.removed] == ["brief"] and gone.before == gone.after == "1"
