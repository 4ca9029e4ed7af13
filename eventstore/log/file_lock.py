"""The lock between processes: one appends to a log at a time.

The system lets go of it when its holder dies, so it is never left behind. Waiting has no limit;
a holder that is stopped makes others wait. Threads of one process need a lock of their own.
"""

from __future__ import annotations

import contextlib
import fcntl
from io import FileIO
from pathlib import Path

from eventstore.errors import InvalidConfig
from eventstore.log.segments import sync_directory
from eventstore.log.tail import unavailable


class FileLock:
    """``with lock:`` holds it. Entering raises ``LogUnavailable`` where the file system has no locks."""

    def __init__(self, path: Path) -> None:
        """Open the lock file, in a folder that is made when missing.

        Raises ``InvalidConfig`` when there is no place for the folder, and ``OSError``.
        """
        folder = path.parent
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                sync_directory(folder.parent)
            self._path = path
            self._file = FileIO(path, "a")
        except FileNotFoundError as error:
            raise InvalidConfig(
                f"the folder {folder.parent} does not exist; create it for the log"
            ) from error
        except NotADirectoryError as error:
            raise InvalidConfig(f"{folder} or its parent is not a folder; choose another place") from error

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._file.fileno(), fcntl.LOCK_EX)
        except OSError as error:
            raise unavailable(error, f"could not lock {self._path}") from error

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._file.fileno(), fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()
