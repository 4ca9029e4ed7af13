"""Verify names what differs, where, and never what a memory says; digests are the same for any log."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from eventstore import EventStore
from eventstore.errors import LogDamaged
from eventstore.log import EmbeddedLog
from eventstore.log.base import Chunk, Log, StoredRecord
from eventstore.log.position import Position
from projector.digests import digest
from projector.integrity import verify, verify_at
from projector.projections.vectors import key_of
from projector.rebuild import rebuild
from projector.rocks import Database
from projector.runner import Projector
from projector.view import MaterializedView
from tests.conftest import OpenStore
from tests.operations.samples import fill, sample
from tests.scenarios.kit import ROOT, TinyEmbedder, index_of, runtime_of

SECRET = "Alice's secret is 4711"


def first(db: Any, family: str, prefix: bytes = b"") -> bytes:
    it = getattr(db, family).iter()
    it.seek(prefix)
    assert it.valid()
    return bytes(it.key())


def change(family: str, prefix: bytes = b"") -> Callable[[Database], None]:
    """Flips the last bit of one row's value."""

    def act(db: Database) -> None:
        key = first(db, family, prefix)
        data = bytearray(getattr(db, family).get(key))
        data[-1] ^= 1
        getattr(db, family).put(key, bytes(data))

    return act


def drop(family: str, prefix: bytes = b"") -> Callable[[Database], None]:
    return lambda db: getattr(db, family).delete(first(db, family, prefix))


DRIFTS: dict[str, tuple[str, Callable[[Database], None]]] = {
    "a value changed": ("items", change("items")),
    "a memory lost": ("items", drop("items")),
    "a memory nobody wrote": ("items", lambda db: db.items.put(b"\x02a\x00\x01ghost", b"\x01" + bytes(70))),
    "bytes that are no memory": ("items", lambda db: db.items.put(b"\xff", b"?")),
    "a listing row lost": ("recency", drop("recency")),
    "a listing row nobody wrote": ("recency", lambda db: db.recency.put(b"\x01" + bytes(8) + b"\x01k", b"")),
    "a count off by one": ("namespaces", change("namespaces")),
    "a version changed": ("history", change("history")),
    "a version lost": ("history", drop("history")),
    "a grave lost": ("graves", drop("default", b"g")),
    "an expiry lost": ("expiries", drop("default", b"x")),
    "a writer forgotten": ("writers", drop("default", b"w")),
    "a vector changed": ("vectors", change("vectors")),
    "a vector lost": ("vectors", drop("vectors")),
    "a vector nobody wrote": ("vectors", lambda db: db.vectors.put(key_of(2**40), bytes(60))),
}


@pytest.mark.parametrize("what", DRIFTS)
def test_every_drift_is_found_named_and_repaired(open_store: OpenStore, tmp_path: Path, what: str) -> None:
    store = sample(open_store, 80)
    store.put(("users", "bob"), "soon gone", {"t": "x"}, ttl=60.0)
    store.put(("users", "alice"), SECRET, {"t": SECRET}, ttl=5.0)
    store.delete(("users", "alice"), SECRET)
    clean = digest(store)
    assert verify(store).exit_code == 0
    family, drift = DRIFTS[what]
    drift(runtime_of(store)._view.db)
    report = verify(store)
    assert report.exit_code == 1
    assert report.first is not None
    assert report.first.family == family
    assert report.differences[family] == 1
    assert "text" not in report.first.expected + report.first.found
    (outside,) = verify_at(tmp_path / "store")
    assert outside.first == report.first
    if family != "writers":
        assert digest(store) != clean
    rebuild(store)
    assert digest(store) == clean
    assert verify(store).exit_code == 0


def test_a_difference_says_which_memory_and_where(open_store: OpenStore) -> None:
    store = open_store()
    store.put(("users", "alice"), "city", {"text": SECRET})
    db = runtime_of(store)._view.db
    key = first(db, "items")
    db.items.put(key, db.items.get(key)[:-8] + b'worse!"}')
    found = verify(store).first
    assert found is not None
    assert (found.namespace, found.key, found.position) == (["users", "alice"], "city", "0:0")
    assert "version 1" in found.expected
    assert "other content" in found.found
    assert SECRET not in found.model_dump_json()


def test_the_index_is_held_against_its_vectors(open_store: OpenStore, tmp_path: Path) -> None:
    store = sample(open_store, 60)
    index = runtime_of(store)._view.index
    assert index is not None
    assert verify(store).rows["index"] > 0
    index._delta.vectors[0, 0] += 1
    report = verify(store)
    assert report.exit_code == 1
    assert report.first is not None
    assert (report.first.family, set(report.differences)) == ("index", {"index"})
    index.checkpoint()
    (outside,) = verify_at(tmp_path / "store")
    assert outside.first is not None
    assert outside.first.family == "index"


