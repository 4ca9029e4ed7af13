"""The factory that ``langgraph.json`` names: one durable store for the server, opened off its event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from eventstore.agent_server.caching import install_cache
from eventstore.agent_server.holding import Holder, held
from eventstore.agent_server.settings import Settings, runs_in_memory
from eventstore.cache import Cache
from eventstore.errors import InvalidConfig
from eventstore.store import EventStore

log = logging.getLogger("eventstore.agent_server")


@asynccontextmanager
async def store() -> AsyncIterator[EventStore]:
    """The server's store: ``"store": {"path": "eventstore.agent_server.store"}``.

    It is opened once per process, whoever asks, and closed when the server ends. Raises what
    :meth:`EventStore.open` raises; the server then does not start.
    """
    holder = Holder()
    try:
        # Without an await where it is open already: a server thread that asks twice at once
        # would find its own half-made entry.
        opened = held.join_open(holder)
        if opened is None:
            opened = await asyncio.to_thread(held.join, holder, _open)
        yield opened
    finally:
        await asyncio.to_thread(held.leave, holder)


def _open() -> EventStore:
    settings = Settings.of_server()
    opened = EventStore.open(
        settings.conn_string,
        views=settings.views,
        index=settings.index,
        ttl=settings.ttl,
        config=settings.config,
    )
    try:
        # The server starts the sweeper of its own store only.
        opened.start_ttl_sweeper()
        if settings.cache or (settings.cache is None and runs_in_memory()):
            Cache.from_store(opened)
            _install(asked_for=settings.cache is True)
    except BaseException:
        opened.close()
        raise
    log.info("the server's store is %r", opened)
    return opened


def _install(*, asked_for: bool) -> None:
    try:
        install_cache()
    except InvalidConfig as error:
        if asked_for:
            raise
        log.warning("the server keeps its own cache: %s", error)
