"""The high-water mark: the next offset, in 64 bytes of memory that all processes share.

Writers store it after the data is durable; readers load it without a system call. It is never
the truth: the segments are, and a writer corrects the mark by them. The segment that is
written to is noted next to it, so that a writer sees at once that another one rolled over.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

_LAYOUT = struct.Struct("=8sQQ8x16s16x")
_MAGIC = b"EvMark01"
_END = 1
_SEGMENT = 2


class HighWater:
    """The mark of one log. Open it under the append lock."""

    def __init__(self, path: Path, log_id: bytes) -> None:
        """Map the file at ``path``, made new when it is missing or belongs to another log."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            found = os.pread(fd, _LAYOUT.size, 0)
            ours = len(found) == _LAYOUT.size and _LAYOUT.unpack(found)[::3] == (_MAGIC, log_id)
            self.is_new = not ours
            if self.is_new:
                # Written, not just sized: storing to a mapped hole on a full disk kills the process.
                os.pwrite(fd, _LAYOUT.pack(_MAGIC, 0, 0, log_id), 0)
                os.fsync(fd)
            self._map = mmap.mmap(fd, _LAYOUT.size)
        finally:
            os.close(fd)
        # One aligned 64-bit store or load each, so no reader sees half a number.
        self._words = memoryview(self._map).cast("Q")

    @property
    def end(self) -> int:
        """The offset that the next durable record gets. Raises ``ValueError`` when closed."""
        return self._words[_END]

    @property
    def segment(self) -> int:
        """Base offset of the segment that is written to."""
        return self._words[_SEGMENT]

    def announce(self, segment: int) -> None:
        """Note a segment before it is made, so that no writer goes on in the one before it."""
        self._words[_SEGMENT] = segment

    def publish(self, end: int) -> None:
        """Let every process read up to ``end``."""
        self._words[_END] = end

    def close(self) -> None:
        """Write the mark to disk and unmap it."""
        self._words.release()
        self._map.flush()
        self._map.close()
