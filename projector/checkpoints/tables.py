"""Keys and rows of the view of checkpoints.

======== =================================================== ==========================================
family   key                                                 row
======== =================================================== ==========================================
``c``    thread, namespace, checkpoint                       the checkpoint, values by digest
``k``    thread, namespace, checkpoint, task, number         a pending write
``i``    checkpoint, thread, namespace                       nothing: all checkpoints, by id
``r``    run, thread, namespace, checkpoint                  nothing: what a run put
``t``    thread                                              first and last time, checkpoints
``v``    thread, digest of a value                           tag, head, and its parts or nodes
``n``    thread, digest of a node                            digests of a run of parts
``p``    thread, digest of a part                            its bytes
``f``    thread, writer's session, number of its record      a fragment, until its event comes
======== =================================================== ==========================================

Texts are encoded by :mod:`eventstore.keys`. A list's parts are grouped into nodes at places that
depend on the parts alone, so that the next version of the list names the same nodes again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import msgpack

from eventstore.checkpoint.events import DIGEST_BYTES, Packed, Where
from eventstore.checkpoint.splitting import digest
from eventstore.checkpoint.views import Manifest, Row, Stored, ThreadRow, WriteRow
from eventstore.keys import decode_labels, encode_labels

CHECKPOINT: Final = b"c"
WRITE: Final = b"k"
ID: Final = b"i"
RUN: Final = b"r"
THREAD: Final = b"t"
VALUE: Final = b"v"
NODE: Final = b"n"
PART: Final = b"p"
FRAGMENT: Final = b"f"

WITH_BYTES: Final = (CHECKPOINT, WRITE, VALUE, NODE, PART, FRAGMENT)
"""Families whose rows begin with their thread and hold what was put."""

_NUMBER: Final = struct.Struct(">I")
_RECORD: Final = struct.Struct(">16sQ")
_BIAS: Final = 1 << 31
_ENTRY_BYTES: Final = 1 + DIGEST_BYTES
_CLOSES: Final = bytes(not byte & 0x1F for byte in range(256))
"""Whether a node ends behind a digest, by its first byte: 32 parts on the average."""
_LONGEST_NODE: Final = 256
_SHORTEST_NODE: Final = 4


def checkpoint_key(at: Where) -> bytes:
    """Of family ``c``."""
    return CHECKPOINT + encode_labels(at)


def namespace_prefix(thread: str, namespace: str) -> bytes:
    """What the keys of all checkpoints of a namespace begin with."""
    return CHECKPOINT + encode_labels((thread, namespace))


def thread_prefix(family: bytes, thread: str) -> bytes:
    """What all keys of a thread in a family begin with."""
    return family + encode_labels((thread,))


def write_prefix(at: Where) -> bytes:
    """What the keys of all writes at a checkpoint begin with."""
    return WRITE + encode_labels(at)


def write_key(at: Where, task: str, number: int) -> bytes:
    """Of family ``k``; numbers in their numerical order, negative ones first."""
    return WRITE + encode_labels((*at, task)) + _NUMBER.pack(number + _BIAS)


def id_key(at: Where) -> bytes:
    """Of family ``i``."""
    return ID + encode_labels((at.id, at.thread, at.namespace))


def run_key(run: str, at: Where) -> bytes:
    """Of family ``r``."""
    return run_prefix(run) + encode_labels(at)


def run_prefix(run: str) -> bytes:
    """What the keys of all checkpoints of a run begin with."""
    return RUN + encode_labels((run.encode("utf-8", "surrogatepass").hex(),))


def fragment_key(thread: str, session: bytes, sequence: int) -> bytes:
    """Of family ``f``."""
    return thread_prefix(FRAGMENT, thread) + _RECORD.pack(session, sequence)


def thread_of_fragment(key: bytes) -> str:
    """The thread of a key of family ``f``."""
    (thread,) = decode_labels(key[len(FRAGMENT) : -_RECORD.size])
    return thread


def where(key: bytes, prefix: bytes = CHECKPOINT) -> Where:
    """The checkpoint of a key of family ``c``, or of one with another prefix before the same texts."""
    return Where(*decode_labels(key[len(prefix) :]))


def where_by_id(key: bytes) -> Where:
    """The checkpoint of a key of family ``i``."""
    id, thread, namespace = decode_labels(key[len(ID) :])
    return Where(thread, namespace, id)


def where_of_write(key: bytes) -> Where:
    """The checkpoint of a key of family ``k``."""
    return Where(*decode_labels(key[len(WRITE) : -_NUMBER.size])[:3])


def pack_row(row: Row) -> bytes:
    """A checkpoint without its place, which is its key."""
    fields: list[Any] = [*row[1:-1], dict(row.values)]
    return bytes(msgpack.packb(fields))


def row(at: Where, data: bytes) -> Row:
    """The checkpoint of :func:`pack_row`."""
    fields = msgpack.unpackb(data)
    parent, event, appended_us, hidden, sealed, body, metadata, run, memories, values = fields
    return Row(
        at,
        parent,
        (event[0], event[1]),
        appended_us,
        hidden,
        sealed,
        _stored(body),
        _stored(metadata),
        run,
        memories,
        {channel: _stored(value) for channel, value in values.items()},
    )


def event_of(data: bytes) -> tuple[int, int]:
    """Partition and offset of the event of :func:`pack_row`'s checkpoint."""
    partition, offset = msgpack.unpackb(data)[1]
    return partition, offset


