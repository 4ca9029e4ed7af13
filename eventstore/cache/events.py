"""What can happen to a cache entry, as records of the cache's log and back.

The key of a record is a digest: a token or a name that serves as a cache key never reaches the
log. A later record with the same digest replaces an earlier one, so a compacted log means the
same. Which memories an entry depends on stands in its headers in plain text, as it does in the
log of memories.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import orjson

from eventstore.cache.sealing import Seal
from eventstore.errors import UndecodableEvent
from eventstore.log.base import Record, StoredRecord
from eventstore.log.position import Position

VERSION: Final = 1
DAY_US: Final = 86_400_000_000
"""The longest life of an entry."""
JSON: Final = "json"


class Kind(StrEnum):
    """What an event does."""

    SET = "cache-set"
    DELETE = "cache-delete"
    CLEAR = "cache-clear"


class Space(StrEnum):
    """Whose keys: the same text in two spaces is two entries."""

    VALUE = "value"
    SWR = "swr"
    NODE = "node"
    GROUP = "group"
    """Namespaces of node caches; an entry names the one it is in."""


class Depends(NamedTuple):
    """The memories an entry was made from, and the moment from which a change of them ends it."""

    on: tuple[bytes, ...]
    """Encoded memories and encoded prefixes (:mod:`eventstore.keys`)."""
    log_id: str
    """Of the log of memories."""
    seen: Position
    """What was made shows at least everything before it."""


class CacheEvent(NamedTuple):
    """One fact about one entry, or about all entries of a group."""

    kind: Kind
    digest: bytes
    """Of the key; of a clear, the digest of its group, or of the empty key for all groups."""
    space: Space
    value: bytes = b""
    form: str = JSON
    """What made bytes of the value."""
    ttl_us: int = DAY_US
    """Life from when the log took the event."""
    group: bytes = b""
    loaded: bool = False
    """A loader brought the value, so a value that somebody wrote meanwhile is not to be replaced."""
    depends: Depends | None = None


_TYPES: Final = {kind: f"{kind}/{VERSION}".encode() for kind in Kind}
_KINDS: Final = {named: kind for kind, named in _TYPES.items()}
_SPACES: Final = {space.encode(): space for space in Space}


def encode(event: CacheEvent, seal: Seal) -> Record:
    """The record of an event."""
    headers: list[tuple[str, bytes]] = [("type", _TYPES[event.kind]), ("space", event.space.encode())]
    if event.kind is not Kind.SET:
        # Not a tombstone for a clear: compaction drops tombstones, and with it entries would come back.
        value = b"{}" if event.kind is Kind.CLEAR else None
        return Record(event.digest, value, tuple(headers))
    headers.append(("ttl-us", b"%d" % event.ttl_us))
    if event.form != JSON:
        headers.append(("form", event.form.encode()))
    if event.group:
        headers.append(("group", event.group.hex().encode()))
    if event.loaded:
        headers.append(("loaded", b"1"))
    if event.depends is not None:
        headers.append(("depends", orjson.dumps([each.decode() for each in event.depends.on])))
        headers.append(("seen", f"{event.depends.log_id} {event.depends.seen}".encode()))
    value = event.value
    if seal.name is not None:
        headers.append(("encoding", seal.name))
        value = seal.close(value, event.digest)
    return Record(event.digest, value, tuple(headers))


def decode(record: StoredRecord, seal: Seal) -> CacheEvent:
    """The event of a record. Raises ``UndecodableEvent`` for one that is not understood."""
    headers = dict(record.headers)
    try:
        kind = _KINDS[headers["type"]]
        space = _SPACES[headers["space"]]
        if kind is not Kind.SET:
            return CacheEvent(kind, record.key, space)
        value = record.value or b""
        if headers.get("encoding") != seal.name:
            raise UndecodableEvent("the value is sealed otherwise than here")
        if seal.name is not None:
            value = seal.open(value, record.key)
        ttl_us = int(headers["ttl-us"])
        if len(headers) == 3:
            return CacheEvent(kind, record.key, space, value, JSON, ttl_us)
        return CacheEvent(
            kind,
            record.key,
            space,
            value,
            headers.get("form", b"json").decode(),
            ttl_us,
            bytes.fromhex(headers.get("group", b"").decode()),
            "loaded" in headers,
            _depends(headers) if "depends" in headers else None,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UndecodableEvent(f"offset {record.offset}: {type(error).__name__}: {error}") from None


def _depends(headers: dict[str, bytes]) -> Depends:
    log_id, _, seen = headers["seen"].decode().rpartition(" ")
    return Depends(
        tuple(each.encode() for each in orjson.loads(headers["depends"])), log_id, Position.of(seen)
    )
