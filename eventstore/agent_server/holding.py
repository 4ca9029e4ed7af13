"""One store for the whole process, counted by those who hold it.

With ``BG_JOB_ISOLATED_LOOPS`` the server asks for the store once per worker thread, and must get
the same one each time. It tells only the holder in the main thread when the end has come; so the
store closes with its last holder, or with the last one in the main thread, whichever is first.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from eventstore.cache import Cache
from eventstore.errors import StoreClosed
from eventstore.store import EventStore

log = logging.getLogger("eventstore.agent_server")


class Holder:
    """One who holds the store: a context that was entered, in the thread that entered it."""

    def __init__(self) -> None:
        self.is_main = threading.current_thread() is threading.main_thread()
        self.left = False


class Holding:
    """The store of the process, opened for the first holder. Safe for threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: set[Holder] = set()
        self._store: EventStore | None = None
        self._cached: EventStore | None = None
        """The store whose cache is open."""

    def join_open(self, holder: Holder) -> EventStore | None:
        """The store, if it is open; never waits, so it may be called on an event loop."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._store is not None:
                self._holders.add(holder)
            return self._store
        finally:
            self._lock.release()

    def join(self, holder: Holder, opener: Callable[[], EventStore]) -> EventStore:
        """The store, opened if need be, which may take a while. Raises what the opener raises."""
        with self._lock:
            if holder.left:
                raise StoreClosed("the one who asked for the store left while it was being opened")
            if self._store is None:
                self._store = opener()
            self._holders.add(holder)
            return self._store

    def leave(self, holder: Holder) -> None:
        """Give it up, which may close the store and take a while. Idempotent."""
        with self._lock:
            holder.left = True
            if holder not in self._holders:
                return
            self._holders.remove(holder)
            if holder.is_main and not any(each.is_main for each in self._holders):
                self._holders.clear()
            if not self._holders and self._store is not None:
                store, self._store, self._cached = self._store, None, None
                # In here, so that who opens next finds log and view given up.
                store.close()
                log.info("the server's store is closed")

    @property
    def store(self) -> EventStore:
        """The store. Raises ``StoreClosed`` when nobody holds it."""
        store = self._store
        if store is None:
            raise StoreClosed(
                "no store of the server is open in this process; langgraph.json names it: "
                '"store": {"path": "eventstore.agent_server.store"}'
            )
        return store

    def cache(self) -> Cache:
        """The store's cache; its first use in a process reads files. Raises as :meth:`Cache.from_store`."""
        store = self.store
        cache = Cache.from_store(store)
        self._cached = store
        return cache

    def cache_if_open(self) -> Cache | None:
        """The store's cache unless files would have to be read for it. Raises ``StoreClosed``."""
        store = self.store
        return Cache.from_store(store) if self._cached is store else None

    def forked(self) -> None:
        """Forget the parent's store, which cannot be used in a child."""
        self._lock = threading.Lock()
        self._holders = set()
        self._store = self._cached = None


held = Holding()
os.register_at_fork(after_in_child=held.forked)
