"""The stores that are measured side by side, each as a user would open it for production.

What differs between them is said here: whether a put that returned is on disk, whether the data
outlive the process, and what a machine must have for semantic search.
"""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Final

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from eventstore import EventStore

Index = dict[str, Any]


class Contender(ABC):
    """One kind of store, on one folder."""

    name: ClassVar[str]
    title: ClassVar[str]
    durable: ClassVar[bool]
    """A put that returned survives a power cut."""
    persistent: ClassVar[bool]
    """The folder can be opened again."""
    rebuilds: ClassVar[bool] = False
    """What it answers from can be made again from a log."""

    def __init__(self, directory: Path, index: Index | None) -> None:
        self.directory = directory
        self.index = index

    @abstractmethod
    def open(self) -> BaseStore:
        """Open the store; once at a time."""

    @abstractmethod
    def close(self) -> None:
        """Close what :meth:`open` opened."""

    @abstractmethod
    def open_async(self) -> AbstractAsyncContextManager[BaseStore]:
        """The store for coroutines, while it is also open for threads."""

    @classmethod
    def cannot_search(cls) -> str | None:
        """Why semantic search is not possible on this machine."""
        return None

    @classmethod
    @abstractmethod
    def load_modules(cls) -> None:
        """Import everything that opening needs, so that a measured open imports nothing."""


class Ours(Contender):
    name = "eventstore"
    title = "EventStore"
    durable = persistent = rebuilds = True

    def open(self) -> BaseStore:
        self._store = EventStore.open(self.directory, index=self.index)
        return self._store

    def close(self) -> None:
        self._store.close()

    @contextlib.asynccontextmanager
    async def open_async(self) -> AsyncIterator[BaseStore]:
        yield self._store

    @classmethod
    def load_modules(cls) -> None:
        importlib.import_module("projector.runtime")


class InMemory(Contender):
    name = "inmemory"
    title = "InMemoryStore"
    durable = persistent = False

    def open(self) -> BaseStore:
        self._store = InMemoryStore(index=self.index)  # type: ignore[arg-type]  # a dict, not the TypedDict
        return self._store

    def close(self) -> None:
        del self._store

    @contextlib.asynccontextmanager
    async def open_async(self) -> AsyncIterator[BaseStore]:
        yield self._store

    @classmethod
    def load_modules(cls) -> None:
        """It is one of this module's own imports."""


class Sqlite(Contender):
    """SqliteStore in the write-ahead mode, every commit synced: the durable setting that is fastest."""

    name = "sqlite"
    title = "SqliteStore"
    durable = persistent = True
    pragmas: ClassVar = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL")

    def open(self) -> BaseStore:
        module = importlib.import_module("langgraph.store.sqlite")
        self._opened: AbstractContextManager[Any] = module.SqliteStore.from_conn_string(
            self._file, index=self._index
        )
        store: Any = self._opened.__enter__()
        for pragma in self.pragmas:
            store.conn.execute(pragma)
        store.setup()
        opened: BaseStore = store
        return opened

    def close(self) -> None:
        self._opened.__exit__(None, None, None)

    @contextlib.asynccontextmanager
    async def open_async(self) -> AsyncIterator[BaseStore]:
        module = importlib.import_module("langgraph.store.sqlite.aio")
        async with module.AsyncSqliteStore.from_conn_string(self._file, index=self._index) as store:
            for pragma in self.pragmas:
                await store.conn.execute(pragma)
            await store.setup()
            yield store

    @property
    def _file(self) -> str:
        self.directory.mkdir(parents=True, exist_ok=True)
        return str(self.directory / "store.db")

    @property
    def _index(self) -> Index | None:
        # SqliteStore reads "text_fields" where the others read "fields".
        return None if self.index is None else {**self.index, "text_fields": self.index["fields"]}

    @classmethod
    def cannot_search(cls) -> str | None:
        if _with_extensions() is None:
            return "this Python's sqlite3 loads no extensions, and pysqlite3-binary is not installed"
        return None

    @classmethod
    def load_modules(cls) -> None:
        found = _with_extensions()
        if found is not None:
            sys.modules["sqlite3"] = found
        importlib.import_module("langgraph.store.sqlite.aio")


def _with_extensions() -> Any | None:
    """An SQLite module that can load the vector extension."""
    if hasattr(sqlite3.Connection, "enable_load_extension"):
        return sqlite3
    with contextlib.suppress(ImportError):
        return importlib.import_module("pysqlite3")
    return None


CONTENDERS: Final[dict[str, type[Contender]]] = {each.name: each for each in (Ours, InMemory, Sqlite)}
"""By name; the first is the one the others are compared with."""
