"""Migration: the memories of any other LangGraph store, listed through its own interface.

Namespaces are listed, then read page by page without refreshing anything; what the target has
already is left alone, so a migration is repeated until nothing is left to write. A ``BaseStore``
does not tell a memory's time to live, its vectors or its past; those begin anew in the target.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from langgraph.store.base import BaseStore, Item
from pydantic import BaseModel, ConfigDict, ValidationError

from eventstore import EventStore
from eventstore.errors import InvalidConfig, InvalidInput, InvalidType
from eventstore.events import Provenance
from projector.progress import Bar
from projector.runtime import runtime_of
from projector.transfer.lines import Line
from projector.transfer.loading import Loader

log = logging.getLogger("projector.transfer")

PAGE: Final = 500
"""Memories, or namespaces, of one request to the source."""
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
    found = _roots(source, prefix)
    read = 0
    with Bar("copying memories", log) as bar:
        for at, namespace in enumerate(found, 1):
            for item in _oldest_first(source, namespace):
                _load(loader, item, ttl)
                read += 1
            bar.update(at, len(found))
        loader.flush()
        return Migrated(
            read=read,
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
    if isinstance(made, BaseStore):
        yield made
        return
    if not hasattr(made, "__enter__"):
        raise InvalidType(f"{name!r} gives a {type(made).__name__}, which is no BaseStore")
    with made as store:
        if not isinstance(store, BaseStore):
            raise InvalidType(f"{name!r} gives a {type(store).__name__}, which is no BaseStore")
        yield store


def _attribute(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"{error.name} is not installed, or not where Python looks for it; {module}:{name} needs it"
        ) from error
    except AttributeError as error:
        raise InvalidConfig(f"there is no {name} in {module}") from error


def _roots(source: BaseStore, prefix: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Namespaces that no other one with memories stands above: reading below each gives all, once."""
    found: set[tuple[str, ...]] = set()
    while True:
        page = source.list_namespaces(prefix=prefix or None, limit=PAGE, offset=len(found))
        before = len(found)
        found.update(page)
        if len(page) < PAGE or len(found) == before:
            break
    return sorted(each for each in found if not any(each[:depth] in found for depth in range(len(each))))


def _oldest_first(source: BaseStore, namespace: tuple[str, ...]) -> Iterator[Item]:
    """What lies under a namespace; stores list the last updated first, so pages are read backwards."""
    end = _count(source, namespace)
    while end > 0:
        start = max(0, end - PAGE)
        page = source.search(namespace, limit=end - start, offset=start, refresh_ttl=False)
        # Some stores compare prefixes as text: ("a",) would find ("ab",).
        mine = [item for item in page if item.namespace[: len(namespace)] == namespace]
        yield from sorted(mine, key=lambda item: item.updated_at)
        end = start


def _count(source: BaseStore, namespace: tuple[str, ...]) -> int:
    """How many memories a search under a namespace finds, in a few small questions."""

    def holds(offset: int) -> bool:
        return bool(source.search(namespace, limit=1, offset=offset, refresh_ttl=False))

    high = PAGE
    while holds(high):
        high *= 2
    low = 0
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    return low


def _load(loader: Loader, item: Item, ttl: float | None) -> None:
    try:
        loader.memory(Line(namespace=list(item.namespace), key=item.key, value=item.value, ttl_minutes=ttl))
    except (InvalidInput, InvalidType, ValidationError) as error:
        why = "its value is no JSON object" if isinstance(error, ValidationError) else str(error)
        raise InvalidInput(f"the memory {item.key!r} in {item.namespace} cannot be kept: {why}") from error
