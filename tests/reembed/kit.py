"""Models that can be told apart, and an oracle that knows nothing of events."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from langgraph.store.memory import InMemoryStore

from eventstore import EventStore
from tests.scenarios.kit import ALL

QUERIES = ("tea", "text 3", "text 14", "the sea")


class Model(Embeddings):
    """A vector for each text that depends on the model's name. Keeps the texts it was given."""

    def __init__(self, name: str, dims: int = 6) -> None:
        self.name = name
        self.dims = dims
        self.texts: list[str] = []
        self.before: Callable[[], None] = lambda: None
        """Called before every batch of documents."""

    def vector(self, text: str) -> list[float]:
        chance = np.random.default_rng(zlib.crc32(f"{self.name} {text}".encode()))
        made: list[float] = chance.normal(size=self.dims).astype(np.float32).tolist()
        return made

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.before()
        self.texts += texts
        return [self.vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.vector(text)

    def index(self, *fields: str, **more: Any) -> dict[str, Any]:
        """The settings of a store that uses it."""
        return {
            "embed": self,
            "dims": self.dims,
            "model": self.name,
            "fields": list(fields or ("t",)),
            **more,
        }


def found(store: Any, queries: Iterable[str] = QUERIES) -> dict[str, list[tuple[Any, ...]]]:
    """Namespaces, keys and rounded scores of ranked memories, best first, for each query."""
    return {
        query: sorted(
            (
                (round(-hit.score, 4), hit.namespace, hit.key)
                for hit in store.search((), query=query, limit=10_000)
                if hit.score is not None
            ),
        )
        for query in queries
    }


def oracle(store: EventStore, index: dict[str, Any]) -> dict[str, list[tuple[Any, ...]]]:
    """What LangGraph's own store finds, had all memories been put with these settings."""
    plain = InMemoryStore(index={**index, "embed": Model(index["model"], index["dims"])})  # type: ignore[typeddict-item]
    for item in store.search((), limit=ALL, refresh_ttl=False):
        plain.put(item.namespace, item.key, item.value, INDEXED.get(item.key))
    return found(plain)


INDEXED: dict[str, Any] = {"not": False, "own": ["u"]}
"""What puts of these keys ask to be embedded; all others leave it to the settings."""


def fill(store: EventStore, count: int = 40) -> None:
    """Memories whose texts are all different, two of them with a choice of their own."""
    for at in range(count):
        value = {"t": f"text {at}", "u": f"more {at}", "n": at}
        store.put(("users", f"u{at % 3}"), f"k{at}", value)
    for key in INDEXED:
        store.put(("users", "u0"), key, {"t": f"t of {key}", "u": f"u of {key}"}, index=INDEXED[key])
    store.delete(("users", "u1"), "k1")


def new_model() -> Model:
    """What a command line names."""
    return Model("new", 9)
