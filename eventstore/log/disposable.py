"""An embedded log of what may be lost: nothing is synced, and its oldest part is removed.

A killed process loses nothing, since the system still writes what it had handed over; a power
cut takes the latest records, and what is left is whole. Everyone who opens the folder opens
it as this kind of log.
"""

from __future__ import annotations

from typing import ClassVar

from eventstore.log.embedded import EmbeddedLog
from eventstore.log.segments import sync_data
from eventstore.log.tail import unavailable


class DisposableLog(EmbeddedLog):
    """An :class:`EmbeddedLog` that is quick to append to, and need not grow for ever."""

    _disposable: ClassVar[bool] = True

    def sync(self) -> None:
        """Make durable what was appended so far. Raises ``LogUnavailable``."""
        with self._append_lock:
            self._check()
            try:
                sync_data(self._tail.file.fileno())
            except OSError as error:
                raise unavailable(error, f"could not sync the log in {self._directory}", "") from error

    def trim(self, before_us: int, most_bytes: int) -> int:
        """Remove the oldest segments; how many.

        Those go whose records were all appended before a time (µs since the epoch), and those
        with which the log takes more than ``most_bytes``. The last one stays. Raises
        ``LogUnavailable``, ``LogDamaged``.
        """
        with self._append_lock:
            self._check()
            with self._file_lock:
                try:
                    return self._segments.trim(before_us, most_bytes)
                except OSError as error:
                    raise unavailable(error, f"could not trim the log in {self._directory}", "") from error
