"""When a checkpoint came to be, as a position of the log of memories.

LangGraph puts a checkpoint in the background, while the next step's nodes may already write memories.
But it asks for the new versions of channels in between, when one step has ended and the next has not
begun: what could be known then is remembered by the version that was given out.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Final

from eventstore.log.position import Position

_REMEMBERED: Final = 16_384


class Moments:
    """Positions by version. Safe for threads."""

    def __init__(self, seen: Callable[[], Position]) -> None:
        """``seen`` tells up to where memories can have been read by now."""
        self._seen = seen
        self._lock = threading.Lock()
        self._number = 0
        self._by_version: OrderedDict[str, tuple[int, Position]] = OrderedDict()

    def note(self, version: str) -> str:
        """A version is given out now."""
        position = self._seen()
        with self._lock:
            self._number += 1
            self._by_version[version] = (self._number, position)
            if len(self._by_version) > _REMEMBERED:
                self._by_version.popitem(last=False)
        return version

    def of(self, versions: Iterable[Any]) -> Position:
        """When the last of some versions was given out; now, where that is not known.

        A checkpoint that is put when a run ends has versions of all its steps.
        """
        known = [found for version in versions if (found := self._by_version.get(version)) is not None]
        return max(known, key=itemgetter(0))[1] if known else self._seen()
