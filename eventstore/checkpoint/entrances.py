"""Which writes of tasks are on their way, so that a checkpoint does not overtake them.

LangGraph saves in the background: a task's writes may still be in the serializer when the next
checkpoint is put. A crash between the two would then lose what the task has done, with the
checkpoint that came of it in place.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager


class Entrances:
    """Writes that entered the saver and are not in the log yet, by thread. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered: dict[str, set[Future[None]]] = {}

    @contextmanager
    def entered(self, thread: str) -> Iterator[None]:
        """While in here, writes of a thread are on their way."""
        mine: Future[None] = Future()
        with self._lock:
            self._entered.setdefault(thread, set()).add(mine)
        try:
            yield
        finally:
            with self._lock:
                others = self._entered[thread]
                others.remove(mine)
                if not others:
                    del self._entered[thread]
            mine.set_result(None)

    def before(self, thread: str) -> list[Future[None]]:
        """What is done once the writes that entered until now are in the log, or have failed."""
        with self._lock:
            return list(self._entered.get(thread, ()))
