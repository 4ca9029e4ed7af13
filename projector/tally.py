"""Rows that should be equal, held against each other; what differs is counted, and the first told.

How a difference is described is left to whoever knows what the rows say.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from pydantic import BaseModel, ConfigDict

from eventstore.errors import EventStoreError

Pairs = Iterator[tuple[bytes, bytes]]
Same = Callable[[bytes, bytes], bool]

NOTHING: Final = "nothing"
UNREADABLE: Final = (EventStoreError, ValueError, ArithmeticError, LookupError, struct.error)
"""What reading a row that no fold wrote may raise."""


class Difference(BaseModel):
    """One thing that is not as a replay of the log makes it."""

    model_config = ConfigDict(frozen=True)

    family: str
    namespace: list[str] | None = None
    key: str | None = None
    position: str | None = None
    """Partition and offset of the event it is about, as ``0:42``."""
    expected: str
    found: str


class Tally:
    """Rows compared and differences found, by family, and the first of them."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.differences: dict[str, int] = {}
        self.first: Difference | None = None

    def seen(self, family: str, rows: int) -> None:
        """So many rows were compared."""
        self.rows[family] = self.rows.get(family, 0) + rows

    def differs(self, family: str, difference: Callable[[], Difference]) -> None:
        """One more difference; it is worked out only if it is the first."""
        self.differences[family] = self.differences.get(family, 0) + 1
        if self.first is None:
            self.first = difference()


Describe = Callable[[str, bytes, bytes | None, bytes | None], Difference]
"""Describes a difference by family and key, and the rows expected and found."""


def hold(
    tally: Tally, family: str, expected: Pairs, found: Pairs, describe: Describe, same: Same | None = None
) -> None:
    """Compare the rows of a family; ``same`` is asked about rows whose bytes differ."""
    count = 0
    for key, want, have in merge(expected, found):
        count += want is not None
        if want == have or (same is not None and want is not None and have is not None and same(want, have)):
            continue
        tally.differs(family, partial(describe, family, key, want, have))
    tally.seen(family, count)


def merge(expected: Pairs, found: Pairs) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """Rows of two listings by key; ``None`` for one that is not there."""
    want, have = next(expected, None), next(found, None)
    while want is not None or have is not None:
        if want is not None and have is not None and want[0] == have[0]:
            yield want[0], want[1], have[1]
            want, have = next(expected, None), next(found, None)
        elif have is None or (want is not None and want[0] < have[0]):
            assert want is not None
            yield want[0], want[1], None
            want = next(expected, None)
        else:
            yield have[0], None, have[1]
            have = next(found, None)
