"""Calls of a saver as events: what is new in a checkpoint, and what it has in common with its parent.

How large an event comes to be is no matter here: ``enveloping`` finds it room in records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.base import SerializerProtocol

from eventstore.checkpoint.contents import Contents, Description
from eventstore.checkpoint.events import Described, Event, Packed, Put, Where, Write, Writes
from eventstore.checkpoint.sealing import Seal
from eventstore.checkpoint.shrinking import shrink
from eventstore.checkpoint.splitting import Split
from eventstore.checkpoint.views import Row, Stored

INLINE_BYTES: Final = 16 * 1024
"""What stands in a checkpoint's event itself; more of it is cut into parts like a value."""
LEFT_OUT: Final = ("channel_values", "id")
"""Of a checkpoint's fields: values are kept by channel, and the id is its place."""


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
        description.take_parts(),
        str(run) if run is not None else None,
        memories,
        seal.closes,
    )
    return Composed([event], description.splits)


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
    event = Writes(at, task, path, made, description.take_parts(), seal.closes)
    return Composed([event], description.splits)


def field(description: Description, seal: Seal, packed: Packed, at: Where, what: bytes) -> Described:
    """A part of a checkpoint that is no channel's value."""
    if len(packed.data) > INLINE_BYTES:
        return description.value(packed)
    return seal.close(shrink(packed), at, what)
