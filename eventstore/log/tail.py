"""The tail: the last segment, where the log ends in it, and how that is found again.

Only whoever holds the append lock may use it. What the file scans to is the truth; the
high-water mark is corrected by it. A torn tail is cut here, and damage is told from it here.
"""

from __future__ import annotations

import errno
import logging
import os
from io import FileIO
from typing import NamedTuple

from eventstore.errors import LogDamaged, LogFull, LogUnavailable
from eventstore.log.frames import HEADER_BYTES as FRAME_HEADER_BYTES
from eventstore.log.frames import proof_of_loss, walk
from eventstore.log.segments import (
    FIRST_BYTES,
    HEADER_BYTES,
    INDEX_STEP,
    Segments,
    sync_data,
    sync_directory,
    write_all,
)

_logger = logging.getLogger("eventstore.log")
_LARGEST_STEP = 8 * 1024 * 1024
_CHUNK = 1024 * 1024
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class End(NamedTuple):
    """Where the log ends. One value, so that an interrupt never leaves half of it changed."""

    position: int
    offset: int
    appended_us: int


class Found(NamedTuple):
    """What lay beyond the end that was known."""

    unsynced: int
    """Position of the first frame beyond the high-water mark; the end when there is none."""
    sequence: int
    """The next sequence number of the session asked for; 0 when it wrote none of it."""


class Tail:
    """The end of the log in its last segment."""

    def __init__(self, segments: Segments, base: int, salt: int) -> None:
        """Open the segment; it counts as empty until :meth:`advance`. Raises ``OSError``, ``LogDamaged``.

        The segment's name is made durable, since whoever made it may have died before that.
        """
        sync_directory(segments.directory)
        self._segments = segments
        self._salt = salt
        self.base = base
        self.path = segments.path(base)
        self._start = End(HEADER_BYTES, base, segments.header(base).appended_us)
        self.end = self._start
        self._written = 0
        self.file = FileIO(self.path, "r+")

    def reopen(self) -> None:
        """Take a new descriptor, since one that failed cannot be trusted. Raises ``OSError``."""
        failed, self.file = self.file, FileIO(self.path, "r+")
        self._written = 0
        failed.close()

    def start_over(self) -> None:
        """Forget the end, to look for it from the start of the segment."""
        self.end = self._start
        self._segments.forget(self.base)

    def is_clear(self) -> bool:
        """Whether nothing was written at the end."""
        return not any(os.pread(self.file.fileno(), 8, self.end.position))

    def advance(self, mark: int, session: bytes) -> Found:
        """Move the end over the valid frames that follow it. Raises ``OSError``."""
        position, offset, appended_us = self.end
        noted, unsynced, sequence = position, None, 0
        for frame in walk(self.file.fileno(), position, offset, None, self._salt):
            if offset >= mark and unsynced is None:
                unsynced = position
            size, count, _, _, appended_us, _, first, writer = frame[:8]
            if writer == session:
                sequence = first + count
            offset += count
            position += FRAME_HEADER_BYTES + size
            if position - noted >= INDEX_STEP:
                self._segments.note(self.base, offset, position)
                noted = position
        self.end = End(position, offset, appended_us)
        return Found(position if unsynced is None else unsynced, sequence)

    def adopt(self, position: int) -> None:
        """Make durable the frames from ``position`` to the end, whose writer did not get to it.

        They are written again, since after a failed sync the system takes them for clean.
        Raises ``OSError``.
        """
        fd = self.file.fileno()
        while position < self.end.position:
            some = os.pread(fd, min(_CHUNK, self.end.position - position), position)
            write_all(fd, [some], position)
            position += len(some)
        sync_data(fd)

    def cut(self, mark: int) -> bool:
        """Zero what follows the end and say so, unless that is all zeros already.

        Raises ``LogDamaged`` instead when a later frame shows that the bad one had been
        durable. Raises ``OSError``.
        """
        fd = self.file.fileno()
        position, offset, _ = self.end
        rest = _read_from(fd, position)
        garbage = len(rest.rstrip(b"\0"))
        if not garbage:
            return False
        later = proof_of_loss(rest, position, offset, mark, self._salt)
        if later is not None:
            raise damaged(str(self.path), position, offset, f"Later records follow at byte {later}. ")
        self.clear(garbage)
        lost = f" Offsets up to {mark} had been acknowledged." if mark > offset else ""
        text = "%s: cut a torn tail of %d bytes at byte %d; the next record gets offset %d.%s"
        _logger.warning(text, self.path, garbage, position, offset, lost)
        return True

    def clear(self, size: int) -> None:
        """Zero ``size`` bytes after the end. Raises ``OSError``."""
        fd = self.file.fileno()
        for at in range(0, size, _CHUNK):
            write_all(fd, [bytes(min(_CHUNK, size - at))], self.end.position + at)
        sync_data(fd)

    def reserve(self, size: int, most: int) -> None:
        """Have ``size`` bytes of written zeros after the end, in a file of ``most`` bytes if it can be.

        Syncing bytes that were written before costs the least. Raises ``OSError``.
        """
        needed = self.end.position + size
        # The size is kept, since asking for it makes the next sync write the inode too.
        if needed <= self._written:
            return
        fd = self.file.fileno()
        have = os.fstat(fd).st_size
        if needed <= have:
            self._written = have
            return
        # A quarter more each time: what is reserved and not used stays small beside what is.
        step = min(max(have // 4, FIRST_BYTES), _LARGEST_STEP)
        goal = max(needed, min(have + step, most))
        try:
            while have < goal:
                some = min(_CHUNK, goal - have)
                write_all(fd, [bytes(some)], have)
                have += some
        except OSError as error:
            if error.errno not in _NO_SPACE or os.fstat(fd).st_size < needed:
                raise
        sync_data(fd)
        self._written = max(needed, have)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self.file.close()


def _read_from(fd: int, position: int) -> bytes:
    parts = []
    while part := os.pread(fd, 64 * _CHUNK, position):
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def damaged(path: str, position: int, offset: int, proof: str = "") -> LogDamaged:
    """The error for a frame that should be there and is not."""
    return LogDamaged(
        f"{path} is damaged at byte {position}: the record with offset {offset} is missing or its checksum "
        f"does not hold. {proof}Nothing was cut or changed; restore this file from a copy."
    )


def unavailable(error: OSError, doing: str, outcome: str = "Nothing was appended; ") -> LogUnavailable:
    """The typed error for ``error``, which came up while ``doing``."""
    if error.errno in _NO_SPACE:
        return LogFull(f"{doing}: {error.strerror}. {outcome}free some space, then try again.")
    return LogUnavailable(f"{doing}: {error.strerror or error}. {outcome}try again when this is put right.")
