"""Caches for tests: on a told clock, and as many handles on one log as another process would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from eventstore import EventStore
from eventstore.cache import Cache, EventCache
from eventstore.cache.place import open_beside
from eventstore.cache.sealing import Seal
from eventstore.cache.shared import SharedCache
from eventstore.log.base import Log
from tests.cache.told import Clock, ToldLog


def told_cache(store: EventStore, clock: Clock, **options: Any) -> Cache:
    """A cache of its own on a store, sharing only the log with others."""
    log = ToldLog(open_beside(store._runtime.log), clock)
    return Cache(SharedCache(store._runtime, cast(Log, log), clock=clock, **options))


class ToldCache:
    """A cache with its clock, as the cache suite wants it."""

    def __init__(self, conn: str, options: dict[str, Any], clock: Clock | None = None) -> None:
        self._conn = conn
        self._options = options
        self._clock = clock or Clock()
        self._store = EventStore.open(conn, **options)
        self._cache = told_cache(self._store, self._clock)
        self.cache_get = self._cache.cache_get
        self.cache_set = self._cache.cache_set
        self.cache_delete = self._cache.cache_delete
        self.swr = self._cache.swr
        self.sync = self._cache.sync

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def peer(self) -> ToldCache:
        return ToldCache(self._conn, self._options, self._clock)

    def close(self) -> None:
        self._cache.close()
        self._store.close()


def node_cache(conn: str, options: dict[str, Any]) -> tuple[EventCache, dict[str, Any]]:
    """A node cache with the hooks of the node cache suite."""
    clock = Clock()
    store = EventStore.open(conn, **options)
    made: list[Cache] = []

    def handle() -> EventCache:
        made.append(told_cache(store, clock))
        return EventCache(made[-1])

    def sync() -> None:
        for each in made:
            each.shared.sync()

    class Closing(EventCache):
        def close(self) -> None:
            for each in made:
                each.close()
            store.close()

    made.append(told_cache(store, clock))
    return Closing(made[0]), {"advance": clock.advance, "peer": handle, "sync": sync}


def log_files(folder: Path) -> bytes:
    """Everything under a folder, for looking what is in it."""
    return b"\n".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


__all__ = ["Clock", "Seal", "ToldCache", "log_files", "node_cache", "told_cache"]
