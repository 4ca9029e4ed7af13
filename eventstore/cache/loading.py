"""Loading a value and storing it, for callers who wait and in the background.

A value that somebody wrote while a load ran beats what the load brings. A value that was loaded is
never lost to the cache's own trouble: it is returned, and a warning says that it was not kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import orjson

from eventstore.cache.entries import Entry
from eventstore.cache.events import CacheEvent, Depends, Kind, Space
from eventstore.cache.flights import Flight, Flights, Loaded
from eventstore.cache.shared import SharedCache
from eventstore.errors import EventStoreError, InvalidType

log = logging.getLogger("eventstore.cache")

Loader = Callable[[], Awaitable[Any]]


class Request(NamedTuple):
    """What a call of ``swr`` asks for."""

    digest: bytes
    loader: Loader
    max_age_us: int
    model: Any
    """A class with ``model_validate``, or ``None``."""
    depends_on: tuple[bytes, ...]


def to_json(value: Any) -> bytes:
    """A value as the log keeps it. Raises ``InvalidType`` for what JSON has no place for."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise InvalidType(f"a cache value must be JSON: {error}") from error


def modelled(value: Any, model: Any) -> bytes:
    """A model instance as the log keeps it. Raises ``InvalidType`` for anything else."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise InvalidType(
            f"with model={model.__name__} the value is an instance of it, not {type(value).__name__}"
        )
    return to_json(dump(mode="json"))


class Loading:
    """The loads of one cache in this process."""

    def __init__(self, shared: SharedCache) -> None:
        self._shared = shared
        self._flights = Flights()

    async def find(self, digest: bytes, depends_on: tuple[bytes, ...] = ()) -> Entry | None:
        """The entry, expired or not, unless a memory it depends on has changed.

        One that does not depend on all of ``depends_on`` is no answer to who asks for that.
        """
        shared = self._shared
        shared.check()
        if shared.is_behind():
            await asyncio.to_thread(shared.catch_up)
        entry = shared.find(digest)
        if entry is None or (not depends_on and entry.depends is None):
            return entry
        if entry.depends is None or not set(depends_on) <= set(entry.depends.on):
            return None
        if shared.changes.is_behind() and not await asyncio.to_thread(shared.changes.catch_up):
            return None
        return shared.find(digest)

    async def load(self, request: Request) -> Loaded:
        """Load, or wait for a load of the same key that is on its way. Raises what the loader raises."""
        while True:
            flight, mine = self._flights.of(request.digest), False
            if flight is None or flight.cooling or await self._is_outdated(flight, request):
                flight, mine = self._begin(request, instead=flight)
            loaded = await flight.wait()
            if loaded is not None:
                return loaded
            if mine:
                raise asyncio.CancelledError("the load was cancelled")

    def refresh(self, request: Request) -> None:
        """Load in the background, unless that is on its way. Never raises; failures are logged."""
        digest = request.digest
        try:
            if self._flights.of(digest) is not None:
                return
            flight, mine = self._begin(request, delay=self._flights.delay(digest))
        except (RuntimeError, EventStoreError) as error:
            log.warning("a refresh could not begin (%s); the old value goes on being served", error)
            return
        if mine and flight.task is not None:
            flight.task.add_done_callback(lambda task: _report(flight, task))

    async def write(self, request: Request, data: bytes) -> None:
        """Store a value that the caller gave."""
        depends = None
        if request.depends_on:
            changes = self._shared.changes
            depends = changes.depends(request.depends_on, await asyncio.to_thread(changes.now))
        await self._shared.awrite([_event(request, data, depends, loaded=False)])

    # ------------------------------------------------------------------ inside

    def _begin(
        self, request: Request, *, instead: Flight | None = None, delay: float = 0.0
    ) -> tuple[Flight, bool]:
        return self._flights.begin(
            request.digest,
            lambda flight: self._run(request, flight),
            request.depends_on,
            instead=instead,
            delay=delay,
        )

    async def _is_outdated(self, flight: Flight, request: Request) -> bool:
        """Whether a load began before a change that this caller may know of."""
        if not set(request.depends_on) <= set(flight.depends_on):
            return True
        seen, changes = flight.seen, self._shared.changes
        if seen is None:
            return False
        if changes.is_behind() and not await asyncio.to_thread(changes.catch_up):
            return True
        return changes.changed(flight.depends_on, seen)

    async def _run(self, request: Request, flight: Flight) -> Loaded:
        shared = self._shared
        with contextlib.ExitStack() as stack:
            depends = None
            if request.depends_on:
                seen = await asyncio.to_thread(shared.changes.now)
                depends = shared.changes.depends(request.depends_on, seen)
                stack.enter_context(shared.changes.since(seen))
                flight.seen = seen
            watch = stack.enter_context(shared.watching(request.digest))
            awaitable = request.loader()
            if not inspect.isawaitable(awaitable):
                raise InvalidType(
                    f"a loader is an async function; this one returned {type(awaitable).__name__}"
                )
            own = await awaitable
            if request.model is None:
                loaded = Loaded(own, to_json(own), modelled=False)
            else:
                data = modelled(own, request.model)
                request.model.model_validate(orjson.loads(data))
                loaded = Loaded(own, data, modelled=True)
            try:
                event = _event(request, loaded.data, depends, loaded=True)
                if await shared.awrite([event], watch):
                    return loaded
            except EventStoreError as error:
                log.warning("a loaded value is not kept: %s", error)
                return loaded
        written = shared.find(request.digest)
        if written is None:
            return loaded
        return Loaded(orjson.loads(written.value), written.value, modelled=False)


def _event(request: Request, data: bytes, depends: Depends | None, *, loaded: bool) -> CacheEvent:
    return CacheEvent(
        Kind.SET,
        request.digest,
        Space.SWR,
        data,
        ttl_us=request.max_age_us,
        loaded=loaded,
        depends=depends,
    )


def _report(flight: Flight, task: asyncio.Task[Loaded]) -> None:
    if not task.cancelled() and not flight.was_awaited and (error := task.exception()) is not None:
        log.warning(
            "a refresh failed (%s); the old value goes on being served", type(error).__name__, exc_info=error
        )
