"""From a time to a place in the segments: append times never decrease along the log."""

from __future__ import annotations

import os
from bisect import bisect_right

from eventstore.log import frames
from eventstore.log.segments import HEADER_BYTES, Segments
from eventstore.log.tail import damaged, unavailable


def position_at(segments: Segments, end: int, time_us: int, salt: int) -> int:
    """The offset after the last record below ``end`` appended at or before a time.

    A segment's header says when the record before it was appended, so one segment is walked,
    and of the others some headers are read. Raises ``LogDamaged`` and ``LogUnavailable``.
    """
    segments.refresh()
    bases = [base for base in segments.bases if base < end] or [0]
    at = bisect_right(range(len(bases)), time_us, key=lambda at: segments.header(bases[at]).appended_us) - 1
    if at < 0:
        return 0
    base, until = bases[at], [*bases[1:], end][at]
    path = segments.path(base)
    due, position = base, HEADER_BYTES
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for frame in frames.walk(fd, position, base, until, salt):
                if frame.appended_us > time_us:
                    return due
                due += frame.records
                position += frames.HEADER_BYTES + frame.size
        finally:
            os.close(fd)
    except FileNotFoundError as error:
        raise damaged(str(path), position, due) from error
    except OSError as error:
        raise unavailable(error, f"could not read {path}", "") from error
    if due < until:
        raise damaged(str(path), position, due)
    return due
