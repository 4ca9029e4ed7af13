"""Stores on each kind of log: what a test asks of a store, it asks of every one of them.

On ``memory`` and in a folder (``embedded``) a log has one partition; a topic (``kafka``) has
three, or as many as the test asks for, and views under the test's folder.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from eventstore import EventStore
from tests.kafka.broker import Broker

Kind = Literal["memory", "embedded", "kafka"]
KINDS: tuple[Kind, ...] = ("memory", "embedded", "kafka")
PARTITIONS = 3

embedded_only = pytest.mark.parametrize("kind_of_log", ["embedded"])
"""For a test of files: it has them in a folder, where the log is one."""
can_be_opened_twice = pytest.mark.parametrize("kind_of_log", ["embedded", "kafka"])
"""For a test that opens a log in another process, or again: what is in memory ends with its store."""

OpenStore = Callable[..., EventStore]


class Places:
    """Logs of one kind, named by ``sub``, and the stores opened on them."""

    def __init__(self, kind: Kind, folder: Path, broker: Broker | None = None) -> None:
        self.kind = kind
        self.folder = folder
        self.broker = broker
        self.opened: list[EventStore] = []
        self._topics: dict[str, str] = {}
        self._fresh = itertools.count(1)

    @property
    def can_reopen(self) -> bool:
        """Whether a log outlives the store on it."""
        return self.kind != "memory"

    @property
    def partitions(self) -> int:
        return PARTITIONS if self.kind == "kafka" else 1

    def url(self, sub: str = "store", partitions: int = PARTITIONS) -> str:
        """The connection string of a log; a topic that is there keeps its partitions."""
        if self.kind == "memory":
            return "memory:"
        if self.broker is None:
            return str(self.folder / sub)
        topic = self._topics.setdefault(sub, f"t-{uuid.uuid4().hex[:16]}")
        return f"kafka://{self.broker.address}/{topic}?partitions={partitions}"

    def views(self, sub: str = "store") -> Path:
        """Where the views of a log are if the test does not say, one folder for all its processes."""
        return self.folder / sub / "views"

    def open(
        self,
        index: dict[str, Any] | None = None,
        ttl: dict[str, Any] | None = None,
        sub: str = "store",
        *,
        partitions: int = PARTITIONS,
        views: Path | None = None,
        **options: Any,
    ) -> EventStore:
        """A store on the log ``sub``. With one partition, positions are plain numbers on every log."""
        if self.kind == "kafka":
            views = views or self.views(sub)
        store = EventStore.open(self.url(sub, partitions), views=views, index=index, ttl=ttl, **options)
        self.opened.append(store)
        return store

    def fresh(self, *arguments: Any, **options: Any) -> EventStore:
        """:meth:`open`, with a view that has nothing but the log to come from."""
        return self.open(*arguments, views=self.folder / f"fresh-{next(self._fresh)}", **options)

    def close(self) -> None:
        for store in self.opened:
            store.close()