def test_damage_in_an_old_segment_is_named(open_store: OpenStore, tmp_path: Path) -> None:
    store = sample(open_store, 200, config={"segment_bytes": 4096})
    segments = sorted((tmp_path / "store" / "log").glob("*.seg"))
    assert len(segments) > 3
    data = bytearray(segments[1].read_bytes())
    data[200] ^= 1
    segments[1].write_bytes(bytes(data))
    report = verify(store)
    assert report.exit_code == 2
    assert report.damage is not None
    assert segments[1].name in report.damage
    assert f"offset {int(segments[1].stem)}" in report.damage
    assert store.search(("users",)) != []
    assert [each.exit_code for each in verify_at(tmp_path / "store")] == [2]


def test_damage_behind_the_view_is_found_too(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(config={"segment_bytes": 4096})
    store.put(("a",), "k", {"n": 1})
    store.close()
    with EventStore.open(
        tmp_path / "store", views=tmp_path / "views", config={"segment_bytes": 4096}
    ) as more:
        fill(more, 100)
    second = sorted((tmp_path / "store" / "log").glob("*.seg"))[1]
    data = bytearray(second.read_bytes())
    data[200] ^= 1
    second.write_bytes(bytes(data))
    (report,) = verify_at(tmp_path / "store")
    assert report.differences == {}
    assert report.damage is not None
    assert second.name in report.damage


def test_a_damaged_end_of_the_log_is_an_error(open_store: OpenStore, tmp_path: Path) -> None:
    sample(open_store, 50).close()
    (segment,) = (tmp_path / "store" / "log").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(bytes(data))
    with pytest.raises(LogDamaged, match=segment.name):
        verify_at(tmp_path / "store")


def test_every_view_directory_and_none(open_store: OpenStore, tmp_path: Path) -> None:
    store = sample(open_store, 40)
    beside = "import sys; from eventstore import EventStore; EventStore.open(sys.argv[1]).close()"
    subprocess.run([sys.executable, "-c", beside, tmp_path / "store"], cwd=ROOT, check=True)
    store.put(("later",), "k", {"t": "text"})
    reports = verify_at(tmp_path / "store")
    assert [report.exit_code for report in reports] == [0, 0]
    assert len({report.position for report in reports}) == 2
    views = tmp_path / "store" / "views"
    assert sorted(os.listdir(views)) == ["0", "1"], "a scratch view was left behind"
    (alone,) = verify_at(tmp_path / "store", views=tmp_path / "no views")
    assert (alone.view, alone.exit_code, alone.records) == (None, 0, sum(runtime_of(store).applied))


def test_a_view_that_cannot_be_read_is_a_difference(open_store: OpenStore, tmp_path: Path) -> None:
    sample(open_store, 40).close()
    (tmp_path / "store" / "views" / "0" / "rocksdb" / "CURRENT").write_text("nonsense")
    (report,) = verify_at(tmp_path / "store")
    assert report.exit_code == 1
    assert report.first is not None
    assert report.first.family == "view"


class Shuffled:
    """The history of an embedded log as another log would have it: partitions, offsets, times, order."""

    session = bytes(16)
    location = "another log"
    log_id = "another"
    end_is_local = True

    def __init__(self, records: list[StoredRecord], partitions: int, seed: int) -> None:
        self.partitions = partitions
        random = Random(seed)
        queues: list[list[StoredRecord]] = [[] for _ in range(partitions)]
        for record in records:
            # As the real ones do: by the first label, so that a memory stays in one partition.
            at = sum(record.key.lstrip(b"\x00").split(b"\x00")[1]) % partitions
            queues[at].append(
                record._replace(
                    partition=at,
                    offset=len(queues[at]),
                    appended_us=record.appended_us + 5,
                    session=bytes(16),
                )
            )
        self._chunks: list[Chunk] = []
        reached = [0] * partitions
        while any(reached[at] < len(queues[at]) for at in range(partitions)):
            at = random.choice([at for at in range(partitions) if reached[at] < len(queues[at])])
            record = queues[at][reached[at]]
            reached[at] += 1
            self._chunks.append(Chunk([record._replace(sequence=record.offset + 1)], Position(*reached)))
        self._end = Position(*reached)

    def high_water_mark(self) -> Position:
        return self._end

    def chunks(self, start: Position) -> Iterator[Chunk]:
        yield from self._chunks


@pytest.mark.parametrize("seed", range(3))
def test_equal_histories_have_equal_digests_whatever_the_log(
    open_store: OpenStore, tmp_path: Path, seed: int
) -> None:
    store = open_store(index=index_of(TinyEmbedder()))
    fill(store, 200, seed)
    expected = digest(store)
    log = EmbeddedLog.open(tmp_path / "store" / "log")
    records = [record for group in log.read(0) for record in group]
    log.close()
    for partitions in (1, 3):
        other = Shuffled(records, partitions, seed)
        view = MaterializedView(tmp_path / f"other-{partitions}", other.log_id, 1 << 20)
        (tmp_path / f"other-{partitions}").mkdir(exist_ok=True)
        projector = Projector(cast(Log, other), view)
        projector.catch_up()
        assert digest(view) == expected
        view.close()
