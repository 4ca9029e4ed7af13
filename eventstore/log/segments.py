"""Segment files: names, headers, the chain they form, and where offsets are found in them.

Reads directories and headers and makes new segments. What is written into a segment and how
its end is found again is ``tail``'s part; frames are ``frames``' part.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import sys
import threading
from bisect import bisect_right
from io import FileIO
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from eventstore.errors import LogDamaged, LogError

HEADER_BYTES = 64
FIRST_BYTES = 256 * 1024
"""Size a segment starts with, unless segments are to be smaller."""
INDEX_STEP = 64 * 1024
"""Bytes of a segment per entry of the index."""
_HEADER = struct.Struct("<8sII16sQQQ8x")
_MAGIC = b"EvSegmnt"
_FORMAT = 1
_NONE = 0xFFFF_FFFF_FFFF_FFFF
_NAME = re.compile(r"\d{20}\.seg")
_UNFINISHED = "unfinished.tmp"
_MOST_BUFFERS = 1024


class SegmentHeader(NamedTuple):
    """The first bytes of a segment file."""

    log_id: bytes
    base: int
    previous: int | None
    """Base offset of the segment before it; ``None`` in the first."""
    appended_us: int
    """Append time of the last record before this segment."""


def sync_directory(directory: Path) -> None:
    """Make names created in ``directory`` durable."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


if sys.platform == "darwin":

    def sync_data(fd: int) -> None:
        """Make what was written to ``fd`` durable, past the drive's own cache. Raises ``OSError``."""
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

else:

    def sync_data(fd: int) -> None:
        """Make what was written to ``fd`` durable, without its times. Raises ``OSError``."""
        os.fdatasync(fd)


if hasattr(os, "posix_fadvise"):

    def begin_writing(fd: int, position: int, size: int) -> None:
        """Have the system begin to write a range of ``fd`` to the disk; a sync then has less to wait for."""
        # On Linux this advice starts the writing and does not wait for it. Errors meet the sync.
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)

else:

    def begin_writing(fd: int, position: int, size: int) -> None:
        """Nothing here: the system begins to write when it is asked to sync."""


def write_all(fd: int, buffers: list[bytes], position: int) -> None:
    """Write ``buffers`` one after the other at ``position``. Raises ``OSError``, perhaps half-way."""
    for first in range(0, len(buffers), _MOST_BUFFERS):
        some = buffers[first : first + _MOST_BUFFERS]
        size = sum(map(len, some))
        wrote = os.pwritev(fd, some, position)
        if wrote < size:
            rest = memoryview(b"".join(some))
            while wrote < size:
                wrote += os.pwrite(fd, rest[wrote:], position + wrote)
        position += size


def _checked(header: bytes) -> int:
    return crc32(header[16:], crc32(header[:12]))


def _read_header(path: Path) -> SegmentHeader:
    with FileIO(path) as file:
        raw = file.read(HEADER_BYTES) or b""
    magic, form, crc, log_id, base, previous, appended_us = _HEADER.unpack(raw.ljust(HEADER_BYTES, b"\0"))
    if magic != _MAGIC or crc != _checked(raw):
        raise LogDamaged(
            f"{path} is damaged at byte 0: its header does not hold, so the records from offset "
            f"{int(path.stem)} on cannot be trusted. Nothing was changed; restore this file from a copy."
        )
    if form != _FORMAT:
        raise LogError(f"{path} has format {form} and this version reads format {_FORMAT}; use a newer one")
    return SegmentHeader(log_id, base, None if previous == _NONE else previous, appended_us)


