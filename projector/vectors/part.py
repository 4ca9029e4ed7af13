"""What a part of the index is, so that ranking and merging need not know which kind it has.

A part is a set of rows, each with its item's key, its vector and the offset it died at.
The delta is the part that grows; segments are the sealed ones.
"""

from __future__ import annotations

from typing import Protocol

from projector.vectors.limits import Flags, Floats32, Floats64, Numbers, Offsets
from projector.vectors.scoring import Rows


class Part(Protocol):
    """Rows that are searched together. Safe to read while one other thread marks rows dead."""

    vectors: Floats32
    norms: Floats64
    died: Offsets
    tame: bool
    """Whether float32 bounds hold for all rows."""

    @property
    def all_alive(self) -> bool:
        """Whether every row is known to be seen by every state taken before this was asked."""

    def __len__(self) -> int:
        """Rows, dead ones included."""

    def find(self, prefix: bytes) -> Rows:
        """Rows whose key begins with the prefix."""

    def find_item(self, key: bytes, digest: int) -> Rows | None:
        """Rows of one item, dead ones included; ``digest`` is ``digest_of(key)``."""

    def key(self, row: int) -> bytes:
        """The key of the item that the row belongs to."""

    def visible(self, rows: Rows, offset: int) -> Flags:
        """Which of the rows a state at this offset sees."""

    def sorted_rows(self) -> Numbers:
        """All rows in key order."""

    def kill(self, key: bytes, digest: int, offset: int) -> bool:
        """Mark the live rows of the item dead from this offset on; whether there were any."""


def count(rows: Rows) -> int:
    """How many rows these are."""
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def successor(prefix: bytes) -> bytes | None:
    """The least byte string above all that begin with the prefix; ``None`` if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None
