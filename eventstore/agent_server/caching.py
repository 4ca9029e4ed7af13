"""The server's own cache functions, and its graphs' node cache, on the log beside the memories.

``langgraph_sdk.cache`` calls ``langgraph_api.cache``, which keeps values through two functions
that it looks up anew for each call. They are not public, so each name is looked for before it is
assigned. Its ``swr`` is replaced as well: its loads belong to one event loop each.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any, Final

import orjson
from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.checkpoint.serde.base import SerializerProtocol

from eventstore.agent_server.holding import held
from eventstore.cache import Cache, EventCache, SWRResult
from eventstore.cache.events import CacheEvent, Kind, Space
from eventstore.cache.loading import Loader
from eventstore.errors import EventStoreError, InvalidConfig
from eventstore.store import EventStore

log = logging.getLogger("eventstore.agent_server")

SERVER: Final = "langgraph_api.cache"
SDK: Final = "langgraph_sdk.cache"
SWR_PREFIX: Final = "__lg_swr__:"
"""Before the keys under which the server's own ``swr`` keeps its values."""


def install_cache(source: EventStore | Cache | None = None) -> None:
    """Make the server's ``swr``, ``cache_get`` and ``cache_set`` keep their values on a store's log.

    On ``source``, else on the store the server has open when they are called. Opens the cache, so
    call it where a module is imported. Raises ``InvalidConfig`` outside of the server, and when the
    server's cache is not made as expected; then nothing is changed.
    """
    server = _server()
    missing = [name for name in ("_cache_get", "_cache_set") if not callable(getattr(server, name, None))]
    if missing:
        raise InvalidConfig(
            f"{SERVER} has no {' and no '.join(missing)}: this version of langgraph-api keeps its cache "
            'otherwise. Use eventstore.cache in your graphs, and set "cache": false in the store section'
        )
    given = Cache.from_store(source) if isinstance(source, EventStore) else source
    calls = _Calls(_open_cache if given is None else _always(given))
    _assign(server, "_cache_get", calls.get)
    _assign(server, "_cache_set", calls.set)
    if callable(getattr(server, "swr", None)):
        _assign(server, "swr", calls.swr)
        # Imported already, it holds the function that was there before.
        sdk = sys.modules.get(SDK)
        if getattr(sdk, "_api_swr", None) is not None:
            _assign(sdk, "_api_swr", calls.swr)


def node_cache(*, serde: SerializerProtocol | None = None) -> BaseCache[Any]:
    """A node cache on the server's store, for ``compile(cache=node_cache())``.

    Made before the store is open, or after it was closed, it finds nothing and keeps nothing.
    """
    return _NodeCache(serde=serde)


class _Calls:
    """What stands in for the server's functions."""

    def __init__(self, cache: Callable[[], Awaitable[Cache]]) -> None:
        self._cache = cache

    async def get(self, key: str) -> bytes | None:
        value = await (await self._cache()).cache_get(key)
        return None if value is None else orjson.dumps(value)

    async def set(self, key: str, value: bytes, ttl: timedelta | None = None) -> None:
        cache = await self._cache()
        await cache.cache_set(key, orjson.Fragment(value), ttl=ttl)
        if key.startswith(SWR_PREFIX):
            # Known as the way to end an entry of swr, which has no other.
            digest = cache.shared.seal.digest(
                Space.SWR, key.removeprefix(SWR_PREFIX).encode("utf-8", "surrogatepass")
            )
            await cache.shared.awrite([CacheEvent(Kind.DELETE, digest, Space.SWR)])

    async def swr(
        self,
        key: str,
        loader: Loader,
        *,
        fresh_for: timedelta | None = None,
        max_age: timedelta | None = None,
        model: type[Any] | None = None,
    ) -> SWRResult[Any]:
        cache = await self._cache()
        return await cache.swr(key, loader, fresh_for=fresh_for, max_age=max_age, model=model)


class _NodeCache(BaseCache[Any]):
    """``EventCache`` on whichever store the server has open when it is asked."""

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        try:
            return self._on(held.cache()).get(keys)
        except EventStoreError as error:
            _without(error)
            return {}

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        on = await self._found()
        return {} if on is None else await on.aget(keys)

    def set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        try:
            on = self._on(held.cache())
        except EventStoreError as error:
            _without(error)
            return
        on.set(pairs)

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        on = await self._found()
        if on is not None:
            await on.aset(pairs)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        self._on(held.cache()).clear(namespaces)

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        await self._on(await _open_cache()).aclear(namespaces)

    async def _found(self) -> EventCache | None:
        try:
            return self._on(await _open_cache())
        except EventStoreError as error:
            _without(error)
            return None

    def _on(self, cache: Cache) -> EventCache:
        return EventCache(cache, serde=self.serde)


async def _open_cache() -> Cache:
    """The cache of the server's store; where it is not open yet, that is done in a thread."""
    cache = held.cache_if_open()
    return await asyncio.to_thread(held.cache) if cache is None else cache


def _always(cache: Cache) -> Callable[[], Awaitable[Cache]]:
    async def given() -> Cache:
        return cache

    return given


def _without(error: EventStoreError) -> None:
    log.warning("there is no node cache now, so the nodes run: %s", error)


def _server() -> ModuleType:
    try:
        return importlib.import_module(SERVER)
    except Exception as error:
        # Outside of the server its settings are missing, and it raises whatever that leads to.
        raise InvalidConfig(
            f"{SERVER} cannot be imported ({type(error).__name__}), so this is no Agent Server; "
            "elsewhere use the functions of eventstore.cache"
        ) from error


def _assign(module: Any, name: str, function: object) -> None:
    setattr(module, name, function)
