"""The cache as agents use it: ``swr``, ``cache_get``, ``cache_set`` and ``cache_delete`` on a store.

It behaves as the functions of the same names in LangGraph's Agent Server, without the server, and
on a log: every process on the store sees the same entries, and a restart keeps them.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Generic, Literal, NamedTuple, Self, TypeVar

import orjson

from eventstore.cache.dependencies import Dependency, encoded
from eventstore.cache.entries import Entry
from eventstore.cache.events import DAY_US, CacheEvent, Kind, Space
from eventstore.cache.loading import Loader, Loading, Request, modelled, to_json
from eventstore.cache.place import open_beside
from eventstore.cache.sealing import Seal
from eventstore.cache.shared import LOG_BYTES, MEMORY_BYTES, SharedCache
from eventstore.errors import InvalidInput, InvalidType
from eventstore.store import EventStore
from eventstore.views import Runtime

T = TypeVar("T")
Status = Literal["miss", "fresh", "stale", "expired"]

_DAY: Final = timedelta(microseconds=DAY_US)
_MICROSECOND: Final = timedelta(microseconds=1)
_MILLISECOND: Final = timedelta(milliseconds=1)
_ABSENT: Final[Any] = object()
_NOTHING: Final = timedelta(0)


class _Windows(NamedTuple):
    """Whole milliseconds, as in the Agent Server."""

    fresh_ms: int
    age_ms: int


class SWRResult(Generic[T]):
    """What :meth:`Cache.swr` returns: the value, and how it came."""

    __slots__ = ("_loading", "_request", "status", "value")

    def __init__(self, loading: Loading, request: Request, value: T, status: Status) -> None:
        self._loading = loading
        self._request = request
        self.value = value
        self.status: Status = status
        """``miss`` and ``expired``: loaded now. ``fresh``: stored. ``stale``: stored, a refresh runs."""

    async def mutate(self, value: T = _ABSENT) -> T:
        """Store a value, or load again if none is given; returns it, and ``.value`` becomes it.

        What is stored is fresh from now, for the ``max_age`` of the call. On an error (of the
        loader, of a value that is not JSON, of the log) value and entry stay as they were.
        """
        request = self._request
        if value is _ABSENT:
            loaded = await self._loading.load(request)
            value = _of_load(loaded.own, loaded.data, loaded.modelled, request.model)
        else:
            data = to_json(value) if request.model is None else modelled(value, request.model)
            await self._loading.write(request, data)
        self.value = value
        return value

    def __repr__(self) -> str:
        return f"SWRResult(value={self.value!r}, status={self.status!r})"


class Cache:
    """A cache beside the memories of a store. Safe for several threads and event loops."""

    def __init__(self, shared: SharedCache) -> None:
        """Use :meth:`from_store`."""
        self._shared = shared
        self._loading = Loading(shared)

    @classmethod
    def from_store(
        cls, store: EventStore, *, memory_bytes: int = MEMORY_BYTES, log_bytes: int = LOG_BYTES
    ) -> Cache:
        """The cache of a store; it ends with the store. Asking again gives the same.

        ``memory_bytes`` bounds what this process keeps of it in memory, ``log_bytes`` what it takes
        on disk beside an embedded log; the first call in a process decides.
        Raises ``InvalidConfig``, ``LogUnavailable``, and ``LogDamaged`` for files that do not hold.
        """
        if not isinstance(store, EventStore):
            raise InvalidType(f"a cache is made from an EventStore, not from a {type(store).__name__}")
        store.setup()
        runtime = store._runtime
        with _opening:
            found = _caches.get(runtime)
            if found is None:
                seal = Seal.of_environment()
                found = _caches[runtime] = cls(
                    SharedCache(
                        runtime,
                        open_beside(runtime.log),
                        memory_bytes=memory_bytes,
                        log_bytes=log_bytes,
                        seal=seal,
                        on_close=lambda: _forget(runtime),
                    )
                )
            return found

    # ------------------------------------------------------------------ values

    async def cache_get(self, key: str) -> Any:
        """The value under a key; ``None`` when there is none, or its time is over."""
        entry = await self._loading.find(self._digest(Space.VALUE, key))
        if entry is None or entry.expires_us <= self._shared.clock():
            return None
        return orjson.loads(entry.value)

    async def cache_set(
        self, key: str, value: Any, *, ttl: timedelta | None = None, durable: bool = False
    ) -> None:
        """Store a JSON value for a time: at most, and by default, one day.

        With ``durable`` it survives a power cut when this returns; without, only the process.
        Raises ``InvalidType`` for what is not JSON, ``LogUnavailable`` and ``LimitExceeded``.
        """
        if ttl is not None and not isinstance(ttl, timedelta):
            raise InvalidType(f"ttl is a timedelta, not {type(ttl).__name__}")
        life = _DAY if ttl is None or ttl <= _NOTHING else min(ttl, _DAY)
        digest = self._digest(Space.VALUE, key)
        event = CacheEvent(Kind.SET, digest, Space.VALUE, to_json(value), ttl_us=life // _MICROSECOND)
        await self._shared.awrite([event])
        if durable:
            await asyncio.to_thread(self._shared.make_durable)

    async def cache_delete(self, key: str) -> None:
        """Remove what :meth:`cache_set` and what :meth:`swr` stored under a key."""
        spaces = (Space.VALUE, Space.SWR)
        await self._shared.awrite([CacheEvent(Kind.DELETE, self._digest(each, key), each) for each in spaces])

    # ------------------------------------------------------------------ stale while revalidate

    async def swr(
        self,
        key: str,
        loader: Loader,
        *,
        fresh_for: timedelta | None = None,
        max_age: timedelta | None = None,
        model: type[Any] | None = None,
        depends_on: Iterable[Dependency] = (),
    ) -> SWRResult[Any]:
        """The value under a key, loaded when it is missing, and refreshed behind the caller's back.

        Younger than ``fresh_for`` (default 0) it is returned as it is; younger than ``max_age``
        (default and most one day) too, and one load begins in the background; else the loader is
        awaited. ``model`` is a pydantic model that the loader returns and the caller gets; stored
        data that does not fit it counts as missing. ``depends_on`` names memories, as (namespace,
        key), and namespace prefixes: when one of them changes, the value counts as missing.

        Raises what the loader raises when it is awaited; ``InvalidInput`` for windows that make no
        sense and for a loader that asks for its own key; ``InvalidType`` for a value that is not JSON.
        """
        windows = _windows(fresh_for, max_age)
        if model is not None and not hasattr(model, "model_validate"):
            model = None
        request = Request(
            self._digest(Space.SWR, key),
            loader,
            1000 * windows.age_ms,
            model,
            encoded(depends_on) if depends_on else (),
        )
        entry = await self._loading.find(request.digest, request.depends_on)
        status: Status = "miss"
        if entry is not None:
            status = self._status(entry, windows)
            if status in ("fresh", "stale"):
                value = _of_entry(entry, model)
                if value is not _ABSENT:
                    if status == "stale":
                        self._loading.refresh(request)
                    return SWRResult(self._loading, request, value, status)
                status = "miss"
        loaded = await self._loading.load(request)
        value = _of_load(loaded.own, loaded.data, loaded.modelled, model)
        return SWRResult(self._loading, request, value, status)

    # ------------------------------------------------------------------ life cycle

    async def sync(self) -> None:
        """Return when all that any process had written, memories included, is visible here.

        Of use on Kafka, where others' writes arrive within milliseconds, yet not at once.
        """
        await asyncio.to_thread(self._shared.sync)

    def close(self) -> None:
        """Release the cache's log. Closing the store does this too. Idempotent."""
        self._shared.close()

    async def aclose(self) -> None:
        """:meth:`close` for coroutines."""
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def shared(self) -> SharedCache:
        """The engine, for other faces of the same cache."""
        return self._shared

    # ------------------------------------------------------------------ inside

    def _digest(self, space: Space, key: str) -> bytes:
        if not isinstance(key, str):
            raise InvalidType(f"a cache key is a str, not {type(key).__name__}")
        return self._shared.seal.digest(space, key.encode("utf-8", "surrogatepass"))

    def _status(self, entry: Entry, windows: _Windows) -> Status:
        # A clock that is behind the log's makes no negative age.
        age_ms = max(0, self._shared.clock() // 1000 - entry.stored_us // 1000)
        kept_ms = (entry.expires_us - entry.stored_us) // 1000
        if age_ms >= min(kept_ms, windows.age_ms):
            return "expired"
        return "fresh" if age_ms < windows.fresh_ms else "stale"


def _windows(fresh_for: timedelta | None, max_age: timedelta | None) -> _Windows:
    fresh = _NOTHING if fresh_for is None else fresh_for
    age = _DAY if max_age is None else max_age
    if not isinstance(fresh, timedelta) or not isinstance(age, timedelta):
        raise InvalidType("fresh_for and max_age are timedeltas, or None for the default")
    fresh, age = min(fresh, _DAY), min(age, _DAY)
    if fresh < _NOTHING:
        raise InvalidInput(f"fresh_for is not negative; got {fresh}")
    if age <= _NOTHING:
        raise InvalidInput(f"max_age is above zero; got {age}")
    if fresh > age:
        raise InvalidInput(f"fresh_for is at most max_age; got {fresh} and {age}")
    return _Windows(fresh // _MILLISECOND, age // _MILLISECOND)


def _of_entry(entry: Entry, model: Any) -> Any:
    """The stored value; absent when it does not fit the model."""
    raw = orjson.loads(entry.value)
    if model is None:
        return raw
    try:
        return model.model_validate(raw)
    except ValueError:
        return _ABSENT


def _of_load(own: Any, data: bytes, is_model: bool, model: Any) -> Any:
    """What a caller gets of a load, which another caller may have begun with another model."""
    if model is not None:
        return model.model_validate(orjson.loads(data))
    return orjson.loads(data) if is_model else own


_opening = threading.Lock()
_caches: dict[Runtime, Cache] = {}


def _forget(runtime: Runtime) -> None:
    _caches.pop(runtime, None)


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    _caches.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    for cache in list(_caches.values()):
        cache.close()