class Segments:
    """The segments of one directory, in order, and a sparse index of where offsets lie in them.

    Safe to use from several threads.
    """

    def __init__(self, directory: Path, *, trimmed: bool = False) -> None:
        """Knows of no segment until :meth:`refresh`; ``trimmed``: the oldest ones may be removed."""
        self.directory = directory
        self._trimmed = trimmed
        self.bases: list[int] = []
        self.log_id = b""
        self._lock = threading.Lock()
        self._index: dict[int, list[tuple[int, int]]] = {}
        self._latest = (0, 0, 0)

    def path(self, base: int) -> Path:
        """File of the segment whose first record has offset ``base``."""
        return self.directory / f"{base:020}.seg"

    def refresh(self) -> None:
        """Take in segments made since. Raises ``LogDamaged`` when they do not form one chain."""
        with self._lock:
            found = sorted(int(name[:20]) for name in os.listdir(self.directory) if _NAME.fullmatch(name))
            bases = list(self.bases)
            if self._trimmed and found:
                bases = [base for base in bases if base >= found[0]]
                self._index = {base: marks for base, marks in self._index.items() if base >= found[0]}
            gone = [base for base in bases if base not in found]
            if gone:
                raise self._missing(gone[0])
            for base in found[len(bases) :]:
                header = self.header(base)
                before = bases[-1] if bases else None
                if header.previous != before and not (self._trimmed and before is None):
                    raise self._missing(base if header.previous is None else header.previous)
                self.log_id = header.log_id
                bases.append(base)
            self.bases = bases

    def header(self, base: int) -> SegmentHeader:
        """The header of a segment, checked. Raises ``LogDamaged`` or, for a newer format, ``LogError``."""
        path = self.path(base)
        header = _read_header(path)
        if header.base != base or header.log_id != (self.log_id or header.log_id):
            raise LogDamaged(
                f"{path} belongs to another log or another place in it, so the records from offset {base} on "
                "are missing. Nothing was changed; restore this file from a copy."
            )
        return header

    def _missing(self, base: int) -> LogDamaged:
        return LogDamaged(
            f"{self.path(base)} is missing, from byte 0 on: the log has no records from offset {base} up to "
            "the next segment. Nothing was changed; restore this file from a copy."
        )

    def create(self, base: int, log_id: bytes, appended_us: int, size: int) -> None:
        """Make the next segment, complete at once; its name is not durable yet. Raises ``OSError``."""
        previous = self.bases[-1] if self.bases else _NONE
        raw = _HEADER.pack(_MAGIC, _FORMAT, 0, log_id, base, previous, appended_us)
        raw = raw[:12] + _checked(raw).to_bytes(4, "little") + raw[16:]
        unfinished = self.directory / _UNFINISHED
        try:
            with FileIO(unfinished, "w") as file:
                write_all(file.fileno(), [raw, bytes(max(0, size - HEADER_BYTES))], 0)
                sync_data(file.fileno())
            unfinished.rename(self.path(base))
        except OSError:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise

    def trim(self, before_us: int, most_bytes: int) -> int:
        """Remove the oldest segments; how many. Only under the append lock. Raises ``OSError``.

        Those go whose records were all appended before a time (µs since the epoch), and those
        that the segments take more than ``most_bytes`` with. The last one stays.
        """
        self.refresh()
        bases = self.bases
        sizes = [self.path(base).stat().st_size for base in bases]
        total, removed = sum(sizes), 0
        for base, following, size in zip(bases, bases[1:], sizes, strict=False):
            if total <= most_bytes and self.header(following).appended_us >= before_us:
                break
            self.path(base).unlink(missing_ok=True)
            total -= size
            removed += 1
        if removed:
            self.refresh()
        return removed

    def begins_after(self, offset: int) -> bool:
        """Whether a record is gone with the segments that were removed."""
        return self._trimmed and self.bases[0] > offset

    def holding(self, offset: int) -> int:
        """Base of the segment that holds ``offset``, or will."""
        bases = self.bases
        return bases[max(0, bisect_right(bases, offset) - 1)]

    def find(self, base: int, offset: int) -> tuple[int, int]:
        """An offset at or before ``offset`` in segment ``base``, and its position in the file."""
        marks = self._index.get(base, [])
        at = bisect_right(marks, (offset, _NONE)) - 1
        found = marks[at] if at >= 0 else (base, HEADER_BYTES)
        latest = self._latest
        return latest[1:] if latest[0] == base and found[0] < latest[1] <= offset else found

    def note(self, base: int, offset: int, position: int) -> None:
        """Remember where the frame for ``offset`` starts, or will."""
        self._latest = (base, offset, position)
        marks = self._index.get(base)
        if marks and position < marks[-1][1] + INDEX_STEP:
            return
        with self._lock:
            marks = self._index.setdefault(base, [(base, HEADER_BYTES)])
            if position >= marks[-1][1] + INDEX_STEP:
                marks.append((offset, position))

    def forget(self, base: int) -> None:
        """Drop what was remembered of a segment that turned out shorter."""
        with self._lock:
            self._index.pop(base, None)
            self._latest = (0, 0, 0)
