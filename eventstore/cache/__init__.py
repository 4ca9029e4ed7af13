"""A cache on a log beside the memories: ``swr``, ``cache_get``, ``cache_set``, and LangGraph's node cache."""

from eventstore.cache.cache import Cache, SWRResult
from eventstore.cache.default import bind, bound, cache_delete, cache_get, cache_set, swr
from eventstore.cache.node import EventCache

__all__ = [
    "Cache",
    "EventCache",
    "SWRResult",
    "bind",
    "bound",
    "cache_delete",
    "cache_get",
    "cache_set",
    "swr",
]
