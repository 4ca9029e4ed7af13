"""The best k items among candidate rows, exactly, ties included.

Float32 bounds decide which rows are worth scoring; float64 scores decide the ranking. A
row is left out only if its bound is below the score of the k-th item, so nothing that
belongs into the answer, or ties with its last place, can be missed.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from projector.vectors.limits import Floats64, Numbers
from projector.vectors.part import Part, count
from projector.vectors.scoring import Query, Rows, Scorer

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
        places, scores = self._score(picked)
        order = np.argsort(-scores, kind="stable")
        found: dict[bytes, float] = {}
        floor = -np.inf
        all_seen = picked is None or len(picked) == total
        for place, score in zip(places[order].tolist(), scores[order].tolist(), strict=True):
            if score < floor:
                all_seen = False
                break
            found.setdefault(self._key(place), score)
            if len(found) == self._k:
                floor = score
        hits = sorted(((score, key) for key, score in found.items()), key=_best_first)
        return Ranking(hits[: self._k], all_seen and len(hits) <= self._k)

    def _score(self, picked: Numbers | None) -> tuple[Numbers, Floats64]:
        if picked is None:
            scores = [self._rows_scores(pool, pool.rows) for pool in self._pools]
            return np.arange(self._ends[-1]), np.concatenate(scores)
        picked = np.sort(picked)
        cuts = np.searchsorted(picked, self._ends).tolist()
        scores, start, before = [], 0, 0
        for pool, cut, end in zip(self._pools, cuts, self._ends, strict=True):
            if cut > start:
                inside = picked[start:cut] - before
                rows = inside + pool.rows.start if isinstance(pool.rows, slice) else pool.rows[inside]
                scores.append(self._rows_scores(pool, rows))
            start, before = cut, end
        return picked, np.concatenate(scores)

    def _rows_scores(self, pool: Pool, rows: Rows) -> Floats64:
        return self._scorer.scores(self._query, pool.part.vectors, pool.part.norms, rows)

    def _key(self, place: int) -> bytes:
        at = bisect_right(self._ends, place)
        pool = self._pools[at]
        inside = place - (self._ends[at - 1] if at else 0)
        row = pool.rows.start + inside if isinstance(pool.rows, slice) else int(pool.rows[inside])
        return pool.part.key(row)


def _best_first(hit: tuple[float, bytes]) -> tuple[float, bytes]:
    return -hit[0], hit[1]
