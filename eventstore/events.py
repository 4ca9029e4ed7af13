"""The facts that can happen to a memory.

An event says what was asked for, by whom, and everything a reader needs to fold it later
without asking anyone: the value's JSON, the vectors, the time to live, the condition. Where
and when it was appended is the log's knowledge and stands in its ``StoredRecord``.

Events are plain tuples because one is made for every put; what users see of them are the
pydantic models of :mod:`eventstore.history`.
"""

from __future__ import annotations

import os
import random
import time
from enum import StrEnum
from typing import Final, NamedTuple


class Kind(StrEnum):
    """What an event does to its memory; ``MODEL`` is about no memory, but about all vectors."""

    PUT = "put"
    RESTORE = "restore"
    DELETE = "delete"
    EXPIRE = "expire"
    TOUCH = "touch"
    EMBED = "embed"
    MODEL = "model"


VALUED: Final = frozenset({Kind.PUT, Kind.RESTORE})
"""Kinds that give their memory a value; to the fold they are the same."""

UNVERSIONED: Final = frozenset({Kind.TOUCH, Kind.EMBED})
"""Kinds that add something to a version of their memory and make no new one."""


class Provenance(NamedTuple):
    """Who wrote an event, and in the course of what."""

    actor: str | None = None
    thread: str | None = None
    run: str | None = None
    node: str | None = None
    checkpoint: str | None = None


class Embedded(NamedTuple):
    """The vectors of one memory, as they were when it was written."""

    model: str
    """Fingerprint of the embedding model, vector size included."""
    dims: int
    paths: tuple[str, ...]
    """The path each vector's text came from; one entry per vector."""
    data: bytes
    """The vectors one after another, little-endian float32."""


class Event(NamedTuple):
    """One immutable fact about one memory."""

    kind: Kind
    key: bytes
    """Encoded namespace and key (:mod:`eventstore.keys`); ``MODEL_KEY`` for a change of model."""
    id: bytes
    """UUIDv7, 16 bytes."""
    value: bytes | None = None
    """Compact JSON of a put or restore; ``None`` for every other kind."""
    provenance: Provenance = Provenance()
    ttl: float | None = None
    """Minutes to live from the event's time."""
    indexing: tuple[str, ...] | bool | None = None
    """What the caller asked to embed: paths, ``False`` for nothing, ``None`` for the default."""
    embedded: Embedded | None = None
    expected_version: int | None = None
    """Version the memory must have (0: absent), else the fold rejects the event."""
    omits_expired: bool = False
    """The writer saw expired memories as gone, so a put over one begins a new memory."""
    seen_version: int = 0
    """Touch, embed and expire: the version they are about; another version makes them void."""
    expires_us: int = 0
    """Touch: the new expiry. Expire: the expiry that has passed. µs since the epoch."""
    restores: int = 0
    """Restore: the version of this memory whose value, vectors and ttl it puts back."""
    reverts: tuple[int, ...] = ()
    """Restore and delete: the versions of this memory that it undoes."""
    fields: tuple[str, ...] | None = None
    """Embed: the default fields of the index its vectors are for. Model: those of record from now on."""
    replaced: tuple[str, tuple[str, ...] | None] | None = None
    """Model: fingerprint and fields that were of record before, if any were."""


# Seeded by the system once per process: ids have to be unique, not secret, and asking the system
# for every one lets other threads in at a cost above that of the event.
_random = random.Random(os.urandom(32))
os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(32)))


def new_id() -> bytes:
    """A UUIDv7 (RFC 9562): 48 bits of milliseconds, then 74 random bits, so ids sort by time."""
    bits = _random.getrandbits(74)
    value = time.time_ns() // 1_000_000 << 80 | 0x7 << 76 | (bits >> 62) << 64 | 0b10 << 62
    return (value | bits & (1 << 62) - 1).to_bytes(16, "big")
