"""What a record carries on a topic beyond its event, and how it comes off again.

Two headers of ours frame an event's own. ``writer`` is session, sequence and time, by which
duplicates are found and times are told; ``batch`` names the atomic batch a record belongs to
and its size, so that a reader shows all of it or nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

from eventstore.keys import MODEL_KEY, memory_of
from eventstore.log.base import Record, StoredRecord

WRITER = "writer"
BATCH = "batch"
NOBODY = bytes(16)
RECORD_OVERHEAD = 256
"""Bytes that Kafka and our own headers add to a record, at the most, headers' names aside."""
HEADER_OVERHEAD = 10
"""Bytes that Kafka adds to a header, at the most."""


class Outgoing(NamedTuple):
    """A record about to be produced."""

    partition: int
    sequence: int
    time_us: int
    record: Record
    headers: list[tuple[str, bytes]]


class Incoming(NamedTuple):
    """A record as it was consumed, and the batch it belongs to."""

    stored: StoredRecord
    batch: bytes | None
    size: int
    """Records in the batch; 1 for a record of its own."""
    ours: bool = True
    """Whether a store wrote it, as far as its stamp tells."""


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a record: by the first label of its memory's namespace.

    So one user's memories stay in order together, and so does all that is about them. Changes of
    the embedding model are in order among themselves, in the first partition.
    """
    if key == MODEL_KEY:
        return 0
    label = memory_of(key).partition(b"\x00")[0]
    return crc32(label) % partitions


def size_of(record: Record) -> int:
    """Bytes a record takes on the topic, at the most."""
    headers = sum(len(name) + len(data) + HEADER_OVERHEAD for name, data in record.headers)
    return len(record.key) + len(record.value or b"") + headers + RECORD_OVERHEAD


def stamped(
    record: Record, session: bytes, sequence: int, time_us: int, batch: tuple[bytes, int] | None
) -> list[tuple[str, bytes]]:
    """All headers of a record; ``batch`` is the id and size of the atomic batch it belongs to."""
    headers = [*record.headers, (WRITER, b"%b %d %d" % (session.hex().encode(), sequence, time_us))]
    if batch is not None:
        headers.append((BATCH, b"%b %d" % (batch[0].hex().encode(), batch[1])))
    return headers


def incoming(message: Any) -> Incoming:
    """A consumed message. One that this project did not write comes as nobody's, for the codec to refuse."""
    headers = message.headers
    batch, size = None, 1
    if headers and headers[-1][0] == BATCH:
        batch, size = _batch(headers[-1][1] or b"")
        headers = headers[:-1]
    appended_us = message.timestamp * 1000
    if headers and headers[-1][0] == WRITER:
        session, sequence, time_us = _writer(headers[-1][1] or b"", message.offset, appended_us)
        headers = headers[:-1]
    else:
        session, sequence, time_us = NOBODY, message.offset + 1, appended_us
    stored = StoredRecord(
        message.partition,
        message.offset,
        appended_us,
        time_us,
        session,
        sequence,
        message.key or b"",
        message.value,
        tuple(headers),
    )
    return Incoming(stored, batch, size, session is not NOBODY)


def acknowledged(out: Outgoing, session: bytes, offset: int, timestamp_ms: int) -> StoredRecord:
    """A produced record as it will be read back."""
    return StoredRecord(
        out.partition,
        offset,
        timestamp_ms * 1000,
        out.time_us,
        session,
        out.sequence,
        out.record.key,
        out.record.value,
        tuple(out.record.headers),
    )


def _writer(data: bytes, offset: int, appended_us: int) -> tuple[bytes, int, int]:
    try:
        name, sequence, time_us = data.split()
        session = bytes.fromhex(name.decode())
        if len(session) == len(NOBODY):
            return session, int(sequence), int(time_us)
    except ValueError:
        pass
    return NOBODY, offset + 1, appended_us


def _batch(data: bytes) -> tuple[bytes | None, int]:
    try:
        name, size = data.split()
        return name, int(size)
    except ValueError:
        return None, 1
