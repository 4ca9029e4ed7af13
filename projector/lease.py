"""One projector per view directory, across processes.

A lease is a file lock on the directory, held while its process lives: the kernel drops it when
the process dies, however it dies. A directory that is taken is passed over, never waited for.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from eventstore.errors import InvalidConfig

LOOK_SECONDS: Final = 0.002


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
            lease = cls.of(directory)
            if lease is not None:
                return lease
            number += 1

    @classmethod
    def only(cls, views: Path) -> Lease:
        """The lease of ``views/0`` and of no other directory.

        Raises ``InvalidConfig`` naming the process that has it, or when it cannot be written.
        """
        directory = views / "0"
        lease = cls.of(directory)
        if lease is None:
            holder = cls.holder(directory)
            raise InvalidConfig(
                f"process {holder or 'unknown'} has the view directory {directory}. "
                "Stop it first, or run without --exclusive to keep a view of its own beside it"
            )
        return lease

    @classmethod
    def of(cls, directory: Path) -> Lease | None:
        """The lease of one directory, made if need be; ``None`` when it is taken.

        Raises ``InvalidConfig`` when the place cannot be written.
        """
        try:
            directory.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(directory / "lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidConfig(
                f"the view directory {directory} cannot be written: {error.strerror}. "
                "Make it writable, or name another place with views=..."
            ) from error
        if not _locked(descriptor):
            os.close(descriptor)
            return None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(directory, descriptor)

    @staticmethod
    def holder(directory: Path) -> int | None:
        """The process that has a directory; ``None`` when it is free."""
        try:
            descriptor = os.open(directory / "lease", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).strip()
            return int(text) if text.isdigit() else 0
        finally:
            os.close(descriptor)
        return None

    def release(self) -> None:
        """Let others have the directory. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _locked(descriptor: int) -> bool:
    # Whoever only asks for the holder has the lock for some microseconds; that must not cost a view.
    for wait in (LOOK_SECONDS, 0.0):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(wait)
        else:
            return True
    return False
