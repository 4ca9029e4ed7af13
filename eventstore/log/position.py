"""Where a reader stands in the whole log: the next offset of every partition.

A position is complete and comparable: one that covers another has seen everything the other
has. Written down it is its offsets with commas between, so a log of one partition has plain
numbers for positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from eventstore.errors import InvalidInput, InvalidType


class Position:
    """Next offsets by partition; immutable."""

    __slots__ = ("_offsets",)

    def __init__(self, *offsets: int) -> None:
        """One offset for each partition of the log. Raises ``InvalidInput`` or ``InvalidType``."""
        if not offsets:
            raise InvalidInput("a position has at least one partition")
        for offset in offsets:
            if isinstance(offset, bool) or not isinstance(offset, int):
                raise InvalidType(f"an offset is an int, not {type(offset).__name__}")
            if offset < 0:
                raise InvalidInput(f"an offset is not negative; got {offset}")
        self._offsets = offsets

    @classmethod
    def start(cls, partitions: int) -> Self:
        """Before the first event of a log of so many partitions."""
        return cls(*([0] * partitions))

    @classmethod
    def of(cls, given: object) -> Self:
        """A position from one, from its written form, or from the offset of a single partition.

        Raises ``InvalidInput`` or ``InvalidType`` for anything else.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, str):
            try:
                return cls(*(int(part) for part in given.split(",")))
            except ValueError:
                raise InvalidInput(f"{given!r} is no position; '42' or '3,0,7' would be") from None
        if isinstance(given, int):
            return cls(given)
        raise InvalidType(f"a position is a Position, a str or an int, not {type(given).__name__}")

    def __getitem__(self, partition: int) -> int:
        return self._offsets[partition]

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and self._offsets == other._offsets

    def __hash__(self) -> int:
        return hash(self._offsets)

    def __str__(self) -> str:
        return ",".join(map(str, self._offsets))

    def __repr__(self) -> str:
        return f"Position({', '.join(map(str, self._offsets))})"

    def covers(self, other: Position) -> bool:
        """Whether everything before ``other`` is before this. Raises ``InvalidInput`` for another log's."""
        if len(other) != len(self):
            raise InvalidInput(f"a position of {len(other)} partitions is not one of a log of {len(self)}")
        return all(mine >= theirs for mine, theirs in zip(self._offsets, other._offsets, strict=True))

    def advanced(self, partition: int, offset: int) -> Position:
        """This position with one partition moved on to ``offset``; it never moves back."""
        if offset <= self._offsets[partition]:
            return self
        if type(offset) is not int:
            raise InvalidType(f"an offset is an int, not {type(offset).__name__}")
        # What is checked already is not checked again: writers do this for every record.
        made = object.__new__(Position)
        made._offsets = (*self._offsets[:partition], offset, *self._offsets[partition + 1 :])
        return made

    def behind(self, end: Position) -> int:
        """How many offsets lie between this and a later position, all partitions together."""
        return sum(max(0, theirs - mine) for mine, theirs in zip(self._offsets, end._offsets, strict=True))
