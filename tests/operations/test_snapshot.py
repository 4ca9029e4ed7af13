"""S42: a copy of a view at a position, what starting from it saves, and what is left aside."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore import EventStore
from eventstore.errors import InvalidConfig, ViewError
from projector import folding
from projector.digests import digest
from projector.integrity import verify
from projector.snapshot import start_from, take, take_at
from tests.conftest import OpenStore
from tests.operations.samples import Readers, fill, fixed, sample
from tests.scenarios.kit import ROOT, TinyEmbedder, index_of, ranked, runtime_of, warnings_in

QUERIES = ("text 3", "text 11")


def reopened(tmp_path: Path) -> EventStore:
    return EventStore.open(tmp_path / "store", index=index_of(TinyEmbedder()))


@pytest.mark.parametrize("outside", [False, True])
def test_a_store_starts_from_a_snapshot_and_catches_up(
    open_store: OpenStore, tmp_path: Path, outside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sample(open_store, 300)
    made = take_at(tmp_path / "store", tmp_path / "s") if outside else take(store, tmp_path / "s")
    at = runtime_of(store).applied
    assert made.position == str(at)
    fill(store, 50, seed=2)
    expected, ranks, end = digest(store), ranked(store, QUERIES), runtime_of(store).applied
    store.close()
    shutil.rmtree(tmp_path / "store" / "views")
    found = start_from(tmp_path / "s", tmp_path / "store")
    assert found == made
    applied = []
    fold = folding.fold

    def counted(*arguments: Any) -> Any:
        applied.append(1)
        return fold(*arguments)

    monkeypatch.setattr(folding, "fold", counted)
    with reopened(tmp_path) as again:
        assert len(applied) == at.behind(end)
        monkeypatch.undo()
        assert (digest(again), ranked(again, QUERIES)) == (expected, ranks)
        assert verify(again).exit_code == 0


def test_a_snapshot_under_load_is_consistent(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(index=index_of(TinyEmbedder()))
    fixed(store, 100)
    with Readers(store, 100) as readers:
        for number in range(4):
            (take if number % 2 else lambda _, to: take_at(tmp_path / "store", to))(store, tmp_path / "s")
    assert readers.wrong == []
    store.close()
    shutil.rmtree(tmp_path / "store" / "views")
    assert start_from(tmp_path / "s", tmp_path / "store") is not None
    with reopened(tmp_path) as again:
        assert verify(again).exit_code == 0
        assert len(again.search(("written",), limit=10**6)) == readers.written


def other_format(folder: Path) -> None:
    path = folder / "snapshot.json"
    body = json.loads(path.read_text())
    body["snapshot"]["format"] = 0
    path.write_text(json.dumps(body))


def cut(folder: Path) -> None:
    largest = max((folder / "rocksdb").iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])


def flipped(folder: Path) -> None:
    largest = max((folder / "rocksdb").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(bytes(data))


def edited(folder: Path) -> None:
    path = folder / "snapshot.json"
    path.write_text(path.read_text().replace('"position": "', '"position": "9'))


def no_manifest(folder: Path) -> None:
    (folder / "snapshot.json").unlink()


def half_a_manifest(folder: Path) -> None:
    path = folder / "snapshot.json"
    path.write_text(path.read_text()[:40])


@pytest.mark.parametrize("act", [other_format, cut, flipped, edited, no_manifest, half_a_manifest])
def test_what_cannot_be_trusted_is_left_aside_and_written_anew(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture, act: Callable[[Path], None]
) -> None:
    store = sample(open_store, 100)
    expected = digest(store)
    take(store, tmp_path / "s")
    store.close()
    shutil.rmtree(tmp_path / "store" / "views")
    act(tmp_path / "s")
    assert start_from(tmp_path / "s", tmp_path / "store") is None
    assert "made from the log" in warnings_in(caplog)
    with reopened(tmp_path) as again:
        assert digest(again) == expected
        if act is not no_manifest:
            take(again, tmp_path / "s")
    if act is not no_manifest:
        assert start_from(tmp_path / "s", tmp_path / "store") is not None


def test_a_snapshot_of_another_log_is_left_aside(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    take(sample(open_store, 20, sub="other"), tmp_path / "s")
    sample(open_store, 20).close()
    assert start_from(tmp_path / "s", tmp_path / "store") is None
    assert "was built from log" in warnings_in(caplog)


def test_a_view_in_use_is_passed_over(open_store: OpenStore, tmp_path: Path) -> None:
    store = sample(open_store, 50)
    take(store, tmp_path / "s")
    assert start_from(tmp_path / "s", tmp_path / "store") is not None
    assert (tmp_path / "store" / "views" / "1" / "rebuilt-1" / "rocksdb").is_dir()
    open_it = "import sys; from eventstore import EventStore; EventStore.open(sys.argv[1]).close()"
    subprocess.run([sys.executable, "-c", open_it, tmp_path / "store"], cwd=ROOT, check=True)
    assert verify(store).exit_code == 0


def test_nothing_but_a_snapshot_is_replaced(open_store: OpenStore, tmp_path: Path) -> None:
    store = sample(open_store, 5)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letters.txt").write_text("mine")
    with pytest.raises(InvalidConfig, match="no snapshot"):
        take(store, tmp_path / "mine")
    assert (tmp_path / "mine" / "letters.txt").read_text() == "mine"
    with pytest.raises(ViewError, match="no view to copy"):
        take_at(tmp_path / "store", tmp_path / "s", views=tmp_path / "nowhere")
