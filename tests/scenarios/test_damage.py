"""S07, S28, S29, S37: damaged logs are reported and never cut; damaged views are built again."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore import EventStore
from eventstore.errors import LogDamaged, LogMismatch, ViewDamaged
from projector.vectors import VectorIndex
from tests.conftest import OpenStore
from tests.scenarios.kit import (
    ALL,
    TinyEmbedder,
    flip,
    index_of,
    keys_of,
    listed,
    log_keys,
    ranked,
    rows,
    runtime_of,
    warnings_in,
)

QUERIES = ("tea", "text 3", "rain")
Damage = Callable[[Path], None]


def fill(store: EventStore, count: int = 300) -> None:
    for number in range(count):
        value = {"n": number, "t": f"text {number % 17}", "pad": f"{number}" * 40}
        store.put(("a", str(number % 5)), str(number), value, ttl=1000 if number % 3 == 0 else None)
    for number in range(0, count, 7):
        store.delete(("a", str(number % 5)), str(number))


def dump(store: EventStore) -> tuple[Any, ...]:
    return rows(store), listed(store), ranked(store, QUERIES)


def read_all(store: EventStore) -> tuple[Any, ...]:
    """Everything that can be read through the store itself."""
    items = listed(store)
    past = [store.history(tuple(item["namespace"]), item["key"]) for item in items]
    gets = [store.get(tuple(item["namespace"]), item["key"], refresh_ttl=False) for item in items]
    return items, gets, past, store.list_namespaces(), ranked(store, QUERIES)


# ------------------------------------------------------------------ the log


def test_a_damaged_old_record_is_reported_with_file_and_place_and_nothing_is_cut(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(config={"segment_bytes": 16 * 1024})
    fill(store, 100)
    kept = listed(store)
    store.close()
    first = min((tmp_path / "store" / "log").glob("*.seg"))
    flip(first, 5000)
    damaged = {path.name: path.read_bytes() for path in first.parent.glob("*.seg")}

    # The view was built before the damage, so nothing it serves is missing.
    again = open_store(config={"segment_bytes": 16 * 1024})
    assert listed(again) == kept
    again.close()

    shutil.rmtree(tmp_path / "store" / "views")
    with pytest.raises(LogDamaged) as caught:
        open_store()
    assert str(first) in str(caught.value)
    assert re.search(r"byte \d+", str(caught.value))
    assert {path.name: path.read_bytes() for path in first.parent.glob("*.seg")} == damaged


def test_a_log_that_ends_before_its_view_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    """S22: a log restored from an older copy, under a view that knows more."""
    store = open_store()
    store.put(("a",), "one", {"n": 1})
    store.close()
    shutil.copytree(tmp_path / "store" / "log", tmp_path / "backup")
    store = open_store()
    store.put(("a",), "two", {"n": 2})
    store.close()
    shutil.rmtree(tmp_path / "store" / "log")
    shutil.copytree(tmp_path / "backup", tmp_path / "store" / "log")
    with pytest.raises(LogMismatch, match="rebuilt"):
        open_store()
    shutil.rmtree(tmp_path / "store" / "views")
    assert keys_of(open_store()) == {"one"}


def test_another_log_under_the_same_view_is_refused(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put(("a",), "one", {"n": 1})
    store.close()
    shutil.rmtree(tmp_path / "store" / "log")
    with pytest.raises(LogMismatch, match="log"):
        open_store()


# ------------------------------------------------------------------ the view


def _one_of(pattern: str, act: Damage) -> Damage:
    def damage(view: Path) -> None:
        found = sorted((view / "rocksdb").glob(pattern), key=lambda path: path.stat().st_size)
        act(found[-1])

    return damage


def _overwrite_all(pattern: str) -> Damage:
    def damage(view: Path) -> None:
        for path in (view / "rocksdb").glob(pattern):
            path.write_bytes(b"\xa5" * path.stat().st_size)

    return damage


VIEW_DAMAGE: dict[str, Damage] = {
    "no manifest": _one_of("MANIFEST-*", Path.unlink),
    "garbage manifest": _one_of("MANIFEST-*", lambda path: path.write_bytes(b"garbage" * 100)),
    "empty manifest": _one_of("MANIFEST-*", lambda path: path.write_bytes(b"")),
    "garbage CURRENT": _one_of("CURRENT", lambda path: path.write_bytes(b"garbage\n")),
    "empty CURRENT": _one_of("CURRENT", lambda path: path.write_bytes(b"")),
    "a table gone": _one_of("*.sst", Path.unlink),
    "tables overwritten": _overwrite_all("*.sst"),
    "a table cut": _one_of("*.sst", lambda path: path.write_bytes(path.read_bytes()[:100])),
    "a table empty": _one_of("*.sst", lambda path: path.write_bytes(b"")),
}


@pytest.mark.parametrize("name", VIEW_DAMAGE)
def test_a_destroyed_view_is_rebuilt_and_says_so(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    store = open_store(index=index_of(TinyEmbedder()))
    fill(store, 150)
    before = dump(store)
    store.close()
    VIEW_DAMAGE[name](tmp_path / "store" / "views" / "0")
    again = open_store(index=index_of(TinyEmbedder()))
    assert "rebuilding the view" in warnings_in(caplog)
    assert "log, which is intact" in warnings_in(caplog)
    assert dump(again) == before


def _nothing_left(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


@pytest.mark.parametrize("part", ["rocksdb", "vectors", ""])
def test_an_emptied_folder_is_filled_again(open_store: OpenStore, tmp_path: Path, part: str) -> None:
    store = open_store(index=index_of(TinyEmbedder()))
    fill(store, 150)
    before = dump(store)
    store.close()
    _nothing_left(tmp_path / "store" / "views" / "0" / part)
    assert dump(open_store(index=index_of(TinyEmbedder()))) == before


@pytest.mark.parametrize("family", ["items", "history", "vectors", "recency", "namespaces", "default"])
def test_a_damaged_block_is_never_read_as_an_end_and_heals_at_the_next_open(
    open_store: OpenStore, tmp_path: Path, family: str
) -> None:
    """Damage in the blocks of a table shows when they are read: no answer is short or wrong."""
    store = open_store(index=index_of(TinyEmbedder()))
    fill(store, 400)
    before = read_all(store)
    tables = _tables(store, family)
    store.close()
    _spoil(tables)
    again = open_store(index=index_of(TinyEmbedder()))
    try:
        assert read_all(again) == before
    except ViewDamaged as error:
        # Here, where the error is still held, as a program would.
        assert "log is intact" in str(error)
        again.close()
        again = open_store(index=index_of(TinyEmbedder()))
    assert read_all(again) == before


def test_damage_that_a_single_get_meets_heals_at_the_next_open(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    fill(store, 400)
    tables = _tables(store, "items")
    store.close()
    _spoil(tables)
    again = open_store()
    with pytest.raises(ViewDamaged) as caught:
        for number in range(400):
            again.get(("a", str(number % 5)), str(number))
    assert "open the store again" in str(caught.value)
    again.close()
    again = open_store()
    for number in range(400):
        assert (again.get(("a", str(number % 5)), str(number)) is None) == (number % 7 == 0)


def test_damage_that_a_filter_meets_on_its_way_is_not_taken_for_the_end(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """A scan that looks at few keys meets it, in the first block or in a later one."""
    store = open_store()
    fill(store, 400)
    before = store.search(("a",), filter={"t": "text 16"}, limit=400)
    assert len(before) == 20
    tables = _tables(store, "items")
    store.close()
    (table,) = tables
    whole = table.read_bytes()
    for place in (0, len(whole) // 3):
        table.write_bytes(whole[:place] + b"\xa5" * 2000 + whole[place + 2000 :])
        again = open_store()
        with pytest.raises(ViewDamaged):
            again.search(("a",), filter={"t": "text 16"}, limit=400)
        (tmp_path / "store" / "views" / "0" / "damaged").unlink()
        again.close()
        (tmp_path / "store" / "views" / "0" / "damaged").unlink(missing_ok=True)
    table.write_bytes(whole)
    assert open_store().search(("a",), filter={"t": "text 16"}, limit=400) == before


def _tables(store: EventStore, family: str) -> list[Path]:
    """The table file of one column family, which is flushed to it for the first time."""
    view = runtime_of(store)._view
    database = view.directory / "rocksdb"
    before = set(database.glob("*.sst"))
    getattr(view.db, family).flush()
    made = sorted(set(database.glob("*.sst")) - before)
    assert made
    return made


def _spoil(tables: list[Path]) -> None:
    """Overwrite the first data blocks; footers, indexes and properties stay whole."""
    for path in tables:
        data = bytearray(path.read_bytes())
        size = min(len(data) // 3, 2000)
        data[:size] = b"\xa5" * size
        path.write_bytes(bytes(data))


def test_writes_go_on_after_damage_that_only_a_write_meets(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Folding a put reads the memory's row; damage there must not stop the store for good."""
    store = open_store(index=index_of(TinyEmbedder()))
    fill(store, 400)
    tables = _tables(store, "items")
    store.close()
    _spoil(tables)
    again = open_store(index=index_of(TinyEmbedder()))
    refused = 0
    for number in range(0, 400, 40):
        try:
            again.put(("a", str(number % 5)), str(number), {"n": -number, "t": "tea"})
        except Exception as error:
            assert "is in the log" in str(error), error
            refused += 1
    assert refused <= 1
    found = again.get(("a", "0"), "40")
    assert found is not None and found.value["n"] == -40
    assert len({key for key in log_keys(tmp_path / "store")}) >= 400
    assert "rebuilding the view" in warnings_in(caplog)


