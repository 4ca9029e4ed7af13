"""LangGraph's node cache on the cache's log, for ``compile(cache=...)`` and ``CachePolicy``.

What a graph asks of it never fails the run: an error becomes a miss, or a result that is not kept,
and a warning. Values go through the serializer as they are handed over; nothing is pickled unless
a serializer that pickles is given.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from langgraph.cache.base import BaseCache, FullKey, Namespace
from langgraph.checkpoint.serde.base import SerializerProtocol

from eventstore.cache.cache import Cache
from eventstore.cache.entries import Entry
from eventstore.cache.events import DAY_US, CacheEvent, Kind, Space
from eventstore.errors import EventStoreError, InvalidType
from eventstore.store import EventStore

log = logging.getLogger("eventstore.cache")

_SECOND_US: Final = 1_000_000


class EventCache(BaseCache[Any]):
    """A node cache that processes share and restarts keep. Safe for threads and event loops.

    An entry without a ttl lives for a day, as long as the log keeps it.
    """

    def __init__(self, source: EventStore | Cache, *, serde: SerializerProtocol | None = None) -> None:
        """On a store, or on its cache, with which it ends. Raises as :meth:`Cache.from_store`."""
        super().__init__(serde=serde)
        self._shared = (source if isinstance(source, Cache) else Cache.from_store(source)).shared

    def get(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """The values that are there, under the keys as they were asked for."""
        try:
            self._shared.check()
            if keys and self._shared.is_behind():
                self._shared.catch_up()
            return self._found(keys)
        except EventStoreError as error:
            return _missed(error)

    async def aget(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        """:meth:`get` for coroutines."""
        try:
            self._shared.check()
            if keys and self._shared.is_behind():
                await asyncio.to_thread(self._shared.catch_up)
            return self._found(keys)
        except EventStoreError as error:
            return _missed(error)

    def set(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """Store values, each for its seconds, or for a day.

        Raises what the serializer raises, except for the writes of a node, which are then not kept.
        """
        events = self._events(pairs)
        try:
            self._shared.write(events)
        except EventStoreError as error:
            _lost(error)

    async def aset(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> None:
        """:meth:`set` for coroutines."""
        events = self._events(pairs)
        try:
            await self._shared.awrite(events)
        except EventStoreError as error:
            _lost(error)

    def clear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """Remove the entries of these namespaces, exactly; of all when there is no argument.

        Raises ``LogUnavailable``, since an entry that was to go must not stay in silence.
        """
        self._shared.write(self._clears(namespaces))

    async def aclear(self, namespaces: Sequence[Namespace] | None = None) -> None:
        """:meth:`clear` for coroutines."""
        await self._shared.awrite(self._clears(namespaces))

    # ------------------------------------------------------------------ inside

    def _found(self, keys: Sequence[FullKey]) -> dict[FullKey, Any]:
        now = self._shared.clock()
        found: dict[FullKey, Any] = {}
        for full in keys:
            entry = self._shared.find(self._digest(full))
            if entry is None or entry.expires_us <= now:
                continue
            try:
                found[full] = self._value(entry)
            except Exception as error:
                # A serializer may raise anything, and a miss is always right.
                log.warning("a cached result cannot be read (%s); the node runs", type(error).__name__)
        return found

    def _value(self, entry: Entry) -> Any:
        return self.serde.loads_typed((entry.form, entry.value))

    def _events(self, pairs: Mapping[FullKey, tuple[Any, int | None]]) -> list[CacheEvent]:
        events: list[CacheEvent] = []
        for full, (value, ttl) in pairs.items():
            try:
                events.append(self._event(full, value, ttl))
            except Exception as error:
                # A node's writes come as a deque. Its graph has nobody to tell, and must go on.
                if not isinstance(value, deque):
                    raise
                _lost(error)
        return events

    def _event(self, full: FullKey, value: Any, ttl: int | None) -> CacheEvent:
        digest = self._digest(full)
        if ttl is not None and ttl <= 0:
            return CacheEvent(Kind.DELETE, digest, Space.NODE)
        life = DAY_US if ttl is None else min(DAY_US, round(ttl * _SECOND_US))
        form, data = self.serde.dumps_typed(value)
        return CacheEvent(
            Kind.SET, digest, Space.NODE, data, form=form, ttl_us=life, group=self._group(full[0])
        )

    def _clears(self, namespaces: Sequence[Namespace] | None) -> list[CacheEvent]:
        if namespaces is None:
            return [CacheEvent(Kind.CLEAR, self._shared.seal.digest(Space.GROUP, b""), Space.NODE)]
        return [CacheEvent(Kind.CLEAR, self._group(each), Space.GROUP) for each in namespaces]

    def _digest(self, full: FullKey) -> bytes:
        namespace, key = full
        return self._shared.seal.digest(Space.NODE, _joined((*namespace, key)))

    def _group(self, namespace: Namespace) -> bytes:
        # Behind a byte, so that the empty namespace is not taken for all of them.
        return self._shared.seal.digest(Space.GROUP, b"." + _joined(namespace))


def _joined(parts: Sequence[str]) -> bytes:
    """Texts as bytes that no other texts have."""
    joined = []
    for part in parts:
        if not isinstance(part, str):
            raise InvalidType(f"namespaces and keys of a node cache are text, not {type(part).__name__}")
        raw = part.encode("utf-8", "surrogatepass")
        joined += [b"%d:" % len(raw), raw]
    return b"".join(joined)


def _missed(error: EventStoreError) -> dict[FullKey, Any]:
    log.warning("the node cache cannot be read, so the nodes run: %s", error)
    return {}


def _lost(error: Exception) -> None:
    log.warning("a node's result is not kept (%s): %s", type(error).__name__, error)