def pack_write(path: str, channel: str, value: Stored) -> bytes:
    """A pending write without its place."""
    return bytes(msgpack.packb([path, channel, value]))


def write_row(key: bytes, data: bytes) -> WriteRow:
    """The pending write of a row of family ``k``."""
    task = decode_labels(key[len(WRITE) : -_NUMBER.size])[3]
    (number,) = _NUMBER.unpack(key[-_NUMBER.size :])
    path, channel, value = msgpack.unpackb(data)
    return WriteRow(task, number - _BIAS, path, channel, _stored(value))


def pack_thread(thread: ThreadRow) -> bytes:
    """A thread without its id."""
    return bytes(msgpack.packb(thread[1:]))


def thread_row(key: bytes, data: bytes) -> ThreadRow:
    """The thread of a row of family ``t``."""
    (thread,) = decode_labels(key[len(THREAD) :])
    return ThreadRow(thread, *msgpack.unpackb(data))


def pack_manifest(manifest: Manifest) -> tuple[bytes, dict[bytes, bytes]]:
    """A row of family ``v``, and the nodes it names, by digest."""
    joined = b"".join(manifest.digests)
    entries: list[bytes] = []
    nodes: dict[bytes, bytes] = {}
    for first, end, closed in _runs(joined):
        run = joined[first * DIGEST_BYTES : end * DIGEST_BYTES]
        if closed and end - first >= _SHORTEST_NODE:
            name = digest(run)
            nodes[name] = run
            entries.append(NODE + name)
        else:
            entries += [PART + name for name in manifest.digests[first:end]]
    return bytes(msgpack.packb([manifest.tag, manifest.head, manifest.sealed, b"".join(entries)])), nodes


def manifest_entries(data: bytes) -> tuple[str, bytes, bool, list[tuple[bytes, bytes]]]:
    """Tag, head, whether it is sealed, and the names of parts and nodes, each with its family."""
    tag, head, sealed, joined = msgpack.unpackb(data)
    entries = [
        (joined[at : at + 1], joined[at + 1 : at + _ENTRY_BYTES])
        for at in range(0, len(joined), _ENTRY_BYTES)
    ]
    return tag, head, sealed, entries


def node_digests(data: bytes) -> list[bytes]:
    """The parts a node names."""
    return [data[at : at + DIGEST_BYTES] for at in range(0, len(data), DIGEST_BYTES)]


def _runs(joined: bytes) -> Iterator[tuple[int, int, bool]]:
    """First and end of runs of parts, and whether another part cannot make a run longer."""
    ends = joined[::DIGEST_BYTES].translate(_CLOSES)
    first, count = 0, len(ends)
    while first < count:
        found = ends.find(b"\x01", first, first + _LONGEST_NODE)
        end = found + 1 if found >= 0 else min(first + _LONGEST_NODE, count)
        yield first, end, found >= 0 or end - first == _LONGEST_NODE
        first = end


def _stored(value: Any) -> Stored:
    return value if isinstance(value, bytes) else Packed(*value)
