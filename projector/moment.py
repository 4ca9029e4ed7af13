"""One moment of a view: what all reads of one batch are answered from, whatever is applied meanwhile.

Taking it and letting go of it is left to the view; so is what happens when it meets damage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from rocksdict import Rdict, Snapshot

from eventstore.turns import EVERY_ROWS, in_turns
from eventstore.views import (
    HistoryRow,
    NamespaceCount,
    Occurrence,
    Quarantined,
    Ranking,
    Row,
    Signature,
    Vector,
    Wanted,
)
from projector.projections import history, items, namespaces, recency, vectors
from projector.projections.quarantine import Quarantine
from projector.projections.quarantine import read as quarantined
from projector.rocks import Database, translate
from projector.vectors import State

_MISSING: Final = "key not found"
"""How a snapshot of rocksdict says that there is no such key: by an untyped exception."""


class Moment:
    """A :class:`eventstore.views.ReadView`: snapshots taken together."""

    def __init__(
        self, db: Database, state: State | None, ranked: Signature | None, quarantine: Quarantine
    ) -> None:
        """The writer must be held off meanwhile. ``state`` is what is ranked, and ``ranked`` what made it."""
        self._items: Rdict | Snapshot = db.items.snapshot()
        self._recency: Rdict | Snapshot = db.recency.snapshot()
        self._namespaces: Rdict | Snapshot = db.namespaces.snapshot()
        self._default: Rdict | Snapshot = db.default.snapshot()
        self._history: Rdict | Snapshot = db.history.snapshot()
        self._vector_rows = db.vectors
        self._vectors = state
        self._ranked = ranked
        self._quarantine = quarantine

    def get(self, key: bytes) -> Row | None:
        self._quarantine.warn(key)
        try:
            data = self._items[key]
        except Exception as error:
            if str(error) == _MISSING:
                return None
            raise translate(error, "reading a memory") from error
        return None if data is None else items.row(key, data)

    def newest(self, prefix: bytes) -> Iterator[bytes]:
        return recency.newest(self._recency, prefix)

    def scan(
        self, prefix: bytes, start: bytes | None = None, holding: Sequence[bytes] = (), expected: int = 0
    ) -> Iterator[Row]:
        return items.scan_rows(self._items, prefix, start, holding, expected)

    def count(self, prefix: bytes) -> int:
        return namespaces.count(self._namespaces, prefix)

    def namespaces(self, prefix: bytes, max_depth: int | None) -> Iterator[NamespaceCount]:
        return iter(in_turns(namespaces.listing(self._namespaces, prefix, max_depth), EVERY_ROWS))

    def expired(self, until_us: int) -> Iterator[tuple[int, bytes]]:
        return items.expired(self._default, until_us)

    def rank(
        self,
        query: Vector,
        prefix: bytes,
        k: int,
        only: Collection[bytes] | None = None,
        *,
        exact: bool = False,
    ) -> Ranking:
        if self._vectors is None:
            return Ranking([], True)
        found = self._vectors.rank(query, prefix, k, only=only, exact=exact)
        return Ranking(found.hits, found.complete)

    def ranked(self) -> Signature | None:
        return self._ranked

    def rows_to_rank(self, prefix: bytes) -> int:
        return 0 if self._vectors is None else self._vectors.count(prefix)

    def history(self, key: bytes, before: int | None) -> Iterator[HistoryRow]:
        self._quarantine.warn(key)
        return history.read(self._history, key, before)

    def events(self, prefix: bytes, wanted: Wanted) -> Iterator[Occurrence]:
        return history.events(self._history, prefix, wanted)

    def vectors(self, sequence: int) -> tuple[str, Vector]:
        return vectors.at(self._vector_rows, sequence)

    def quarantined(self) -> Iterator[Quarantined]:
        return quarantined(self._default)
