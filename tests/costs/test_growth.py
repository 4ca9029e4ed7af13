"""What was updated and deleted leaves nothing that a scan would have to pass, however much it was."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import pytest
from langgraph.store.base import PutOp

from eventstore import EventStore
from projector import rocks
from projector.rocks import LOOK_ROWS, MOST_DELETIONS, SCANNED, Database
from projector.runtime import runtime_of
from tests.costs.counting import Counted

MANY = 5_000
UPDATES = 1_500
SECONDS = 30.0


def deletions(db: Database) -> dict[str, int]:
    """By family: how many are in the memory table that is written to."""
    counted = "rocksdb.num-deletes-active-mem-table"
    return {name: getattr(db, name).property_int_value(counted) or 0 for name in SCANNED}


def filed(db: Database, name: str) -> int:
    """How many deletions the files of a family hold."""
    text = getattr(db, name).property_value("rocksdb.aggregated-table-properties")
    found = dict(each.strip().split("=", 1) for each in text.split(";") if "=" in each)
    return int(found["# deletions"])


def until_compacted(db: Database) -> dict[str, int]:
    """Deletions left in files once compaction, which goes on in the background, had its time."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        left = {name: filed(db, name) for name in SCANNED}
        if max(left.values()) <= 2 * MOST_DELETIONS:
            break
        time.sleep(0.05)
    return left


def wal_bytes(folder: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return sum(path.stat().st_size for path in folder.glob("*.log"))
    return sys.maxsize  # one was removed while it was looked at


@pytest.fixture
def store(tmp_path: Path) -> EventStore:
    return EventStore.open(tmp_path / "store")


def test_a_hot_memory_leaves_few_deletions_before_its_neighbours(store: EventStore) -> None:
    with store:
        db = runtime_of(store).materialized.db
        store.batch([PutOp(("u", "m"), f"k{number}", {"n": number}) for number in range(40)])
        most = 0
        for number in range(UPDATES):
            store.put(("u", "m"), "k0", {"n": number})
            most = max(most, deletions(db)["recency"])
        # They are counted after so many rows, of which one update writes three that are deletions.
        assert most <= MOST_DELETIONS + LOOK_ROWS
        assert max(until_compacted(db).values()) <= 2 * MOST_DELETIONS
        assert [hit.key for hit in store.search(("u", "m"), limit=3)] == ["k0", "k1", "k10"]
        assert len(store.history(("u", "m"), "k0")) == UPDATES + 1


def test_deleted_memories_and_namespaces_leave_few_deletions(store: EventStore) -> None:
    with store:
        db = runtime_of(store).materialized.db
        for value in ({"n": 0}, None):
            for start in range(0, MANY, 500):
                numbers = range(start, start + 500)
                store.batch([PutOp(("u", "m"), f"k{number}", value) for number in numbers])
                store.batch([PutOp(("u", f"n{number}"), "k", value) for number in numbers])
        assert max(deletions(db).values()) <= MOST_DELETIONS
        assert max(until_compacted(db).values()) <= 2 * MOST_DELETIONS
        store.put(("u", "m"), "only", {"n": 1})
        assert [hit.key for hit in store.search(("u",), limit=10)] == ["only"]
        assert store.list_namespaces() == [("u", "m")]


def test_a_listing_in_a_namespace_of_deleted_memories_is_no_more_steps_than_in_a_new_one(
    counted: Counted,
) -> None:
    store = counted.store
    for value in ({"n": 0}, None):
        store.batch([PutOp(("u", "m"), f"k{number}", value, False) for number in range(2_000)])
    for top in ("u", "new"):
        store.batch([PutOp((top, "m"), f"left{number}", {"n": number}, False) for number in range(5)])
    used, new = ([
        counted.of(lambda: store.search((top, "m"), limit=10)),  # noqa: B023
        counted.of(lambda: store.search((top,), filter={"n": 3})),  # noqa: B023
        counted.of(lambda: store.list_namespaces(prefix=(top,))),  # noqa: B023
    ] for top in ("u", "new"))  # fmt: skip
    assert used == new


def test_what_an_open_may_have_to_replay_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rocks, "WAL_BYTES", 1 << 20)
    with EventStore.open(tmp_path / "store") as store:
        folder = runtime_of(store).materialized.directory / "rocksdb"
        for number in range(60):
            store.put(("u", "m"), f"k{number}", {"text": "x" * 200_000})
        # Memory tables are written out in the background; a write looks whether it is time to.
        end = time.monotonic() + SECONDS
        while (left := wal_bytes(folder)) > 3 << 20 and time.monotonic() < end:
            store.put(("u", "m"), "k0", {})
            time.sleep(0.05)
        assert left <= 3 << 20
