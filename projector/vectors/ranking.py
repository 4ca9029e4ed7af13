"""The best k items among candidate rows, exactly, ties included.

Float32 bounds decide which rows are worth scoring; float64 scores decide the ranking. A
row is left out only if its bound is below the score of the k-th item, so nothing that
belongs into the answer, or ties with its last place, can be missed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np

from projector.vectors.limits import Floats64, Numbers
from projector.vectors.part import Part, count
from projector.vectors.scoring import Picked, Query, Rows, Scorer

_FEW = 64
_SPARE = 16


class Ranking(NamedTuple):
    """An answer: best first, ties by key ascending, each item once with its best score."""

    hits: list[tuple[float, bytes]]
    complete: bool
    """Known to be all there is. False may also mean: only more rows of these same items."""


class Pool(NamedTuple):
    """Candidate rows of one part, all visible."""

    part: Part
    rows: Rows


def best(pools: list[Pool], query: Query, scorer: Scorer, k: int) -> Ranking:
    """Rank the items of the pools."""
    ends: list[int] = []
    total = 0
    for pool in pools:
        total += count(pool.rows)
        ends.append(total)
    if k <= 0 or total == 0:
        return Ranking([], total == 0)
    chosen = _Chosen(pools, ends, query, scorer, k)
    if total <= max(_FEW, k + _SPARE):
        return chosen.ranking(None, total)
    bounds = np.concatenate([_bounds(pool, query, scorer) for pool in pools])
    take = k + _SPARE
    while take < total:
        picked = np.argpartition(bounds, total - take)[total - take :]
        ranking = chosen.ranking(picked, total)
        if len(ranking.hits) == k:
            floor = ranking.hits[-1][0]
            if bounds[picked].min() < floor:
                return ranking
            return chosen.ranking(np.flatnonzero(bounds >= floor), total)
        take *= 4
    return chosen.ranking(None, total)


def _bounds(pool: Pool, query: Query, scorer: Scorer) -> Floats64:
    if not (query.tame and pool.part.tame):
        return np.full(count(pool.rows), np.inf)
    return scorer.bounds(query, pool.part.vectors, pool.part.norms, pool.rows)


class _Chosen:
    """Scores rows picked by their number in the concatenated pools."""

    def __init__(self, pools: list[Pool], ends: list[int], query: Query, scorer: Scorer, k: int) -> None:
        self._pools = pools
        self._ends = ends
        self._query = query
        self._scorer = scorer
        self._k = k

    def ranking(self, picked: Numbers | None, total: int) -> Ranking:
        """Rank the items of the picked rows, or of all."""
        all_seen = picked is None or len(picked) == total
        places, scores = self._score(picked)
        best_last = scores.argsort()
        found: dict[bytes, float] = {}
        floor = -np.inf
        values = scores.tolist()
        for at in best_last[::-1].tolist():
            score = values[at]
            if score < floor:
                all_seen = False
                break
            found.setdefault(self._key(at if places is None else places[at]), score)
            if len(found) == self._k:
                floor = score
        # Negated scores put equal ones in key order; negated again they are the same numbers.
        ordered = sorted([(-score, key) for key, score in found.items()])
        hits = [(-score, key) for score, key in ordered[: self._k]]
        return Ranking(hits, all_seen and len(ordered) <= self._k)

    def _score(self, picked: Numbers | None) -> tuple[list[int] | None, Floats64]:
        """Where the rows stand, in order, and their scores."""
        if picked is None:
            return None, self._scorer.scores(self._query, [_picked(pool, pool.rows) for pool in self._pools])
        picked.sort()
        places: list[int] = picked.tolist()
        parts = []
        start = before = 0
        for pool, end in zip(self._pools, self._ends, strict=True):
            cut = bisect_left(places, end, start)
            if cut > start:
                inside = picked[start:cut] - before if before else picked[start:cut]
                rows = inside + pool.rows.start if isinstance(pool.rows, slice) else pool.rows[inside]
                parts.append(_picked(pool, rows))
            start, before = cut, end
        return places, self._scorer.scores(self._query, parts)

    def _key(self, place: int) -> bytes:
        at = bisect_right(self._ends, place)
        pool = self._pools[at]
        inside = place - (self._ends[at - 1] if at else 0)
        row = pool.rows.start + inside if isinstance(pool.rows, slice) else int(pool.rows[inside])
        return pool.part.key(row)


def _picked(pool: Pool, rows: Rows) -> Picked:
    return Picked(pool.part.vectors, pool.part.norms, rows)
