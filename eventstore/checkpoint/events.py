"""What can happen to a thread's checkpoints, as records of the checkpoints' log and back.

The key of a record is the encoded thread, followed by namespace and checkpoint id where it is
about one, so that a thread's events stay in order. The value is msgpack; its bytes were made by
the saver's serializer and are never interpreted here. Nothing is pickled, and nothing that is read
constructs an object.

A channel's value is described, not repeated: its parts are named by digest, by a range of an
earlier value, or given here. An event that names what is no longer there is rejected by the fold,
and its writer sends it again in full. How an event too large for a record travels as
:class:`Fragment` and :class:`Large` is decided in ``enveloping``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, cast

import msgpack
from langchain_core.runnables import RunnableConfig

from eventstore.errors import InvalidInput, UndecodableEvent
from eventstore.keys import decode_labels, encode_labels
from eventstore.log.base import Record, StoredRecord

VERSION: Final = 1
DIGEST_BYTES: Final = 16
SEALED: Final = b"aes-gcm/1"
"""The ``encoding`` of events whose bytes are sealed under their thread's key."""


class Kind(StrEnum):
    """What an event does."""

    PUT = "cp.put"
    WRITES = "cp.writes"
    PARTS = "cp.parts"
    DROP = "cp.dropped"
    DELETE = "cp.deleted"
    FRAGMENT = "cp.fragment"
    LARGE = "cp.large"


class Packed(NamedTuple):
    """A value as a serializer gave it."""

    tag: str
    data: bytes


class Copy(NamedTuple):
    """Parts of the value that an :class:`Assembled` one continues: so many from ``first`` on."""

    first: int
    parts: int


Piece = Copy | bytes | int
"""Parts of an earlier value, a part by its digest, or one of the event's own by its number."""


class Assembled(NamedTuple):
    """A value as the parts that follow its head."""

    tag: str
    head: bytes
    after: bytes | None
    """The earlier value that copies are taken from, by its digest."""
    pieces: tuple[Piece, ...]


Described = Packed | Assembled


class Part(NamedTuple):
    """Bytes that values are made of; ``digest`` is given where the fold cannot make it."""

    data: bytes
    digest: bytes | None = None


class Where(NamedTuple):
    """A checkpoint; an empty ``id`` names its thread alone."""

    thread: str
    namespace: str = ""
    id: str = ""


class Put(NamedTuple):
    """One checkpoint, whole."""

    at: Where
    parent: str | None
    base: tuple[int, int] | None
    """Partition and offset of the parent's own event: channels not named here are as they are there."""
    body: Described
    """The checkpoint without its channels' values."""
    metadata: Described
    removed: tuple[str, ...]
    """Channels that have no value any more."""
    values: tuple[tuple[str, Described], ...]
    parts: tuple[Part, ...]
    run: str | None = None
    memories: str | None = None
    """The position of the log of memories that its writer saw."""
    sealed: bool = False


class Write(NamedTuple):
    """One pending write of a task."""

    number: int
    """Its place among the task's writes; negative for the special ones, of which the last counts."""
    channel: str
    value: Described


class Writes(NamedTuple):
    """Pending writes of one task at a checkpoint."""

    at: Where
    task: str
    path: str
    writes: tuple[Write, ...]
    parts: tuple[Part, ...]
    sealed: bool = False


class Parts(NamedTuple):
    """Parts for events behind this one. It is read where it was written once; nobody writes it any more."""

    at: Where
    parts: tuple[Part, ...]
    sealed: bool = False


class Drop(NamedTuple):
    """Checkpoints that go: the decision, not the rule it came from, so that a replay decides alike."""

    at: Where
    dropped: tuple[tuple[str, str], ...]
    """Namespaces and ids."""
    hidden: tuple[tuple[str, str], ...]
    """Those of which only the writes stay, since later checkpoints are rebuilt from them."""
    known: int = 0
    """Offset of the last put that the decision knew: whatever a later one needs is hidden instead."""


class Delete(NamedTuple):
    """A thread goes, with all it has."""

    at: Where


class Fragment(NamedTuple):
    """Some bytes of a :class:`Large` event behind this one; its record has them as they are."""

    at: Where
    data: bytes
    sealed: bool = False


class Large(NamedTuple):
    """An event whose value its writer appended right before it, in fragments."""

    at: Where
    headers: tuple[tuple[str, bytes], ...]
    """What the record of the event would have."""
    fragments: int


Event = Put | Writes | Parts | Drop | Delete | Fragment | Large

_TYPES: Final = {f"{kind}/{VERSION}".encode(): kind for kind in Kind}
_NAMES: Final = {kind: name for name, kind in _TYPES.items()}
_CARRIERS: Final = (Kind.FRAGMENT, Kind.LARGE)


def key_of(at: Where) -> bytes:
    """The encoded thread, and namespace and id where there is one; any text is legal in each.

    Raises ``InvalidInput`` for text that is not Unicode.
    """
    try:
        return encode_labels((at.thread, at.namespace, at.id) if at.id else (at.thread,))
    except UnicodeEncodeError as error:
        raise InvalidInput(f"a thread, namespace or checkpoint id is not Unicode text: {error}") from None


def config_of(at: Where) -> RunnableConfig:
    """The LangGraph config that names a checkpoint."""
    named = {"thread_id": at.thread, "checkpoint_ns": at.namespace, "checkpoint_id": at.id}
    return cast(RunnableConfig, {"configurable": named})


