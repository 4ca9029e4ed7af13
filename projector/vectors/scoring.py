"""How similar a query is to a row: a fast bound, and the score itself.

``bounds`` lets FAISS scan rows in float32 and returns what each score can be at most.
``scores`` computes in float64 from the stored float32 row, with a sum whose rounding
depends on that row alone. So a row has one score, whichever path found it.
"""

from __future__ import annotations

import math
import threading
from typing import Any, NamedTuple

import faiss
import numpy as np

from projector.vectors.limits import Floats32, Floats64, Metric, Numbers

Rows = slice | Numbers
"""Row numbers of one part: a contiguous range (step 1) or an array of them."""

TAME_LOW, TAME_HIGH = 1e-15, 1e15
"""Norms for which float32 neither overflows nor underflows; other rows are not bounded, only scored."""

_BLOCK = 1_024
_faiss: Any = faiss  # its type stubs lack the scanning functions
_ptr = _faiss.swig_ptr
_openmp = threading.local()


class Picked(NamedTuple):
    """Rows of one part."""

    vectors: Floats32
    norms: Floats64
    rows: Rows


class Query(NamedTuple):
    """A query vector, prepared once per search."""

    exact: Floats64
    scan: Floats32
    norm: float
    tame: bool


def norms_of(vectors: Floats32) -> Floats64:
    """Euclidean norm of each row; infinite for a zero row, which makes its cosine 0."""
    wide = vectors.astype(np.float64)
    norms: Floats64 = np.sqrt(np.add.reduce(np.multiply(wide, wide, out=wide), axis=1))
    norms[norms == 0.0] = np.inf
    return norms


def is_tame(norms: Floats64) -> bool:
    """Whether float32 bounds hold for all rows with these norms."""
    real = norms[np.isfinite(norms)]
    return real.size == 0 or bool(real.min() >= TAME_LOW and real.max() <= TAME_HIGH)


def one_thread() -> None:
    """Keep FAISS to one OpenMP thread in the calling thread; others are not affected."""
    if not getattr(_openmp, "limited", False):
        faiss.omp_set_num_threads(1)
        _openmp.limited = True


class Scorer:
    """The arithmetic of one metric at one vector size."""

    def __init__(self, metric: Metric, dims: int) -> None:
        self.metric = metric
        self.dims = dims
        self._slack = (dims + 16) * 2.0**-24 * 1.01

    def query(self, vector: Floats32) -> Query | None:
        """Prepare a query of ``dims`` numbers; ``None`` when not all of them are finite."""
        exact = vector.astype(np.float64)
        # The same sum as of a row. In float64 no finite float32 overflows it, and nothing hides in it.
        norm = math.sqrt(np.add.reduce(exact * exact))
        if not math.isfinite(norm):
            return None
        norm = norm or math.inf
        scan = vector if self.metric != "cosine" else (exact / norm).astype(np.float32)
        tame = norm == math.inf or TAME_LOW <= norm <= TAME_HIGH
        return Query(exact, scan, norm, tame)

    def bounds(self, query: Query, vectors: Floats32, norms: Floats64, rows: Rows) -> Floats64:
        """An upper bound of each row's score, by a float32 scan without the GIL; rows must be tame."""
        one_thread()
        squared = self.metric == "l2"
        if isinstance(rows, slice):
            block = vectors[rows]
            raw = np.empty(len(block), np.float32)
            scan = _faiss.fvec_L2sqr_ny if squared else _faiss.fvec_inner_products_ny
            scan(_ptr(raw), _ptr(query.scan), _ptr(block), self.dims, len(block))
        else:
            raw = np.empty(len(rows), np.float32)
            pick = _faiss.fvec_L2sqr_by_idx if squared else _faiss.fvec_inner_products_by_idx
            pick(_ptr(raw), _ptr(query.scan), _ptr(vectors), _ptr(rows), self.dims, 1, len(rows))
        highest: Floats64
        if self.metric == "cosine":
            highest = raw / norms[rows] + self._slack
            return highest
        if self.metric == "inner_product":
            lengths = norms[rows]
            reach = np.where(np.isfinite(lengths), lengths, 0.0)
            highest = raw + reach * (self._slack * (query.norm if np.isfinite(query.norm) else 0.0))
            return highest
        least = raw * (1.0 - 2 * self._slack) - self.dims * 2.0**-120
        highest = 0.0 - np.sqrt(np.maximum(least, 0.0, dtype=np.float64))
        return highest

    def scores(self, query: Query, picked: list[Picked]) -> Floats64:
        """The score of each row, in the order given."""
        pieces = [piece for part in picked for piece in _pieces(part)]
        if sum(map(_size, pieces)) <= _BLOCK:
            return self._scores(query, pieces)
        return np.concatenate([self._scores(query, [piece]) for piece in pieces])

    def _scores(self, query: Query, pieces: list[Picked]) -> Floats64:
        size = sum(map(_size, pieces))
        wide: Floats64 = np.empty((size, self.dims))
        lengths: Floats64 = np.empty(size)
        start = 0
        for piece in pieces:
            end = start + _size(piece)
            wide[start:end] = piece.vectors[piece.rows]
            lengths[start:end] = piece.norms[piece.rows]
            start = end
        if self.metric == "l2":
            wide -= query.exact
            np.multiply(wide, wide, out=wide)
        else:
            np.multiply(wide, query.exact, out=wide)
        sums: Floats64 = np.add.reduce(wide, axis=1)
        if self.metric == "l2":
            return np.negative(np.sqrt(sums, out=sums), out=sums) + 0.0
        if self.metric == "inner_product":
            return sums + 0.0
        lengths *= query.norm
        sums /= lengths
        return np.minimum(np.maximum(sums, -1.0, out=sums), 1.0, out=sums) + 0.0


def _size(picked: Picked) -> int:
    rows = picked.rows
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _pieces(picked: Picked) -> list[Picked]:
    """The same rows, a limited number at a time."""
    size = _size(picked)
    if size <= _BLOCK:
        return [picked]
    rows = picked.rows
    if isinstance(rows, slice):
        cuts: list[Rows] = [
            slice(at, min(at + _BLOCK, rows.stop)) for at in range(rows.start, rows.stop, _BLOCK)
        ]
    else:
        cuts = [rows[at : at + _BLOCK] for at in range(0, size, _BLOCK)]
    return [picked._replace(rows=cut) for cut in cuts]
