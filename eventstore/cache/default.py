"""The cache functions without a cache in hand, as they are imported in LangGraph's Agent Server.

They use, in this order: the store of the ``with bound(store)`` around the call, the one given to
:func:`bind`, and inside of a LangGraph run the ``EventStore`` the graph was compiled with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from eventstore.cache.cache import Cache, SWRResult
from eventstore.cache.dependencies import Dependency
from eventstore.cache.loading import Loader
from eventstore.errors import InvalidConfig
from eventstore.store import EventStore

_bound: ContextVar[Cache | None] = ContextVar("eventstore_cache", default=None)
_default: list[Cache] = []


def bind(store: EventStore | Cache) -> Cache:
    """Use a store's cache for the functions of this module, in the whole process."""
    cache = _cache_of(store)
    _default[:] = [cache]
    return cache


@contextmanager
def bound(store: EventStore | Cache) -> Iterator[Cache]:
    """Use a store's cache for the functions of this module within the block, in this task or thread."""
    cache = _cache_of(store)
    token = _bound.set(cache)
    try:
        yield cache
    finally:
        _bound.reset(token)


async def swr(
    key: str,
    loader: Loader,
    *,
    fresh_for: timedelta | None = None,
    max_age: timedelta | None = None,
    model: type[Any] | None = None,
    depends_on: Iterable[Dependency] = (),
) -> SWRResult[Any]:
    """See :meth:`eventstore.cache.cache.Cache.swr`."""
    return await _current().swr(
        key, loader, fresh_for=fresh_for, max_age=max_age, model=model, depends_on=depends_on
    )


async def cache_get(key: str) -> Any:
    """See :meth:`eventstore.cache.cache.Cache.cache_get`."""
    return await _current().cache_get(key)


async def cache_set(key: str, value: Any, *, ttl: timedelta | None = None, durable: bool = False) -> None:
    """See :meth:`eventstore.cache.cache.Cache.cache_set`."""
    await _current().cache_set(key, value, ttl=ttl, durable=durable)


async def cache_delete(key: str) -> None:
    """See :meth:`eventstore.cache.cache.Cache.cache_delete`."""
    await _current().cache_delete(key)


def _current() -> Cache:
    cache = _bound.get() or (_default[0] if _default else None)
    if cache is not None:
        return cache
    config = var_child_runnable_config.get() or {}
    runtime = (config.get("configurable") or {}).get("__pregel_runtime")
    store = getattr(runtime, "store", None)
    if isinstance(store, EventStore):
        return Cache.from_store(store)
    raise InvalidConfig("no store to cache on: call eventstore.cache.bind(store) when the program starts")


def _cache_of(store: EventStore | Cache) -> Cache:
    return store if isinstance(store, Cache) else Cache.from_store(store)
