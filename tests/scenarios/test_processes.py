"""S33 and S36: several processes on one store, forks of one that has it open, and kills among them."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore import EventStore, VersionConflict
from eventstore.errors import StoreForked
from tests.conftest import OpenStore
from tests.scenarios.kit import (
    ROOT,
    TinyEmbedder,
    in_child,
    index_of,
    keys_of,
    listed,
    log_end,
    python,
    ranked,
    rows,
    view_number,
)

Call = Callable[..., Any]

WORKER = """
import json, sys
from eventstore import EventStore, VersionConflict
from tests.scenarios.kit import TinyEmbedder, index_of, listed, ranked, rows, view_number
store = EventStore.open(sys.argv[1], index=index_of(TinyEmbedder()))
def count(times):
    conflicts = 0
    for _ in range(times):
        while True:
            item = store.get(("n",), "counter")
            past = store.history(("n",), "counter", limit=1)
            version = past[0].version if past else 0
            if item is not None and store.get(("n",), "counter").value != past[0].value:
                continue
            number = item.value["n"] if item else 0
            try:
                store.put(("n",), "counter", {"n": number + 1}, expected_version=version)
                break
            except VersionConflict:
                conflicts += 1
    return conflicts
acts = {
    "view": lambda: view_number(store),
    "get": lambda key: getattr(store.get(("a",), key), "value", None),
    "put": lambda key, n: store.put(("a",), key, {"n": n, "t": "tea"}),
    "puts": lambda who, times: [store.put(("p", who), str(n), {"n": n, "t": "rain"}) for n in range(times)] and None,
    "keys": lambda query: sorted(hit.key for hit in store.search(("a",), query=query, limit=1000)),
    "count": count,
    "position": lambda: store.position,
    "wait": lambda position: store.wait_for(position, timeout=5),
    "dump": lambda: repr((rows(store), listed(store), ranked(store, ["tea", "rain"]))),
    "close": lambda: store.close(),
}
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    name, *arguments = json.loads(line)
    print(json.dumps(acts[name](*arguments)), flush=True)
"""


class Worker:
    """Another process with the store open, that does what it is told."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def tell(self, *act: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(act) + "\n")
        self.process.stdin.flush()

    def __call__(self, *act: Any) -> Any:
        self.tell(*act)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait(20)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[[int], list[Worker]]]:
    made: list[Worker] = []

    def start(count: int) -> list[Worker]:
        fresh = [Worker(tmp_path / "store") for _ in range(count)]
        made.extend(fresh)
        for each in fresh:
            assert each.answer() == "ready"
        return fresh

    yield start
    for each in made:
        each.kill()


def test_a_second_process_reads_and_writes_beside_the_first(
    open_store: OpenStore, workers: Callable[[int], list[Worker]]
) -> None:
    store = open_store(index=index_of(TinyEmbedder()))
    store.put(("a",), "mine", {"n": 1, "t": "tea"})
    [other] = workers(1)
    assert (view_number(store), other("view")) == ("0", "1")
    assert other("get", "mine") == {"n": 1, "t": "tea"}
    for number in range(50):
        store.put(("a",), "ping", {"n": number, "t": "tea"})
        assert other("get", "ping") == {"n": number, "t": "tea"}
        other("put", "pong", number)
        pong = store.get(("a",), "pong")
        assert pong is not None and pong.value["n"] == number
    assert other("keys", "tea") == sorted(hit.key for hit in store.search(("a",), query="tea"))
    assert other("keys", None) == ["mine", "ping", "pong"]
    other("wait", store.position)
    store.wait_for(other("position"), timeout=5)


def test_a_killed_process_leaves_its_directory_free(
    open_store: OpenStore, workers: Callable[[int], list[Worker]]
) -> None:
    first, second = workers(1)[0], workers(1)[0]
    assert (first("view"), second("view")) == ("0", "1")
    first("put", "before", 1)
    first.kill()
    store = open_store(index=index_of(TinyEmbedder()))
    assert view_number(store) == "0"
    assert keys_of(store) == {"before"}
    second("put", "after", 2)
    assert keys_of(store) == {"before", "after"}


def test_writes_of_two_processes_interleave_and_both_end_alike(
    open_store: OpenStore, tmp_path: Path, workers: Callable[[int], list[Worker]]
) -> None:
    pair = workers(2)
    for number, worker in enumerate(pair):
        worker.tell("puts", str(number), 300)
    for worker in pair:
        assert worker.answer() is None
    dumps = {worker("dump") for worker in pair}
    store = open_store(index=index_of(TinyEmbedder()), views=tmp_path / "fresh")
    dumps.add(repr((rows(store), listed(store), ranked(store, ["tea", "rain"]))))
    assert len(dumps) == 1
    assert log_end(tmp_path / "store") == 600
    assert len(keys_of(store, "p", "0")) == len(keys_of(store, "p", "1")) == 300


def test_conditional_writes_of_three_processes_count_without_loss(
    open_store: OpenStore, workers: Callable[[int], list[Worker]]
) -> None:
    trio = workers(3)
    for worker in trio:
        worker.tell("count", 100)
    conflicts = sum(worker.answer() for worker in trio)
    store = open_store()
    item = store.get(("n",), "counter")
    assert item is not None and item.value == {"n": 300}
    past = store.history(("n",), "counter")
    assert [version.version for version in past if not version.rejected] == list(range(300, 0, -1))
    assert sum(version.rejected for version in past) == conflicts


def test_a_slow_reader_of_another_process_is_refused_in_time(open_store: OpenStore) -> None:
    store = open_store()
    store.put(("a",), "k", {"n": 1})
    store.wait_for(store.position)
    started = time.monotonic()
    with pytest.raises(Exception, match="position|offset"):
        store.wait_for(_beyond(store.position), timeout=0.1)
    assert time.monotonic() - started < 2


