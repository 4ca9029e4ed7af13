"""Frames: how a batch of records is laid out in bytes, and how it is checked and read back.

A frame is one batch. Its single checksum makes the batch atomic: it is there whole or not at
all. Everything that belongs to the batch (offset, times, session, sequence) is in the frame's
header, so the body is encoded and checksummed before the append, in the caller's own thread.
Files are left to ``segments``; ``docs/log-format.md`` describes every byte.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from eventstore.errors import InvalidInput, LimitExceeded
from eventstore.log.base import Record, StoredRecord

MAGIC = b"EvFr"
_START = struct.Struct("<4sI")
_FIELDS = struct.Struct("<IIQQQqQ16s")
_HEADER = struct.Struct("<4sIIIQQQqQ16s")
HEADER_BYTES = _HEADER.size
_RECORD = struct.Struct("<IIII")
_RECORD_BYTES = _RECORD.size
_NO_VALUE = 0xFFFF_FFFF
_LONGEST_NAME = 0xFFFF
_FIRST_READ = 16 * 1024
_LARGEST_READ = 1024 * 1024
_new = tuple.__new__  # half the time of calling the class, and this runs once per record


class PreparedBatch(NamedTuple):
    """A batch encoded and checksummed, waiting for its stamps."""

    records: Sequence[Record]
    body: bytes
    crc: int


class Stamp(NamedTuple):
    """What the append adds to a batch; shared by all records of its frame."""

    offset: int
    durable: int
    """Offset up to which the log was durable when the frame was written."""
    appended_us: int
    time_us: int
    sequence: int
    session: bytes


class Frame(NamedTuple):
    """A frame whose checksum holds, its records still encoded in ``buffer``."""

    size: int
    """Of the body, in bytes."""
    records: int
    offset: int
    durable: int
    appended_us: int
    time_us: int
    sequence: int
    session: bytes
    position: int
    """Of the frame in its file."""
    buffer: bytes
    body_at: int


@lru_cache(maxsize=512)
def _encode_names(names: tuple[str, ...]) -> tuple[bytes, struct.Struct]:
    parts: list[bytes] = []
    for name in names:
        try:
            raw = name.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput("a header name is not valid Unicode text; nothing was appended") from error
        if len(raw) > _LONGEST_NAME:
            raise LimitExceeded(f"a header name has {len(raw)} bytes; the log takes {_LONGEST_NAME}")
        parts += (len(raw).to_bytes(2, "little"), raw)
    return b"".join(parts), struct.Struct(f"<{len(names)}I")


@lru_cache(maxsize=512)
def _decode_names(blob: bytes) -> tuple[tuple[str, ...], struct.Struct]:
    names = []
    at = 0
    while at < len(blob):
        end = at + 2 + int.from_bytes(blob[at : at + 2], "little")
        names.append(blob[at + 2 : end].decode())
        at = end
    return tuple(names), struct.Struct(f"<{len(names)}I")


def prepare(records: Sequence[Record], max_bytes: int) -> PreparedBatch:
    """Encode and checksum ``records``. Raises ``LimitExceeded`` above ``max_bytes`` encoded bytes."""
    parts: list[bytes] = []
    size = 0
    for key, value, headers in records:
        names, lengths = _encode_names(tuple([name for name, _ in headers]))
        values = [value for _, value in headers]
        sizes = list(map(len, values))
        value_bytes = 0 if value is None else len(value)
        size += _RECORD.size + len(names) + lengths.size + sum(sizes) + len(key) + value_bytes
        if size > max_bytes:
            raise LimitExceeded(
                f"a batch of {len(records)} records needs more than {max_bytes} bytes in the log, its limit; "
                "nothing was appended. Write smaller values or fewer at once."
            )
        value_field = _NO_VALUE if value is None else value_bytes
        parts.append(_RECORD.pack(len(key), value_field, len(headers), len(names)))
        if headers:
            parts += (names, lengths.pack(*sizes), *values)
        parts.append(key)
        if value is not None:
            parts.append(value)
    body = b"".join(parts)
    return PreparedBatch(records, body, crc32(body))


def header(batch: PreparedBatch, stamp: Stamp, salt: int) -> bytes:
    """The header that turns a batch into a frame; ``salt`` ties its checksum to one log."""
    offset, durable, appended_us, time_us, sequence, session = stamp
    fields = _FIELDS.pack(
        len(batch.body), len(batch.records), offset, durable, appended_us, time_us, sequence, session
    )
    return _START.pack(MAGIC, crc32(fields, batch.crc) ^ salt) + fields


def stored(records: Sequence[Record], stamp: Stamp) -> list[StoredRecord]:
    """The records of a batch as they will be read back."""
    offset, _, appended_us, time_us, sequence, session = stamp
    return [
        _new(StoredRecord, (0, offset + i, appended_us, time_us, session, sequence + i, *record))
        for i, record in enumerate(records)
    ]


def decode(frame: Frame) -> list[StoredRecord]:
    """The records of ``frame``."""
    _, count, offset, _, appended_us, time_us, sequence, session, _, buffer, at = frame
    records = []
    headers: tuple[tuple[str, bytes], ...]
    for i in range(count):
        key_bytes, value_bytes, header_count, names_bytes = _RECORD.unpack_from(buffer, at)
        at += _RECORD_BYTES
        headers = ()
        if header_count:
            end = at + names_bytes
            names, lengths = _decode_names(buffer[at:end])
            at = end + lengths.size
            values = []
            for size in lengths.unpack_from(buffer, end):
                end = at + size
                values.append(buffer[at:end])
                at = end
            headers = tuple(zip(names, values, strict=True))
        end = at + key_bytes
        key = buffer[at:end]
        at = end
        value = None
        if value_bytes != _NO_VALUE:
            at = end + value_bytes
            value = buffer[end:at]
        fields = (0, offset + i, appended_us, time_us, session, sequence + i, key, value, headers)
        records.append(_new(StoredRecord, fields))
    return records


def walk(fd: int, position: int, offset: int, until: int | None, salt: int) -> Iterator[Frame]:
    """Frames in order from ``position``, where ``offset`` is due, up to offset ``until``.

    Stops without a word at the first place that holds no valid frame for the offset due there;
    what that means is for the caller to say.
    """
    buffer, view, at, reach = b"", memoryview(b""), 0, _FIRST_READ
    while until is None or offset < until:
        if at + HEADER_BYTES > len(buffer):
            buffer, at = os.pread(fd, reach, position), 0
            view, reach = memoryview(buffer), min(2 * reach, _LARGEST_READ)
            if len(buffer) < HEADER_BYTES:
                return
        magic, crc, *fields = _HEADER.unpack_from(buffer, at)
        size, count, base = fields[:3]
        if magic != MAGIC or base != offset or not count:
            return
        frame_bytes = HEADER_BYTES + size
        if at + frame_bytes > len(buffer):
            # A size gone wrong must not cost memory. Not asked in vain: it slows the writer's next sync.
            if frame_bytes > _LARGEST_READ and position + frame_bytes > os.fstat(fd).st_size:
                return
            buffer, at = os.pread(fd, max(frame_bytes, reach), position), 0
            view = memoryview(buffer)
            if len(buffer) < frame_bytes:
                return
        if not _holds(view, at, size, crc ^ salt):
            return
        yield _new(Frame, (*fields, position, buffer, at + HEADER_BYTES))
        at += frame_bytes
        position += frame_bytes
        offset += count


def _holds(view: memoryview, at: int, size: int, crc: int) -> bool:
    body_at = at + HEADER_BYTES
    return crc32(view[at + _START.size : body_at], crc32(view[body_at : body_at + size])) == crc


def proof_of_loss(rest: bytes, position: int, offset: int, mark: int, salt: int) -> int | None:
    """Position of a frame in ``rest`` which shows that the frame due at ``offset`` had been durable.

    ``rest`` is what follows ``position``, where that frame should be. Frames written in one go
    reach the disk in any order, so a later frame alone proves nothing: it must have been
    written after the missing one was durable, or the high-water mark must have passed both.
    """
    view = memoryview(rest)
    at = rest.find(MAGIC)
    while at >= 0 and at + HEADER_BYTES <= len(rest):
        _, crc, size, _, base, durable = _HEADER.unpack_from(rest, at)[:6]
        telling = base > offset and max(durable, mark) > offset
        if telling and at + HEADER_BYTES + size <= len(rest) and _holds(view, at, size, crc ^ salt):
            return position + at
        at = rest.find(MAGIC, at + 1)
    return None
