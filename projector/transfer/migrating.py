"""Migration: the memories of any other LangGraph store, listed through its own interface.

What the target has already is left alone, so a migration is repeated until nothing is left to
write. A ``BaseStore`` does not tell a memory's time to live, its vectors or its past; those begin
anew in the target. How a source is read to its last memory is decided in ``listing``.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Any, Final

from langgraph.store.base import BaseStore, Item
from pydantic import BaseModel, ConfigDict, ValidationError

from eventstore import EventStore
from eventstore.errors import InvalidInput, InvalidType
from eventstore.events import Provenance
from projector.progress import Bar
from projector.runtime import runtime_of
from projector.transfer.lines import Line
from projector.transfer.listing import PAGE, Listing
from projector.transfer.loading import Loader
from projector.transfer.sources import opened

log = logging.getLogger("projector.transfer")

BUILT_IN: Final = {
    "postgres": ("langgraph.store.postgres", "PostgresStore"),
    "postgresql": ("langgraph.store.postgres", "PostgresStore"),
    "redis": ("langgraph.store.redis", "RedisStore"),
    "rediss": ("langgraph.store.redis", "RedisStore"),
    "sqlite": ("langgraph.store.sqlite", "SqliteStore"),
}
"""Module and class by what a source's connection string begins with."""


class Migrated(BaseModel):
    """What a migration did, in memories."""

    model_config = ConfigDict(frozen=True)

    read: int
    written: int
    present: int
    """Left alone because the target says the same already."""
    embedded: int
    """Written by way of the target's embedding model."""
    seconds: float


def migrate(
    source: BaseStore,
    target: EventStore,
    *,
    prefix: tuple[str, ...] = (),
    ttl: float | None = None,
    actor: str = "migrate",
) -> Migrated:
    """Write the source's memories that the target does not have as they are there.

    ``created_at`` and ``updated_at`` are the target's own; memories keep their order of update from
    append to append, within each tree of namespaces. ``ttl`` (minutes) is given to each memory
    written, since sources do not tell theirs. Can be stopped at any moment and started again.
    Raises what the source raises, and ``InvalidInput`` naming a memory that cannot be kept.
    """
    runtime = runtime_of(target)
    runtime.catch_up()
    loader = Loader(target, Provenance(actor), runtime.config.max_value_bytes)
    listing = Listing(source, prefix)
    with Bar("copying memories", log) as bar:
        for item in listing:
            _load(loader, item, ttl)
            if listing.read % PAGE == 0:
                bar.update(listing.read, max(listing.total, listing.read))
        loader.flush()
        return Migrated(
            read=listing.read,
            written=loader.written,
            present=loader.present,
            embedded=loader.embedded,
            seconds=bar.seconds,
        )


def open_source(name: str) -> AbstractContextManager[BaseStore]:
    """A store by its connection string, or by ``module:factory``, closed at the end of the block.

    ``postgresql://…``, ``redis://…`` and ``sqlite:path`` open LangGraph's own stores. A factory is
    called without arguments and gives a store, or a context manager that does. Raises
    ``InvalidConfig`` for what cannot be opened, ``InvalidType`` for what is no store.
    """
    kind: Any = BaseStore  # an abstract class is no type[T] to the type checker
    return opened(name, BUILT_IN, kind, lambda store: store.search((), limit=1, refresh_ttl=False))


def _load(loader: Loader, item: Item, ttl: float | None) -> None:
    try:
        loader.memory(Line(namespace=list(item.namespace), key=item.key, value=item.value, ttl_minutes=ttl))
    except (InvalidInput, InvalidType, ValidationError) as error:
        why = "its value is no JSON object" if isinstance(error, ValidationError) else str(error)
        raise InvalidInput(f"the memory {item.key!r} in {item.namespace} cannot be kept: {why}") from error