# ------------------------------------------------------------------ the index files


def _settled(store: EventStore) -> Path:
    index = runtime_of(store)._view.index
    assert isinstance(index, VectorIndex)
    index.checkpoint()
    return runtime_of(store)._lease.directory / "vectors"


INDEX_DAMAGE: dict[str, Damage] = {
    "deleted": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "flipped": lambda path: flip(path, path.stat().st_size // 2),
}


@pytest.mark.parametrize("name", [*INDEX_DAMAGE, "older"])
def test_damaged_index_files_never_give_a_wrong_answer(
    open_store: OpenStore, tmp_path: Path, name: str
) -> None:
    """Each file of the saved index, one after the other; the views stay otherwise."""
    embedder = TinyEmbedder()
    store = open_store(index=index_of(embedder))
    fill(store, 120)
    vectors = _settled(store)
    shutil.copytree(vectors, tmp_path / "older")
    fill(store, 200)
    _settled(store)
    before = ranked(store, QUERIES), listed(store)
    store.close()
    calls = embedder.documents
    shutil.copytree(vectors, tmp_path / "whole")
    files = sorted(path.name for path in vectors.iterdir())
    assert files
    for file in files:
        shutil.rmtree(vectors)
        shutil.copytree(tmp_path / "whole", vectors)
        if name == "older":
            older = tmp_path / "older" / file
            if not older.exists():
                continue
            shutil.copy(older, vectors / file)
        else:
            INDEX_DAMAGE[name](vectors / file)
        again = open_store(index=index_of(embedder))
        assert (ranked(again, QUERIES), listed(again)) == before, file
        for hit in again.search(("a", "1"), query="tea", limit=ALL):
            assert hit.namespace == ("a", "1")
        again.close()
    assert embedder.documents == calls


def test_files_of_two_generations_are_noticed(open_store: OpenStore, tmp_path: Path) -> None:
    """S29: all files of the older generation but the manifest, and the other way round."""
    store = open_store(index=index_of(TinyEmbedder()))
    fill(store, 120)
    vectors = _settled(store)
    shutil.copytree(vectors, tmp_path / "older")
    for number in range(60):
        store.delete(("a", str(number % 5)), str(number))
    fill(store, 90)
    _settled(store)
    before = ranked(store, QUERIES)
    store.close()
    shutil.copytree(vectors, tmp_path / "newer")
    manifests = {path.name for path in vectors.iterdir() if "manifest" in path.name.lower()}
    assert manifests
    for of_manifest, of_rest in (("older", "newer"), ("newer", "older"), ("older", "older")):
        _nothing_left(vectors)
        for path in (tmp_path / of_rest).iterdir():
            if path.name not in manifests:
                shutil.copy(path, vectors)
        for name in manifests:
            shutil.copy(tmp_path / of_manifest / name, vectors)
        again = open_store(index=index_of(TinyEmbedder()))
        assert ranked(again, QUERIES) == before
        again.close()
