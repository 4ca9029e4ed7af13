"""S33: forks of a process that has a store open, or had one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore import EventStore
from eventstore.errors import StoreForked
from tests.conftest import OpenStore
from tests.scenarios.kit import TinyEmbedder, in_child, index_of, keys_of, python, rows, view_number


def _is_refused(store: EventStore, path: Path) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: store.get(("a",), "k"),
        lambda: store.put(("a",), "k", {"n": 2}),
        lambda: store.search(("a",), query="tea"),
        lambda: store.search(("a",)),
        lambda: store.list_namespaces(),
        lambda: store.sweep_ttl(),
        lambda: store.history(("a",), "k"),
        lambda: EventStore.open(path),
        lambda: EventStore.open(path.with_name("another")),
    ]
    for call in calls:
        started = time.monotonic()
        with pytest.raises(StoreForked, match=r"spawn.*after the fork"):
            call()
        assert time.monotonic() - started < 5
    store.close()
    store.close()


def _used(open_store: OpenStore) -> EventStore:
    store = open_store(index=index_of(TinyEmbedder()), ttl={"default_ttl": 0.01})
    for number in range(100):
        store.put(("a",), "k" if number == 0 else str(number), {"n": number, "t": "tea"}, ttl=None)
    store.put(("a",), "expiring", {"n": 1, "t": "rain"})
    time.sleep(0.02)
    store.get(("a",), "expiring")  # leaves a refresh waiting at the moment of the fork
    assert store.search(("a",), query="tea")
    return store


def test_a_forked_child_is_refused_at_once_and_the_parent_is_unharmed(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """RocksDB's threads stay behind: a store opened in the child would wait for them at its first flush."""
    store = _used(open_store)
    before = keys_of(store)
    for number in range(3):
        assert in_child(lambda: _is_refused(store, tmp_path / "store")) == 0
        store.put(("a",), f"parent {number}", {"n": 1, "t": "tea"})
    assert keys_of(store) == before | {f"parent {number}" for number in range(3)}
    store.close()
    kept = rows(open_store(index=index_of(TinyEmbedder())))
    assert rows(open_store(index=index_of(TinyEmbedder()), views=tmp_path / "fresh")) == kept


def _works(path: Path, answers: Any) -> None:
    try:
        with EventStore.open(path, index=index_of(TinyEmbedder())) as own:
            own.put(("a",), "from a child", {"n": 1, "t": "tea"})
            answers.put(view_number(own))
    except StoreForked:
        answers.put("refused")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("method", "expected"), [("fork", "refused"), ("spawn", "1")])
def test_multiprocessing_children(open_store: OpenStore, tmp_path: Path, method: str, expected: str) -> None:
    store = _used(open_store)
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    child = context.Process(target=_works, args=(tmp_path / "store", answers))  # type: ignore[attr-defined]
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert answers.get() == expected
    assert ("from a child" in keys_of(store)) == (expected == "1")


FORKING = """
import warnings; warnings.simplefilter("ignore")
import os, signal, sys, threading
from eventstore import EventStore
from eventstore.errors import StoreForked
from tests.scenarios.kit import TinyEmbedder, index_of
store = EventStore.open(sys.argv[1], index=index_of(TinyEmbedder()))
def write(first):
    try:
        for number in range(first, first + 10**6):
            store.put(("w",), str(number), {"n": number, "t": "tea"})
    except Exception:
        return
def read():
    try:
        while True:
            store.search((), query="tea", filter={"n": {"$gte": 3}}, limit=3)
    except Exception:
        return
threads = [threading.Thread(target=write, args=(first,), daemon=True) for first in (0, 10**6)]
threads += [threading.Thread(target=read, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for number in range(10):
    child = os.fork()
    if not child:
        signal.alarm(10)
        for act in (lambda: store.get(("w",), "0"), lambda: EventStore.open(sys.argv[1])):
            try:
                act()
                os._exit(3)
            except StoreForked:
                pass
        store.close()
        # Through the interpreter's own end, where the parent's objects are taken down too.
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    store.put(("parent",), str(number), {"n": number, "t": "rain"})
found = {item.key for item in store.search(("parent",), limit=100)}
assert len(found) == 10
store.close()
"""


def test_forks_in_the_middle_of_reads_and_writes_of_other_threads(tmp_path: Path) -> None:
    """A web server forks whenever it likes; what other threads hold is held for ever in the child."""
    ended = python(FORKING, tmp_path / "store")
    assert ended.returncode == 0, ended.stderr


ORPHAN = """
import os, sys, time
from eventstore import EventStore
store = EventStore.open(sys.argv[1])
store.put(("a",), "parent", {"n": 1})
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
os.close(1); os.close(2)
time.sleep(30)
os._exit(0)
"""


def test_a_child_that_outlives_its_parent_does_not_keep_the_directory(
    open_store: OpenStore, tmp_path: Path
) -> None:
    ended = python(ORPHAN, tmp_path / "store", timeout=20)
    assert ended.returncode == 0, ended.stderr
    try:
        store = open_store()
        assert keys_of(store) == {"parent"}
        assert view_number(store) == "0"
    finally:
        os.kill(int(ended.stdout), signal.SIGKILL)


PREFORK = """
import warnings; warnings.simplefilter("ignore")
import os, signal, sys
from eventstore import EventStore
import projector.runtime
from tests.scenarios.kit import TinyEmbedder, index_of
for number in range(3):
    child = os.fork()
    if not child:
        signal.alarm(20)
        with EventStore.open(sys.argv[1], index=index_of(TinyEmbedder())) as store:
            store.put(("a",), str(number), {"t": "tea"})
            assert len(store.search(("a",), query="tea")) == number + 1
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
with EventStore.open(sys.argv[1]) as store:
    print(len(store.search(("a",))))
"""


def test_a_process_that_opened_nothing_may_fork_and_open_in_its_children(tmp_path: Path) -> None:
    ended = python(PREFORK, tmp_path / "store")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "3"