def _beyond(position: Any) -> Any:
    return position + 1


# ------------------------------------------------------------------ forks


def _refuses(store: EventStore) -> None:
    calls: list[Call] = [
        lambda: store.get(("a",), "k"),
        lambda: store.put(("a",), "k", {"n": 2}),
        lambda: store.search(("a",), query="tea"),
        lambda: store.search(("a",)),
        lambda: store.list_namespaces(),
        lambda: store.sweep_ttl(),
        lambda: store.history(("a",), "k"),
    ]
    for call in calls:
        started = time.monotonic()
        with pytest.raises(StoreForked, match="open it again"):
            call()
        assert time.monotonic() - started < 5
    store.close()
    store.close()


def _works_anew(path: Path) -> None:
    with EventStore.open(path, index=index_of(TinyEmbedder())) as own:
        assert view_number(own) != "0"
        assert "k" in keys_of(own)
        assert own.search(("a",), query="tea")
        own.put(("a",), f"from {os.getpid()}", {"n": 1, "t": "tea"})


def _used(open_store: OpenStore) -> EventStore:
    store = open_store(index=index_of(TinyEmbedder()), ttl={"default_ttl": 0.01})
    for number in range(200):
        store.put(("a",), "k" if number == 0 else str(number), {"n": number, "t": "tea"}, ttl=None)
    store.put(("a",), "expiring", {"n": 1, "t": "rain"})
    time.sleep(0.02)
    store.get(("a",), "expiring")  # leaves a refresh waiting at the moment of the fork
    assert store.search(("a",), query="tea")
    return store


def test_a_forked_child_is_refused_or_opens_anew_and_the_parent_is_unharmed(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = _used(open_store)
    before = keys_of(store)

    def child() -> None:
        _refuses(store)
        _works_anew(tmp_path / "store")

    for _ in range(3):
        assert in_child(child) == 0
        store.put(("a",), "parent", {"n": 1, "t": "tea"})
    found = keys_of(store)
    assert found > before
    assert len([key for key in found if key.startswith("from ")]) == 3
    kept = rows(store)
    store.close()
    again = open_store(index=index_of(TinyEmbedder()), views=tmp_path / "fresh")
    assert rows(again) == kept


def _in_multiprocessing(path: Path, answers: Any) -> None:
    try:
        _works_anew(path)
        answers.put("fine")
    except BaseException as error:
        answers.put(repr(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_multiprocessing_child_by_fork_opens_anew(open_store: OpenStore, tmp_path: Path) -> None:
    store = _used(open_store)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_multiprocessing, args=(tmp_path / "store", answers))
    child.start()
    assert answers.get(timeout=20) == "fine"
    child.join(20)
    assert child.exitcode == 0
    assert any(key.startswith("from ") for key in keys_of(store))


FORKING = """
import os, sys, threading
from pathlib import Path
from eventstore import EventStore
from tests.scenarios.kit import TinyEmbedder, index_of
path = Path(sys.argv[1])
store = EventStore.open(path, index=index_of(TinyEmbedder()))
def write(first):
    for number in range(first, first + 10**6):
        try:
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
for number in range(8):
    child = os.fork()
    if not child:
        import signal
        signal.alarm(15)
        try:
            store.get(("w",), "0")
        except Exception as error:
            assert "forked" in str(error), error
        with EventStore.open(path, index=index_of(TinyEmbedder())) as own:
            own.put(("child",), str(number), {"n": number, "t": "rain"})
            assert own.search(("child",), query="rain")
        # Through the interpreter's own end, where the parent's objects are taken down too.
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
store.close()
print(len(EventStore.open(path).list_namespaces()))
"""


def test_forks_in_the_middle_of_reads_and_writes_of_other_threads(tmp_path: Path) -> None:
    """A preloading web server forks whenever it likes; whatever threads held is held for ever in the child."""
    ended = python(FORKING.replace("import os", "import warnings; warnings.simplefilter('ignore')\nimport os", 1),
                   tmp_path / "store", timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split()[-1] == "2"


ORPHAN = """
import os, sys, time
from eventstore import EventStore
from tests.scenarios.kit import view_number
store = EventStore.open(sys.argv[1])
store.put(("a",), "parent", {"n": 1})
read_end, write_end = os.pipe()
child = os.fork()
if child:
    print(child, flush=True)
    os._exit(0)
while os.getppid() != 1 and os.getppid() == int(sys.argv[2] or 0):
    time.sleep(0.01)
time.sleep(0.3)
own = EventStore.open(sys.argv[1])
own.put(("a",), "child", {"n": 2})
open(sys.argv[3], "w").write(view_number(own))
time.sleep(30)
"""


def test_a_child_that_outlives_its_parent_neither_keeps_nor_needs_the_parents_directory(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """As a daemon does: open, fork, and let the parent go."""
    told = tmp_path / "told"
    ended = python(ORPHAN, tmp_path / "store", "", told)
    assert ended.returncode == 0, ended.stderr
    orphan = int(ended.stdout.split()[0])
    try:
        deadline = time.monotonic() + 10
        while not told.exists() or not told.read_text():
            assert time.monotonic() < deadline, "the child could not open the store"
            time.sleep(0.02)
        store = open_store()
        assert keys_of(store) == {"parent", "child"}
        assert {view_number(store), told.read_text()} == {"0", "1"}
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_conflict_is_not_hidden_by_a_fork(open_store: OpenStore) -> None:
    store = open_store()
    store.put(("a",), "k", {"n": 1})
    assert in_child(lambda: None) == 0
    with pytest.raises(VersionConflict):
        store.put(("a",), "k", {"n": 2}, expected_version=0)
