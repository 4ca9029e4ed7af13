"""Stores with everything in them that a view has to get right, and what readers look at."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

from langgraph.store.base import PutOp

from eventstore import EventStore, VersionConflict, acting_as
from tests.scenarios.kit import TinyEmbedder, index_of

USERS = 7


def fill(store: EventStore, count: int, seed: int = 1) -> None:
    """Puts, overwrites, deletes, batches, expiries and lost conditions, a few of each kind of text."""
    random = Random(seed)
    for at in range(count):
        namespace = ("users", f"u{random.randrange(USERS)}", "memories")
        key = f"k{random.randrange(max(4, count // 3))}"
        act = random.random()
        if act < 0.1:
            store.delete(namespace, key)
        elif act < 0.15:
            store.put(namespace, key, {"t": f"short-lived {at}"}, ttl=60.0)
        elif act < 0.2:
            store.put(namespace, key, {"t": "not embedded", "n": at}, index=False)
        elif act < 0.25:
            try:
                store.put(namespace, key, {"t": "mine"}, expected_version=3)
            except VersionConflict:
                continue
        elif act < 0.35:
            store.batch([PutOp(namespace, f"b{at}-{n}", {"t": f"text {n}", "n": n}) for n in range(4)])
        else:
            with acting_as(actor=f"a{at % 3}", thread=f"t{at % 5}", run=f"r{at % 11}"):
                store.put(namespace, key, {"t": f"text {at % 17}", "tags": ["x", f"y{at % 3}"], "n": at})


def sample(open_store: Callable[..., EventStore], count: int = 300, **options: Any) -> EventStore:
    """A store of the sample, its embedder reachable as ``embedder``."""
    embedder = TinyEmbedder()
    store = open_store(index=index_of(embedder), ttl={"default_ttl": None}, **options)
    fill(store, count)
    return store


class Readers:
    """Threads that read all the time, and say what they saw that must not be."""

    def __init__(self, store: EventStore, floor: int) -> None:
        """``floor`` memories under ``fixed`` never change; nobody may ever see fewer, or others."""
        self.wrong: list[str] = []
        self.rounds = 0
        self.written = 0
        self._store = store
        self._floor = floor
        self._stop = threading.Event()
        acts = (self._list, self._get, self._rank, self._write)
        self._threads = [threading.Thread(target=self._loop, args=(act,), daemon=True) for act in acts]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
            if thread.is_alive():
                self.wrong.append("a reader hangs")

    def _loop(self, act: Callable[[], None]) -> None:
        while not self._stop.wait(0.002) and not self.wrong:
            try:
                act()
                self.rounds += 1
            except Exception as error:
                self.wrong.append(f"{act.__name__}: {error!r}")

    def _list(self) -> None:
        found = {item.key for item in self._store.search(("fixed",), limit=10 * self._floor)}
        assert len(found) == self._floor, len(found)

    def _get(self) -> None:
        item = self._store.get(("fixed",), f"f{self.rounds % self._floor}")
        assert item is not None
        assert self._store.list_namespaces(prefix=("fixed",)) == [("fixed",)]

    def _rank(self) -> None:
        found = self._store.search(("fixed",), query="text 3", limit=5)
        assert [item.score for item in found] == sorted((item.score or 0.0 for item in found), reverse=True)
        assert len(found) == min(5, self._floor)

    def _write(self) -> None:
        key = f"w{self.written}"
        self._store.put(("written",), key, {"t": f"text {self.written % 9}", "n": self.written})
        item = self._store.get(("written",), key)
        assert item is not None
        assert item.value["n"] == self.written
        self.written += 1


def fixed(store: EventStore, count: int) -> None:
    """The memories that readers look at."""
    store.batch([PutOp(("fixed",), f"f{at}", {"t": f"text {at % 9}", "n": at}) for at in range(count)])
