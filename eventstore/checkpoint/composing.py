"""Calls of a saver as events: what is new in a checkpoint, and what it has in common with its parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.base import SerializerProtocol

from eventstore.checkpoint.contents import Contents, Description
from eventstore.checkpoint.events import (
    DIGEST_BYTES,
    Assembled,
    Described,
    Event,
    Packed,
    Part,
    Parts,
    Put,
    Where,
    Write,
    Writes,
)
from eventstore.checkpoint.sealing import Seal
from eventstore.checkpoint.shrinking import shrink
from eventstore.checkpoint.splitting import Split
from eventstore.checkpoint.views import Row, Stored

RECORD_BYTES: Final = 768 * 1024
"""Parts beyond this travel in records of their own: Kafka takes no record above 1 MB by default."""
INLINE_BYTES: Final = 16 * 1024
"""What stands in a checkpoint's event itself; more of it is cut into parts like a value."""
LEFT_OUT: Final = ("channel_values", "id")
"""Of a checkpoint's fields: values are kept by channel, and the id is its place."""
NAME_BYTES: Final = 2 + DIGEST_BYTES
"""What naming a part takes in a record."""
WRITES_EACH: Final = 1_000
"""Writes in one event."""


class Base(NamedTuple):
    """The checkpoint that another continues."""

    row: Row
    versions: Mapping[str, Any]
    """Of its channels."""


class Composed:
    """Events that are appended all together, and the values in them."""

    def __init__(self, events: Sequence[Event], splits: Sequence[Split]) -> None:
        self.events = events
        self.splits = splits


def put(
    at: Where,
    parent: str | None,
    base: Base | None,
    checkpoint: Mapping[str, Any],
    metadata: Mapping[str, Any],
    new_versions: Mapping[str, Any],
    memories: str | None,
    serde: SerializerProtocol,
    contents: Contents,
    seal: Seal,
    *,
    whole: bool = False,
) -> Composed:
    """A checkpoint; ``base`` is its parent, if that is there.

    A channel that is of its parent's version, and not in ``new_versions``, has its parent's value.
    Others have the value that the checkpoint gives, or none. ``whole`` when no value must be named
    that was before.
    """
    description = contents.describe(at.thread, seal, whole=whole)
    values: Mapping[str, Any] = checkpoint["channel_values"]
    versions: Mapping[str, Any] = checkpoint["channel_versions"]
    before: Mapping[str, Stored] = {} if base is None else base.row.values
    inherited = set()
    if base is not None:
        inherited = {
            channel
            for channel in before
            if channel not in new_versions
            and channel in versions
            and versions[channel] == base.versions.get(channel)
        }
    made: list[tuple[str, Described]] = []
    for channel, value in values.items():
        if channel not in inherited:
            packed = Packed(*serde.dumps_typed(value))
            earlier = contents.earlier(at.thread, before.get(channel))
            made.append((channel, description.value(packed, earlier)))
    removed = tuple(channel for channel in before if channel not in inherited and channel not in values)
    body = {name: value for name, value in checkpoint.items() if name not in LEFT_OUT}
    run = metadata.get("run_id")
    event = Put(
        at,
        parent,
        None if base is None else base.row.event,
        field(description, seal, Packed(*serde.dumps_typed(body)), at, b"body"),
        field(description, seal, Packed(*serde.dumps_typed(metadata)), at, b"metadata"),
        removed,
        tuple(made),
        tuple(description.parts),
        str(run) if run is not None else None,
        memories,
        seal.closes,
    )
    return Composed(_fitting([event], description), description.splits)


def writes(
    at: Where,
    task: str,
    path: str,
    given: Sequence[tuple[str, Any]],
    serde: SerializerProtocol,
    contents: Contents,
    seal: Seal,
    *,
    whole: bool = False,
) -> Composed:
    """Pending writes of a task. ``whole`` when nothing must be named that was before."""
    description = contents.describe(at.thread, seal, whole=whole)
    made = tuple(
        Write(
            WRITES_IDX_MAP.get(channel, number), channel, description.value(Packed(*serde.dumps_typed(value)))
        )
        for number, (channel, value) in enumerate(given)
    )
    parts = tuple(description.parts)
    if len(made) <= WRITES_EACH:
        return Composed(
            _fitting([Writes(at, task, path, made, parts, seal.closes)], description), description.splits
        )
    events = [
        Writes(at, task, path, made[first : first + WRITES_EACH], parts, seal.closes)
        for first in range(0, len(made), WRITES_EACH)
    ]
    return Composed(_fitting(events, description), description.splits)


def field(description: Description, seal: Seal, packed: Packed, at: Where, what: bytes) -> Described:
    """A part of a checkpoint that is no channel's value."""
    if len(packed.data) > INLINE_BYTES:
        return description.value(packed)
    return seal.close(shrink(packed), at, what)


def _fitting(events: Sequence[Put | Writes], description: Description) -> list[Event]:
    """The events, behind records with their parts if one record has no room for all."""
    if len(events) == 1:
        size = sum(len(part.data) + NAME_BYTES for part in description.parts)
        if size + sum(map(_size, _values(events[0]))) <= RECORD_BYTES:
            return list(events)
    return behind_their_parts(events, description)


def behind_their_parts(events: Sequence[Put | Writes], description: Description) -> list[Event]:
    """Records with all parts of some events, and the events, which name them by digest."""
    names = description.names()
    parts = _parts(events[0], description.parts) if description.parts else []
    return [*parts, *(_without_parts(event, names) for event in events)]


def _values(event: Put | Writes) -> list[Described]:
    if isinstance(event, Writes):
        return [write.value for write in event.writes]
    return [event.body, event.metadata, *(value for _, value in event.values)]


def _size(value: Described) -> int:
    """About how many bytes of a record a value takes, without its parts."""
    if isinstance(value, Packed):
        return len(value.data)
    return sum(1 if isinstance(piece, int) else NAME_BYTES for piece in value.pieces)


def _parts(event: Put | Writes, parts: Sequence[Part]) -> list[Event]:
    made: list[Event] = []
    group: list[Part] = []
    size = 0
    for part in parts:
        if group and size + len(part.data) > RECORD_BYTES:
            made.append(Parts(Where(event.at.thread), tuple(group), event.sealed))
            group, size = [], 0
        group.append(part)
        size += len(part.data)
    made.append(Parts(Where(event.at.thread), tuple(group), event.sealed))
    return made


def _without_parts(event: Put | Writes, names: Sequence[bytes]) -> Event:
    def named(value: Described) -> Described:
        if isinstance(value, Packed):
            return value
        pieces = tuple(names[piece] if isinstance(piece, int) else piece for piece in value.pieces)
        return Assembled(value.tag, value.head, value.after, pieces)

    if isinstance(event, Put):
        return event._replace(
            body=named(event.body),
            metadata=named(event.metadata),
            values=tuple((channel, named(value)) for channel, value in event.values),
            parts=(),
        )
    return event._replace(
        writes=tuple(write._replace(value=named(write.value)) for write in event.writes), parts=()
    )
