"""The thread that looks at regular times for what other processes appended, whatever a look ends with."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from eventstore.errors import EventStoreError, ViewError

log = logging.getLogger("projector.follower")

PAUSE_SECONDS: Final = 1.0
"""After a look that failed."""


class Follower:
    """Takes one step after the other in a daemon thread."""

    def __init__(self, step: Callable[[], None], interval: float) -> None:
        self._step = step
        self._interval = interval
        self._stop = threading.Event()
        self.failure: EventStoreError | None = None
        """What the last look failed with, if it did."""
        self._thread = threading.Thread(target=self._run, name="eventstore-follower", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread, within ``timeout`` seconds."""
        self._stop.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._step()
            except EventStoreError as error:
                # The same error meets every read that asks for the latest state, and every write.
                self.failure = error
            except Exception as error:
                self._note(error)
            else:
                self.failure = None
                continue
            self._stop.wait(PAUSE_SECONDS)

    def _note(self, error: Exception) -> None:
        """Nobody else meets it: it is said once."""
        failed = ViewError(f"following the log fails with {type(error).__name__}; it is tried again")
        failed.retriable, failed.__cause__ = True, error
        if str(self.failure) != str(failed):
            log.error("%s", failed, exc_info=error)
        self.failure = failed
