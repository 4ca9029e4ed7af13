"""One consumer's way through the embedded log, some records at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, Protocol

from eventstore.log.base import Chunk
from eventstore.log.position import Position

MOST_RECORDS: Final = 1_000
"""Records one poll returns, unless a single batch holds more."""
_FIRST_NAP: Final = 0.0005
_LONGEST_NAP: Final = 0.02


class _Source(Protocol):
    """What a reader needs of a log whose end is in memory."""

    def ahead_of(self, position: Position) -> bool: ...

    def chunks(self, start: Position) -> Iterator[Chunk]: ...


class SegmentReader:
    """A :class:`eventstore.log.base.Reader`."""

    def __init__(self, source: _Source, start: Position) -> None:
        self._source = source
        self._position = start
        self._chunks: Iterator[Chunk] | None = None

    def poll(self, seconds: float) -> list[Chunk]:
        """What comes next, some of it at a time; waits up to ``seconds`` for the first."""
        self._wait(seconds)
        if self._chunks is None:
            self._chunks = self._source.chunks(self._position)
        found: list[Chunk] = []
        records = 0
        for chunk in self._chunks:
            found.append(chunk)
            self._position = chunk.position
            records += len(chunk.records)
            if records >= MOST_RECORDS:
                return found
        self._chunks = None
        return found

    def close(self) -> None:
        """Forget where it was."""
        self._chunks = None

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        nap = _FIRST_NAP
        while not self._source.ahead_of(self._position):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(nap, left))
            nap = min(2 * nap, _LONGEST_NAP)
