"""Python's garbage collector, held off while many events are folded.

Folding makes hundreds of thousands of small objects and no cycles: they go by themselves, and looking
through them again and again takes a fifth of the time of a rebuild.
"""

from __future__ import annotations

import gc
from types import TracebackType
from typing import Self


class HeldCollector:
    """Holds the collector off from :meth:`hold` to the end of the ``with`` block, if it is on."""

    def __init__(self) -> None:
        self._holds = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._holds:
            self._holds = False
            gc.enable()

    def hold(self) -> None:
        """Hold it off from now on. Cheap when it is held already."""
        if not self._holds and gc.isenabled():
            self._holds = True
            gc.disable()

    def let_collect(self) -> None:
        """Let it look at what is young, for the sake of other threads, whose cycles would pile up."""
        if self._holds:
            gc.collect(1)
