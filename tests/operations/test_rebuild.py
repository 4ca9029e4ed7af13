"""S16, S18: a rebuild beside a store that serves, stopped, killed and continued, exchanged in one step."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest

from eventstore import EventStore
from eventstore.errors import InvalidConfig, InvalidInput, ViewError
from eventstore.log.position import Position
from projector import beside, directories, progress
from projector import rebuild as rebuilding
from projector.digests import digest
from projector.integrity import verify
from projector.lease import Lease
from projector.rebuild import rebuild, rebuild_at
from tests.conftest import OpenStore
from tests.operations.samples import Readers, fill, fixed, sample
from tests.scenarios.kit import ROOT, TinyEmbedder, index_of, listed, ranked, runtime_of, warnings_in

QUERIES = ("text 3", "text 11", "nothing like it")


def stop_after(monkeypatch: pytest.MonkeyPatch, commits: int) -> threading.Event:
    """An event that is set once so many commits of a rebuild were reported."""
    monkeypatch.setattr(beside, "BULK_RECORDS", 40)
    stop, seen = threading.Event(), []

    def update(self: progress.Bar, done: int, total: int) -> None:
        seen.append(done)
        if len(seen) >= commits:
            stop.set()

    monkeypatch.setattr(progress.Bar, "update", update)
    return stop


def test_a_rebuilt_view_is_the_same_and_no_model_was_asked(open_store: OpenStore) -> None:
    embedder = TinyEmbedder()
    store = open_store(index=index_of(embedder))
    fill(store, 300)
    before, found, ranks, asked = digest(store), listed(store), ranked(store, QUERIES), embedder.documents
    done = rebuild(store)
    assert (done.outcome, done.continued) == ("exchanged", 0)
    assert Position.of(done.position) == runtime_of(store).applied
    assert (digest(store), listed(store), ranked(store, QUERIES)) == (before, found, ranks)
    assert embedder.documents == asked
    assert verify(store).first is None
    store.put(("later",), "k", {"t": "text 3"})
    assert store.get(("later",), "k") is not None


def test_nothing_survives_that_no_event_explains(open_store: OpenStore) -> None:
    store = sample(open_store, 60)
    clean = digest(store)
    db = runtime_of(store)._view.db
    db.items.put(b"\x02ghost\x00\x01k", b"\x01" * 80)
    db.recency.put(b"\x01" + bytes(8) + b"\x02ghost\x00\x01k", b"")
    db.vectors.put((2**40).to_bytes(8, "big"), bytes(40))
    assert digest(store) != clean
    rebuild(store)
    assert digest(store) == clean


def test_readers_and_writers_notice_nothing(open_store: OpenStore, tmp_path: Path) -> None:
    embedder = TinyEmbedder()
    store = open_store(index=index_of(embedder))
    fixed(store, 400)
    with Readers(store, 400) as readers:
        for _ in range(3):
            asked = embedder.documents
            written = readers.written
            done = rebuild(store)
            assert done.outcome == "exchanged"
            assert embedder.documents - asked <= readers.written - written + 1
        (taken,) = rebuild_at(tmp_path / "store")
        assert taken.outcome == "exchanged"
    assert readers.wrong == []
    assert readers.written > 10
    assert len(store.search(("written",), limit=10**6)) == readers.written
    assert verify(store).exit_code == 0
    at = digest(store)
    store.close()
    again = open_store(index=index_of(embedder), views=tmp_path / "fresh")
    assert digest(again) == at, "a clean replay gives another view"


def test_stopped_and_continued(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = sample(open_store, 300)
    clean = digest(store)
    with monkeypatch.context() as patch:
        stopped = rebuild(store, stop=stop_after(patch, 2))
    assert stopped.outcome == "stopped"
    assert 0 < stopped.events < 300
    assert store.get(("users", "u1", "memories"), "k1") is not None or listed(store)
    done = rebuild(store)
    assert (done.outcome, done.continued) == ("exchanged", stopped.events)
    assert done.continued + done.events == sum(runtime_of(store).applied)
    assert digest(store) == clean
    assert verify(store).exit_code == 0


def test_ctrl_c_leaves_a_beginning(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = sample(open_store, 200)

    def update(self: progress.Bar, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(beside, "BULK_RECORDS", 40)
        patch.setattr(progress.Bar, "update", update)
        with pytest.raises(KeyboardInterrupt):
            rebuild(store)
    assert rebuild(store).continued >= 40
    assert verify(store).exit_code == 0


def test_killed_at_random_under_load(open_store: OpenStore, tmp_path: Path) -> None:
    """The command beside a store that serves, killed again and again, then left to finish."""
    embedder = TinyEmbedder()
    store = open_store(index=index_of(embedder))
    fixed(store, 300)
    fill(store, 1_500)
    code = (
        "import sys; from projector import beside; beside.BULK_RECORDS = 25; "
        "from projector.rebuild import rebuild_at; rebuild_at(sys.argv[1])"
    )
    random = Random(7)
    home = runtime_of(store).directory
    begun = 0
    with Readers(store, 300) as readers:
        for _ in range(4):
            child = subprocess.Popen(
                [sys.executable, "-c", code, tmp_path / "store"], cwd=ROOT, stderr=subprocess.DEVNULL
            )
            deadline = time.monotonic() + 20
            while not directories.begun(home) and child.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(random.random() * 0.5)
            child.send_signal(signal.SIGKILL)
            child.wait()
            begun += bool(directories.begun(home))
        (done,) = rebuild_at(tmp_path / "store")
    assert readers.wrong == []
    assert begun > 0
    assert done.outcome == "exchanged"
    assert verify(store).exit_code == 0
    assert len(directories._rebuilt(home)) == 1, "a killed rebuild left files behind"
    at = digest(store)
    store.close()
    assert digest(open_store(index=index_of(embedder), views=tmp_path / "fresh")) == at


def test_a_view_that_nobody_has_is_exchanged_at_once(open_store: OpenStore, tmp_path: Path) -> None:
    store = sample(open_store, 100)
    clean, ranks = digest(store), ranked(store, QUERIES)
    store.close()
    (done,) = rebuild_at(tmp_path / "store")
    assert done.outcome == "exchanged"
    assert not (tmp_path / "store" / "views" / "0" / "rocksdb").exists()
    with EventStore.open(tmp_path / "store", index=index_of(TinyEmbedder())) as again:
        assert (digest(again), ranked(again, QUERIES)) == (clean, ranks)
        assert runtime_of(again).directory.name == "0"


def test_a_finished_view_waits_for_the_next_open(open_store: OpenStore, tmp_path: Path) -> None:
    sample(open_store, 100).close()
    home = tmp_path / "store" / "views" / "0"
    lease = Lease.of(home)
    assert lease is not None
    (done,) = rebuild_at(tmp_path / "store", wait=0.0)
    assert done.outcome == "ready"
    assert directories.current(home) == home
    lease.release()
    with EventStore.open(tmp_path / "store") as store:
        assert runtime_of(store)._view.directory == home / "rebuilt-1"
        assert verify(store).exit_code == 0
    assert directories.ready(home) is None


def test_what_does_not_fit_the_log_is_begun_anew(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = sample(open_store, 50, sub="other")
    other.close()
    store = sample(open_store, 80)
    home = runtime_of(store).directory
    (home / "rebuilt-1").mkdir()
    (tmp_path / "other" / "views" / "0" / "rocksdb").rename(home / "rebuilt-1" / "rocksdb")
    assert rebuild(store).continued == 0
    assert "made again" in warnings_in(caplog)
    assert verify(store).exit_code == 0


def test_one_rebuild_of_a_view_at_a_time(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "ALONE_SECONDS", 0.1)
    store = sample(open_store, 10)
    with directories.building(runtime_of(store).directory), pytest.raises(ViewError, match="running already"):
        rebuild(store)
    assert rebuild(store).outcome == "exchanged"


def test_an_empty_log(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    assert (rebuild(store).events, verify(store).exit_code) == (0, 0)
    assert store.search(()) == []
    with pytest.raises(InvalidInput, match="no view directory 9"):
        rebuild_at(tmp_path / "store", number=9)
    with pytest.raises(InvalidConfig, match="no store"):
        rebuild_at(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_the_store_can_be_closed_during_a_rebuild(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = sample(open_store, 100)

    def advance(*_: object) -> None:
        store.close()

    with monkeypatch.context() as patch:
        patch.setattr(rebuilding, "_advance", advance)
        with pytest.raises(Exception, match="closed"):
            rebuild(store)
    with EventStore.open(tmp_path / "store") as again:
        assert verify(again).exit_code == 0


def test_progress_is_told_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with caplog.at_level(logging.INFO), progress.Bar("rebuilding", logging.getLogger("projector")) as bar:
        time.sleep(0.01)
        bar.update(50, 100)
    assert "rebuilding: 50 of 100" in caplog.text
    assert "s left" in caplog.text
