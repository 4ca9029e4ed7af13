"""Steps that read, answered from one moment of a view, in LangGraph's own result types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from langgraph.store.base import Item, Result, SearchItem

from eventstore.embedding import Vectors
from eventstore.history import moment
from eventstore.keys import decode_item
from eventstore.operations import Get, Namespaces, Search, Step
from eventstore.search import Hit, list_namespaces, search
from eventstore.turns import EVERY_STEPS, in_turns
from eventstore.values import decode_value
from eventstore.views import ReadView, Row


class Sight(Protocol):
    """Which memories are to be seen, and what reading them does."""

    @property
    def omits(self) -> bool:
        """Whether any are hidden at all."""

    def shows(self, row: Row) -> bool: ...

    def read(self, row: Row) -> None: ...

    def hidden(self, view: ReadView) -> Mapping[bytes, int]:
        """How many memories of each encoded namespace are there but not to be seen."""


def answer(view: ReadView, step: Step, vectors: Vectors | None, expiry: Sight) -> Result:
    """The result of a step; ``None`` for one that writes. Memories read are refreshed as asked."""
    if isinstance(step, Get):
        return item(step, view.get(step.key), expiry)
    if isinstance(step, Search):
        query = vectors.query(step.query) if vectors is not None and step.query else None
        hits = search(view, step, query, expiry.shows if expiry.omits else None)
        return [_search_item(hit, step.refresh, expiry) for hit in in_turns(hits, EVERY_STEPS)]
    if isinstance(step, Namespaces):
        return list_namespaces(view, step, expiry.hidden(view))
    return None


def item(step: Get, row: Row | None, expiry: Sight) -> Item | None:
    """The memory of a step as ``get`` returns it, unless it has expired and is not to be seen."""
    if row is None or not expiry.shows(row):
        return None
    if step.refresh:
        expiry.read(row)
    return Item(
        value=decode_value(row.data),
        key=step.name,
        namespace=step.namespace,
        created_at=moment(row.created_us),
        updated_at=moment(row.updated_us),
    )


def _search_item(hit: Hit, refresh: bool, expiry: Sight) -> SearchItem:
    row = hit.row
    if refresh:
        expiry.read(row)
    namespace, key = decode_item(row.key)
    updated = moment(row.updated_us)
    created = updated if row.created_us == row.updated_us else moment(row.created_us)
    return SearchItem(namespace, key, hit.value, created, updated, hit.score)
