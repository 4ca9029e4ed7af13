"""Vectors of a past moment, searched as a state of the index is: the same rows give the same scores.

Made for one question and thrown away. Which rows were alive is decided by whoever makes it.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np

from projector.vectors.limits import ALIVE, Flags, Floats32, Metric, Numbers
from projector.vectors.part import successor
from projector.vectors.scoring import Rows, Scorer, is_tame, norms_of
from projector.vectors.state import State


def state_of(items: Iterable[tuple[bytes, Floats32]], dims: int, metric: Metric) -> State:
    """A state of exactly these items, given in key order with their vectors; all searches are exact."""
    return State(0, (Alive(items, dims),), Scorer(metric, dims), sys.maxsize, exact=True)


class Alive:
    """A :class:`projector.vectors.part.Part` that never changes; rows stand in key order."""

    def __init__(self, items: Iterable[tuple[bytes, Floats32]], dims: int) -> None:
        blocks: list[Floats32] = []
        self._keys: list[bytes] = []
        for key, vectors in items:
            blocks.append(vectors)
            self._keys += [key] * len(vectors)
        empty: Floats32 = np.empty((0, dims), np.float32)
        self.vectors: Floats32 = np.ascontiguousarray(np.concatenate([empty, *blocks]), np.float32)
        self.norms = norms_of(self.vectors)
        self.died = np.full(len(self._keys), ALIVE, np.uint64)
        self.tame = is_tame(self.norms)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def all_alive(self) -> bool:
        """Only rows that were alive are here."""
        return True

    def find(self, prefix: bytes) -> Rows:
        """Rows whose key begins with the prefix."""
        end = successor(prefix)
        low = bisect_left(self._keys, prefix)
        return slice(low, len(self._keys) if end is None else bisect_left(self._keys, end, low))

    def find_item(self, key: bytes, digest: int) -> Rows | None:
        """Rows of one item."""
        low = bisect_left(self._keys, key)
        high = bisect_right(self._keys, key, low)
        return slice(low, high) if high > low else None

    def key(self, row: int) -> bytes:
        """The key of the item that the row belongs to."""
        return self._keys[row]

    def visible(self, rows: Rows, offset: int) -> Flags:
        """All of them."""
        return np.ones(rows.stop - rows.start if isinstance(rows, slice) else len(rows), np.bool_)

    def sorted_rows(self) -> Numbers:
        """All rows in key order."""
        return np.arange(len(self._keys))

    def kill(self, key: bytes, digest: int, offset: int) -> bool:
        """Nothing dies in the past."""
        return False
