"""The index as it was at one offset, to be searched without any lock for as long as it is kept.

A row is visible if it was born at or before the state's offset and died after it. Parts
that were merged away meanwhile stay alive through the states that refer to them. This
module decides which rows are candidates and by which path; ranking them is not its task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

import numpy as np

from eventstore.errors import InvalidEmbedding
from projector.vectors.limits import Floats32, Numbers
from projector.vectors.part import Part, count
from projector.vectors.ranking import Pool, Ranking, best
from projector.vectors.scoring import Query, Rows, Scorer
from projector.vectors.segment import Segment, digest_of

_PROBE_COST = 8
"""Looking an item up in a part takes about as long as looking at the keys of this many rows."""


class State:
    """A consistent view of all vectors at :attr:`offset`."""

    __slots__ = ("_exact", "_parts", "_scorer", "_wide", "offset")

    def __init__(
        self, offset: int, parts: tuple[Part, ...], scorer: Scorer, wide_rows: int, *, exact: bool
    ) -> None:
        self.offset = offset
        self._parts = parts
        self._scorer = scorer
        self._wide = wide_rows
        self._exact = exact

    def rank(
        self,
        query: Floats32,
        prefix: bytes,
        k: int,
        *,
        only: Collection[bytes] | None = None,
        exact: bool = False,
    ) -> Ranking:
        """The ``k`` best items under the prefix, or all if there are fewer.

        ``only`` narrows the candidates to these keys; those outside the prefix are ignored.
        Do not hold the index's lock. ``exact`` forbids graphs for this search.

        Raises:
            InvalidEmbedding: the query is not one vector of the index's size, or not finite.
        """
        prepared = self._query(query)
        found = [(part, part.find(prefix)) for part in self._parts]
        if only is not None:
            found = self._narrow(found, prefix, only)
        total = sum([count(rows) for _, rows in found])
        k = min(k, total)
        wide = only is None and not exact and total > self._wide
        pools: list[Pool] = []
        proposed = False
        for part, rows in found:
            near = self._propose(part, rows, prepared, k) if wide else None
            proposed = proposed or near is not None
            pool = self._pool(part, rows) if near is None else Pool(part, near)
            if count(pool.rows):
                pools.append(pool)
        ranking = best(pools, prepared, self._scorer, k)
        return ranking._replace(complete=False) if proposed else ranking

    @property
    def dims(self) -> int:
        """The size of its vectors."""
        return self._scorer.dims

    def rows(self) -> Iterator[tuple[bytes, Floats32]]:
        """Key and vector of every visible row, part by part."""
        for part in self._parts:
            pool = self._pool(part, part.find(b""))
            for row in _listed(pool.rows):
                yield part.key(row), part.vectors[row]

    def count(self, prefix: bytes) -> int:
        """An upper bound of the rows under the prefix: hidden and dead ones are counted too."""
        return sum(count(part.find(prefix)) for part in self._parts)

    def _query(self, query: Floats32) -> Query:
        vector = np.ascontiguousarray(query, np.float32)
        if vector.shape != (self._scorer.dims,):
            raise InvalidEmbedding(
                f"a query vector has the shape {vector.shape}, the index has {self._scorer.dims} dimensions; "
                "use the model that the index was made with"
            )
        prepared = self._scorer.query(vector)
        if prepared is None:
            raise InvalidEmbedding("a query vector holds NaN or infinite numbers; check the embedder")
        return prepared

    def _pool(self, part: Part, rows: Rows) -> Pool:
        if part.all_alive or not count(rows):
            return Pool(part, rows)
        seen = part.visible(rows, self.offset)
        if seen.all():
            return Pool(part, rows)
        return Pool(part, np.flatnonzero(seen) + rows.start if isinstance(rows, slice) else rows[seen])

    def _propose(self, part: Part, rows: Rows, query: Query, k: int) -> Numbers | None:
        if not isinstance(part, Segment) or not isinstance(rows, slice) or self._exact:
            return None
        graph = part.graph
        if graph is None or 2 * count(rows) < len(part) or k <= 0 or not query.tame:
            return None
        return graph.propose(part, rows, self.offset, query, self._scorer, k)

    def _narrow(
        self, found: list[tuple[Part, Rows]], prefix: bytes, only: Collection[bytes]
    ) -> list[tuple[Part, Rows]]:
        keys = {key for key in only if key.startswith(prefix)}
        digests: dict[bytes, int] = {}
        narrowed: list[tuple[Part, Rows]] = []
        for part, rows in found:
            size = count(rows)
            if not size or not keys:
                continue
            if len(keys) * _PROBE_COST < size:
                if not digests:
                    digests = {key: digest_of(key) for key in keys}
                items = [part.find_item(key, digest) for key, digest in digests.items()]
                picked = _numbers(list(chain.from_iterable(map(_listed, items))))
            else:
                picked = _numbers([row for row in _listed(rows) if part.key(row) in keys])
            if len(picked):
                narrowed.append((part, picked))
        return narrowed


def _listed(rows: Rows | None) -> list[int]:
    if rows is None:
        return []
    return list(range(rows.start, rows.stop)) if isinstance(rows, slice) else rows.tolist()


def _numbers(rows: list[int]) -> Numbers:
    picked: Numbers = np.sort(np.array(rows, np.int64))
    return picked