def encode(event: Event) -> Record:
    """The record of an event; equal events give equal bytes."""
    kind, value = _value(event)
    headers = [("type", _NAMES[kind])]
    if isinstance(event, Large):
        headers += [("of" if name == "type" else name, value) for name, value in event.headers]
    if isinstance(event, Put):
        if event.run is not None:
            headers.append(("run", event.run.encode("utf-8", "surrogatepass")))
        if event.memories is not None:
            headers.append(("memories", event.memories.encode()))
    if isinstance(event, (Put, Writes, Parts, Fragment)) and event.sealed:
        headers.append(("encoding", SEALED))
    plain = value is None or isinstance(event, Fragment)
    return Record(key_of(event.at), value if plain else msgpack.packb(value), tuple(headers))


def decode(record: StoredRecord) -> Event:
    """The event of a stored record.

    Raises ``UndecodableEvent``, naming partition and offset, for anything it cannot fully understand.
    """
    headers = dict(record.headers)
    place = f"partition {record.partition}, offset {record.offset}"
    kind = _kind(headers.get("type"), place)
    encoding = headers.get("encoding")
    if kind is Kind.LARGE and _kind(headers.get("of"), place) in _CARRIERS:
        raise UndecodableEvent(f"{place}: a large event that stands for {headers['of']!r}; see who wrote it")
    if encoding not in (None, SEALED):
        raise UndecodableEvent(f"{place}: the encoding {encoding!r} is unknown to this release")
    try:
        at = Where(*decode_labels(record.key))
        if kind is Kind.FRAGMENT:
            return Fragment(at, _bytes(record.value), "encoding" in headers)
        fields = msgpack.unpackb(record.value, strict_map_key=False) if record.value is not None else None
        return _DECODERS[kind](at, fields, headers)
    except (ValueError, TypeError, KeyError, IndexError, InvalidInput, msgpack.UnpackException) as error:
        raise UndecodableEvent(
            f"{place}: malformed {kind} event ({type(error).__name__}: {error})"
        ) from error


def _kind(name: bytes | None, place: str) -> Kind:
    kind = _TYPES.get(name or b"")
    if kind is None:
        raise UndecodableEvent(
            f"{place}: unknown checkpoint event {name!r}; upgrade this reader, or see who wrote it"
        )
    return kind


def _value(event: Event) -> tuple[Kind, Any]:
    match event:
        case Put():
            return Kind.PUT, [
                event.parent,
                event.base,
                _described(event.body),
                _described(event.metadata),
                event.removed,
                [[channel, *_described(value)] for channel, value in event.values],
                _parts(event.parts),
            ]
        case Writes():
            writes = [[write.number, write.channel, *_described(write.value)] for write in event.writes]
            return Kind.WRITES, [event.task, event.path, writes, _parts(event.parts)]
        case Parts():
            return Kind.PARTS, _parts(event.parts)
        case Drop():
            return Kind.DROP, [event.dropped, event.hidden, event.known]
        case Delete():
            return Kind.DELETE, None
        case Fragment():
            return Kind.FRAGMENT, event.data
        case Large():
            return Kind.LARGE, event.fragments


def _described(value: Described) -> tuple[Any, ...]:
    if isinstance(value, Packed):
        return value
    return value.tag, value.head, value.after, value.pieces


def _description(fields: list[Any]) -> Described:
    if len(fields) == 2:
        return Packed(*fields)
    tag, head, after, pieces = fields
    return Assembled(tag, head, after, tuple(Copy(*p) if isinstance(p, list) else p for p in pieces))


def _parts(parts: tuple[Part, ...]) -> list[Any]:
    return [part.data if part.digest is None else part for part in parts]


def _parts_of(fields: list[Any]) -> tuple[Part, ...]:
    return tuple(Part(*part) if isinstance(part, list) else Part(part) for part in fields)


def _put(at: Where, fields: Any, headers: Mapping[str, bytes]) -> Put:
    parent, base, body, metadata, removed, values, parts = fields
    run, memories = headers.get("run"), headers.get("memories")
    return Put(
        at,
        parent,
        None if base is None else (base[0], base[1]),
        _description(body),
        _description(metadata),
        tuple(removed),
        tuple((channel, _description(rest)) for channel, *rest in values),
        _parts_of(parts),
        None if run is None else run.decode("utf-8", "surrogatepass"),
        None if memories is None else memories.decode(),
        "encoding" in headers,
    )


def _writes(at: Where, fields: Any, headers: Mapping[str, bytes]) -> Writes:
    task, path, writes, parts = fields
    return Writes(
        at,
        task,
        path,
        tuple(Write(number, channel, _description(rest)) for number, channel, *rest in writes),
        _parts_of(parts),
        "encoding" in headers,
    )


def _drop(at: Where, fields: Any, headers: Mapping[str, bytes]) -> Drop:
    dropped, hidden, known = fields
    return Drop(at, tuple((ns, id) for ns, id in dropped), tuple((ns, id) for ns, id in hidden), int(known))


def _bytes(value: bytes | None) -> bytes:
    if value is None:
        raise TypeError("a fragment without bytes")
    return value


def _large(at: Where, fields: Any, headers: Mapping[str, bytes]) -> Large:
    if type(fields) is not int or fields < 1:
        raise TypeError("no number of fragments")
    own = [(name, value) for name, value in headers.items() if name != "type"]
    return Large(at, tuple(("type" if name == "of" else name, value) for name, value in own), fields)


_DECODERS: Final[Mapping[Kind, Callable[[Where, Any, Mapping[str, bytes]], Event]]] = {
    Kind.PUT: _put,
    Kind.WRITES: _writes,
    Kind.PARTS: lambda at, fields, headers: Parts(at, _parts_of(fields), "encoding" in headers),
    Kind.DROP: _drop,
    Kind.DELETE: lambda at, fields, headers: Delete(at),
    Kind.LARGE: _large,
}
