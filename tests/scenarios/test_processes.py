"""S36: several processes on one store, reading, writing and being killed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore.errors import ViewBehind
from eventstore.log.position import Position
from tests.conftest import OpenStore
from tests.scenarios.kit import (
    ROOT,
    TinyEmbedder,
    index_of,
    keys_of,
    listed,
    log_end,
    ranked,
    rows,
    view_number,
)

Call = Callable[..., Any]

WORKER = """
import json, sys
from eventstore import EventStore, VersionConflict
from eventstore.log.position import Position
from tests.scenarios.kit import TinyEmbedder, index_of, listed, ranked, rows, view_number
store = EventStore.open(sys.argv[1], index=index_of(TinyEmbedder()))
def count(times):
    conflicts = 0
    for _ in range(times):
        while True:
            past = store.history(("n",), "counter", limit=20)
            version, number = next(((v.version, v.value["n"]) for v in past if not v.rejected), (0, 0))
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
    "puts": lambda who, n: [store.put(("p", who), str(at), {"n": at, "t": "rain"}) for at in range(n)][-1],
    "keys": lambda query: sorted(hit.key for hit in store.search(("a",), query=query, limit=1000)),
    "count": count,
    "position": lambda: str(store.position),
    "wait": lambda position: store.wait_for(Position.of(position), timeout=5),
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
    other("wait", str(store.position))
    store.wait_for(Position.of(other("position")), timeout=5)


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
    with pytest.raises(ViewBehind):
        store.wait_for(_beyond(store.position), timeout=0.1)
    assert time.monotonic() - started < 2


def _beyond(position: Position) -> Position:
    return Position(*(offset + 1 for offset in position))
