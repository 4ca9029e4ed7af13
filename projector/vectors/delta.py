"""The mutable part: rows in the order they arrived, findable by key prefix.

One thread adds rows and marks them dead, under the index's lock. Readers take the rows of
a prefix under that lock and then read without it: the blocks never move, and rows added
later were born after the reader's state. It writes no file; merging turns it into a segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

import numpy as np

from projector.vectors.limits import ALIVE, Flags, Floats32, Floats64, Numbers
from projector.vectors.part import successor
from projector.vectors.scoring import TAME_HIGH, TAME_LOW, Rows

_INFINITE: Final = float("inf")
_FEW: Final = 32
"""So many keys are put in their places one by one: sorting looks at all that are there."""


class Arrival(NamedTuple):
    """Rows of one item that are about to be added."""

    offset: int
    key: bytes
    rows: int


class Delta:
    """Up to ``capacity`` rows in memory."""

    def __init__(self, dims: int, capacity: int, lock: AbstractContextManager[object]) -> None:
        self.capacity = capacity
        self.vectors: Floats32 = np.empty((capacity, dims), np.float32)
        self.norms: Floats64 = np.empty(capacity, np.float64)
        self.born = np.full(capacity, ALIVE, np.uint64)
        self.died = np.full(capacity, ALIVE, np.uint64)
        self.tame = True
        self.dead = 0
        self.changes = 0
        """Changes since the part was begun, including those that added no row here."""
        self.through = -1
        """Once frozen: the last offset applied before."""
        self._lock = lock
        self._size = 0
        self._row_keys: list[bytes] = []
        self._keys: list[bytes] = []
        self._order: Numbers = np.empty(capacity, np.int64)
        self._live: dict[bytes, int | slice] = {}
        """Rows of each item. Python's garbage collector need not look through numbers, and most have one."""

    def __len__(self) -> int:
        return self._size

    @property
    def all_alive(self) -> bool:
        """Rows may have been born after a state was taken."""
        return False

    def fits(self, rows: int) -> bool:
        """Whether that many more rows can be added."""
        return self._size + rows <= self.capacity

    def add(self, arrivals: Sequence[Arrival], vectors: Floats32, norms: Floats64) -> None:
        """Append the rows of items that have no live rows, each item once. The lock is held."""
        start, stop = self._size, self._size + len(vectors)
        self.vectors[start:stop] = vectors
        self.norms[start:stop] = norms
        for norm in norms.tolist():
            self.tame = self.tame and (norm == _INFINITE or TAME_LOW <= norm <= TAME_HIGH)
        row = start
        for offset, key, rows in arrivals:
            end = row + rows
            self.born[row:end] = offset
            self._row_keys += [key] * rows
            self._live[key] = row if rows == 1 else slice(row, end)
            row = end
        # Rows of one key stay in the order in which they came: bisect and sort agree on that.
        new = sorted(range(start, stop), key=self._row_keys.__getitem__)
        places = [bisect_right(self._keys, self._row_keys[row]) for row in new]
        self._order[:stop] = np.insert(self._order[:start], places, new)
        if len(new) <= _FEW:
            # From the last to the first: each moves only the places behind it.
            for place, row in zip(reversed(places), reversed(new), strict=True):
                self._keys.insert(place, self._row_keys[row])
        else:
            self._keys += self._row_keys[start:]
            self._keys.sort()
        self._size = stop

    def kill(self, key: bytes, digest: int, offset: int) -> bool:
        """Mark the live rows of the item dead. The lock is held."""
        rows = self._live.pop(key, None)
        if rows is None:
            return False
        self.died[rows] = offset
        self.dead += 1 if isinstance(rows, int) else rows.stop - rows.start
        return True

    def find(self, prefix: bytes) -> Rows:
        """Rows whose key begins with the prefix."""
        end = successor(prefix)
        with self._lock:
            low = bisect_left(self._keys, prefix)
            high = len(self._keys) if end is None else bisect_left(self._keys, end, low)
            if low == 0 and high == self._size:
                return slice(0, self._size)
            return self._order[low:high].copy()

    def find_item(self, key: bytes, digest: int) -> Rows | None:
        """Rows of one item, dead ones included."""
        with self._lock:
            low = bisect_left(self._keys, key)
            high = bisect_right(self._keys, key, low)
            return self._order[low:high].copy() if high > low else None

    def key(self, row: int) -> bytes:
        """The key of the item that the row belongs to."""
        return self._row_keys[row]

    def visible(self, rows: Rows, offset: int) -> Flags:
        """Which of the rows a state at this offset sees."""
        seen: Flags = (self.born[rows] <= offset) & (self.died[rows] > offset)
        return seen

    def sorted_rows(self) -> Numbers:
        """All rows in key order; the part is frozen."""
        return self._order[: self._size]
