"""Migration: the memories of any other LangGraph store, listed through its own interface.

What the target has already is left alone, so a migration is repeated until nothing is left to
write. A ``BaseStore`` does not tell a memory's time to live, its vectors or its past; those begin
anew in the target. How a source is read to its last memory is decided in ``listing``.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from langgraph.store.base import BaseStore, Item
from pydantic import BaseModel, ConfigDict, ValidationError

from eventstore import EventStore
from eventstore.errors import EventStoreError, InvalidConfig, InvalidInput, InvalidType
from eventstore.events import Provenance
from projector.progress import Bar
from projector.runtime import runtime_of
from projector.transfer.lines import Line
from projector.transfer.listing import PAGE, Listing
from projector.transfer.loading import Loader

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


@contextmanager
def open_source(name: str) -> Iterator[BaseStore]:
    """A store by its connection string, or by ``module:factory``, closed at the end of the block.

    ``postgresql://…``, ``redis://…`` and ``sqlite:path`` open LangGraph's own stores. A factory is
    called without arguments and gives a store, or a context manager that does. Raises
    ``InvalidConfig`` for what cannot be opened, ``InvalidType`` for what is no store.
    """
    scheme, separator, rest = name.partition(":")
    if not separator:
        raise InvalidConfig(
            f"{name!r} names no store; give {', '.join(sorted(BUILT_IN))} with ':', or module:factory"
        )
    if scheme in BUILT_IN:
        module, attribute = BUILT_IN[scheme]
        target = rest.removeprefix("//") if scheme == "sqlite" else name
        if scheme == "sqlite" and not Path(target).is_file():
            raise InvalidConfig(f"there is no SQLite file {target}")
        made = _attribute(module, attribute).from_conn_string(target)
    else:
        made = _attribute(scheme, rest)()
    shown = re.sub(r"//[^/@]*@", "//", name)  # no secret of an address
    with ExitStack() as stack:
        if hasattr(made, "__enter__") and not isinstance(made, BaseStore):
            with _naming(shown):
                made = stack.enter_context(made)
        if not isinstance(made, BaseStore):
            raise InvalidType(f"{shown!r} gives a {type(made).__name__}, which is no BaseStore")
        with _naming(shown):
            made.search((), limit=1, refresh_ttl=False)
        yield made


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Whatever a driver raises where its server or its tables are missing, as one of our errors."""
    try:
        yield
    except EventStoreError:
        raise
    except Exception as error:
        raise InvalidConfig(
            f"the memories at {source} cannot be read: {type(error).__name__}: {str(error).strip()}"
        ) from error


def _attribute(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"{error.name} is not installed, or not where Python looks for it; {module}:{name} needs it"
        ) from error
    except AttributeError as error:
        raise InvalidConfig(f"there is no {name} in {module}") from error


def _load(loader: Loader, item: Item, ttl: float | None) -> None:
    try:
        loader.memory(Line(namespace=list(item.namespace), key=item.key, value=item.value, ttl_minutes=ttl))
    except (InvalidInput, InvalidType, ValidationError) as error:
        why = "its value is no JSON object" if isinstance(error, ValidationError) else str(error)
        raise InvalidInput(f"the memory {item.key!r} in {item.namespace} cannot be kept: {why}") from error
