"""One projector per view directory, across processes.

A lease is a file lock on the directory, held while its process lives: the kernel drops it when
the process dies, however it dies. A directory that is taken is passed over, never waited for.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from eventstore.errors import InvalidConfig


class Lease:
    """The right to write one view directory."""

    def __init__(self, directory: Path, descriptor: int) -> None:
        self.directory = directory
        self._descriptor = descriptor

    @classmethod
    def take(cls, views: Path) -> Lease:
        """The first free directory of ``views/0``, ``views/1``, …; made if need be.

        Raises ``InvalidConfig`` when the place cannot be written.
        """
        number = 0
        while True:
            directory = views / str(number)
            lease = cls._try(directory)
            if lease is not None:
                return lease
            number += 1

    @classmethod
    def _try(cls, directory: Path) -> Lease | None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory / "lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidConfig(
                f"the view directory {directory} cannot be written: {error.strerror}. "
                "Make it writable, or name another place with views=..."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(directory, descriptor)

    def release(self) -> None:
        """Let others have the directory. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
