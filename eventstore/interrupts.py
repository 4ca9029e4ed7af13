"""Ctrl-C, held off for the length of a commit.

Python raises ``KeyboardInterrupt`` between any two instructions of the main thread. Within a
commit that leaves locks taken, RocksDB's objects alive in the frames of the exception, and a write
that nobody can tell the outcome of. So a commit in the main thread is finished first.
"""

from __future__ import annotations

import importlib
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final

_MAIN: Final = threading.main_thread().ident
# What ``signal`` wraps. Its wrappers look every handler up in an enumeration, which takes longer
# than all else that is done to an event.
_signal: Final[Any] = importlib.import_module("_signal")


class Uninterrupted:
    """``with Uninterrupted():`` Ctrl-C pressed within is raised at the end.

    It does nothing in other threads, which are never interrupted, within another one, and where
    the program has a handler of its own for SIGINT.
    """

    __slots__ = ("_active", "_pressed")

    def __enter__(self) -> None:
        self._pressed = False
        self._active = (
            threading.get_ident() == _MAIN and _signal.getsignal(_signal.SIGINT) is signal.default_int_handler
        )
        if self._active:
            _signal.signal(_signal.SIGINT, self._note)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._active:
            _signal.signal(_signal.SIGINT, signal.default_int_handler)
            if self._pressed:
                raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._pressed = True
