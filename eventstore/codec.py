"""Events to log records and back. Deterministic, readable with any log tool, no pickle.

The record value of a put or restore is its memory's JSON, as the caller gave it; a delete's is
null, so a delete is a tombstone wherever the log is compacted. All else travels in headers, as
text, except vectors, which are little-endian float32. A touch and an embed have keys of their own
(the memory's, behind a zero byte): in a compacted copy they must not push out the put they belong to.

The header ``encoding`` is absent while payloads are plain. It is reserved for payloads sealed
under a key; a reader that meets one it does not know stops instead of guessing.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import orjson

from eventstore.errors import UndecodableEvent
from eventstore.events import VALUED, Embedded, Event, Kind, Provenance
from eventstore.keys import EMBED_PREFIX, MODEL_KEY, TOUCH_PREFIX, check_item
from eventstore.log.base import Record, StoredRecord
from eventstore.upcasters import CURRENT, Headers, upcast


class Encoded(tuple[tuple[str, bytes], ...]):
    """Headers made here, with the event they were made of: who wrote it need not read it back."""

    event: Event


_TYPES = {kind: f"{kind}/{version}".encode() for kind, version in CURRENT.items()}
_CURRENT_TYPES = {named: kind for kind, named in _TYPES.items()}
_PROVENANCE = Provenance._fields
_NAMES = frozenset(_PROVENANCE)
_NOBODY = Provenance()
_VECTORS = ("model", "vectors")
_new = tuple.__new__  # half the time of calling the class, and this runs once per record
_PREFIXES = {Kind.TOUCH: TOUCH_PREFIX, Kind.EMBED: EMBED_PREFIX}


def encode(event: Event) -> Record:
    """The record of an event; equal events give equal bytes."""
    headers: list[tuple[str, bytes]] = [("type", _TYPES[event.kind]), ("id", event.id.hex().encode())]
    if event.provenance != _NOBODY:
        headers += [
            (name, text.encode())
            for name, text in zip(_PROVENANCE, event.provenance, strict=True)
            if text is not None
        ]
    if event.ttl is not None:
        headers.append(("ttl", repr(event.ttl).encode()))
    if event.indexing is not None:
        headers.append(("index", orjson.dumps(event.indexing)))
    if event.expected_version is not None:
        headers.append(("expected-version", b"%d" % event.expected_version))
    if event.omits_expired:
        headers.append(("omits-expired", b"1"))
    if event.seen_version:
        headers.append(("seen-version", b"%d" % event.seen_version))
    if event.expires_us:
        headers.append(("expires-us", b"%d" % event.expires_us))
    if event.restores:
        headers.append(("restores", b"%d" % event.restores))
    if event.reverts:
        headers.append(("reverts", orjson.dumps(event.reverts)))
    if event.embedded is not None:
        made = event.embedded
        headers.append(("model", made.model.encode()))
        if made.paths:
            headers.append(("vector-paths", orjson.dumps(made.paths)))
            headers.append(("vectors", made.data))
    if event.fields is not None:
        headers.append(("fields", orjson.dumps(event.fields)))
    if event.replaced is not None:
        headers.append(("replaced", orjson.dumps(event.replaced)))
    if event.kind in _PREFIXES:
        return Record(_PREFIXES[event.kind] + event.key, b"{}", tuple(headers))
    if event.kind is Kind.MODEL:
        return Record(MODEL_KEY, b"{}", tuple(headers))
    encoded = Encoded(headers)
    encoded.event = event
    return Record(event.key, event.value, encoded)


def decode(record: StoredRecord) -> Event:
    """The event of a stored record.

    Raises ``UndecodableEvent``, naming partition and offset, for anything it cannot fully
    understand: a foreign record, a newer schema, an unknown encoding, a malformed header.
    """
    headers = record.headers
    if type(headers) is Encoded:
        event = headers.event
        if record.key is event.key and record.value is event.value:
            return event
    try:
        return _decode(record)
    except UndecodableEvent as error:
        raise UndecodableEvent(f"partition {record.partition}, offset {record.offset}: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UndecodableEvent(
            f"partition {record.partition}, offset {record.offset}: "
            f"malformed event ({type(error).__name__}: {error})"
        ) from error


def _decode(record: StoredRecord) -> Event:
    headers = dict(record.headers)
    kind, value = _kind(headers, record.value)
    if "encoding" in headers:
        raise UndecodableEvent(f"the payload encoding {headers['encoding']!r} is unknown to this release")
    key = record.key
    if kind is Kind.MODEL:
        return _model(record, headers)
    if kind in _PREFIXES:
        prefix = _PREFIXES[kind]
        if not key.startswith(prefix):
            raise UndecodableEvent(f"a {kind} event whose key does not begin with {prefix!r}")
        key, value = key[len(prefix) :], None
        if kind is Kind.EMBED and not ("model" in headers and "fields" in headers):
            raise UndecodableEvent("an embed event that does not say what its vectors are for")
    elif (value is None) is (kind in VALUED):
        raise UndecodableEvent(f"a {kind} event {'without' if value is None else 'with'} a value")
    check_item(key)
    if len(headers) == 2:
        return Event(kind, key, bytes.fromhex(headers["id"].decode()), value)
    get = headers.get
    index = get("index")
    paths = orjson.loads(index) if index is not None else None
    ttl, expected, reverts = get("ttl"), get("expected-version"), get("reverts")
    seen, expires, restores = get("seen-version"), get("expires-us"), get("restores")
    return _new(
        Event,
        (
            kind,
            key,
            bytes.fromhex(headers["id"].decode()),
            value,
            _NOBODY if _NAMES.isdisjoint(headers) else _provenance(headers),
            None if ttl is None else _minutes(ttl),
            tuple(paths) if isinstance(paths, list) else paths,
            _embedded(headers) if "model" in headers or "vectors" in headers else None,
            None if expected is None else int(expected),
            "omits-expired" in headers,
            0 if seen is None else int(seen),
            0 if expires is None else int(expires),
            0 if restores is None else int(restores),
            () if reverts is None else tuple(orjson.loads(reverts)),
            fields_of(headers),
            None,
        ),
    )


def _model(record: StoredRecord, headers: Headers) -> Event:
    if record.key != MODEL_KEY or fields_of(headers) is None:
        raise UndecodableEvent("a model event with another key, or without fields")
    before = orjson.loads(headers.get("replaced", b"null"))
    return Event(
        Kind.MODEL,
        record.key,
        bytes.fromhex(headers["id"].decode()),
        provenance=_provenance(headers),
        embedded=_embedded(headers),
        fields=fields_of(headers),
        replaced=before and (before[0], None if before[1] is None else tuple(before[1])),
    )


def fields_of(headers: Headers) -> tuple[str, ...] | None:
    """The default fields that an embed or model event names."""
    data = headers.get("fields")
    return None if data is None else tuple(orjson.loads(data))


def _provenance(headers: Headers) -> Provenance:
    return Provenance(
        *(None if (text := headers.get(name)) is None else text.decode() for name in _PROVENANCE)
    )


def _minutes(text: bytes) -> float:
    minutes = float(text)
    if not 0 < minutes < math.inf:
        raise ValueError("a time to live that is not a positive, finite number")
    return minutes


def _kind(headers: Headers, value: bytes | None) -> tuple[Kind, bytes | None]:
    named = headers.get("type")
    current = _CURRENT_TYPES.get(named or b"")
    if current is not None:
        return current, value
    if named is None:
        raise UndecodableEvent("a record without a type header; it was not written by this project")
    name, _, version = named.partition(b"/")
    try:
        kind, number = Kind(name.decode()), int(version)
    except ValueError:
        raise UndecodableEvent(
            f"unknown event type {named!r}; upgrade this reader, or see who wrote it"
        ) from None
    upcasted, value = upcast(kind, number, dict(headers), value)
    headers.clear()
    headers.update(upcasted)
    return kind, value


def _embedded(headers: Headers) -> Embedded:
    paths = _paths(headers.get("vector-paths", b"[]"))
    data = headers.get("vectors", b"")
    model, dims = _model_of(headers["model"])
    if len(data) != 4 * dims * len(paths):
        raise UndecodableEvent(
            f"{len(data)} bytes of vectors where {len(paths)} of {dims} dimensions were announced"
        )
    made = np.isfinite(np.frombuffer(data, "<f4"))
    if np.count_nonzero(made) != len(made):
        raise UndecodableEvent("a vector with NaN or infinity in it")
    return _new(Embedded, (model, dims, paths, data))


@lru_cache(maxsize=256)
def _paths(data: bytes) -> tuple[str, ...]:
    return tuple(orjson.loads(data))


@lru_cache(maxsize=256)
def _model_of(data: bytes) -> tuple[str, int]:
    """A fingerprint, and the vector size in it."""
    model = data.decode()
    return model, int(model.rpartition("/")[2])


def pack(record: StoredRecord) -> bytes:
    """A record's headers, vectors aside, and value, for keeping beside its position."""
    head = orjson.dumps(
        [(name, data.decode("latin-1")) for name, data in record.headers if name not in _VECTORS]
    )
    return len(head).to_bytes(4, "big") + head + (record.value or b"")


def needle(name: str, text: str) -> bytes:
    """Bytes that :func:`pack` leaves wherever a header has this text; elsewhere only by chance."""
    return orjson.dumps((name, text.encode().decode("latin-1")))


def unpack(data: bytes) -> tuple[Headers, bytes]:
    """Headers and value (empty for none) of :func:`pack`'s bytes."""
    end = 4 + int.from_bytes(data[:4], "big")
    return {name: text.encode("latin-1") for name, text in orjson.loads(data[4:end])}, data[end:]
