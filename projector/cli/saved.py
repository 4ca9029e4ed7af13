"""Events of the log of checkpoints as ``eventstore log --checkpoints`` prints them.

What a state says is not printed: values are told by channel, size, and how much of each is new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from eventstore.checkpoint.enveloping import Opener
from eventstore.checkpoint.events import (
    Assembled,
    Copy,
    Described,
    Drop,
    Event,
    Fragment,
    Large,
    Packed,
    Part,
    Parts,
    Put,
    Writes,
)
from eventstore.errors import UndecodableEvent
from eventstore.history import moment
from eventstore.log.base import StoredRecord
from projector.cli.output import when


def telling() -> Callable[[StoredRecord], dict[str, Any]]:
    """Tells of records in their order: an event, or why it cannot be decoded; all have the same fields.

    A large event is told as what it stands for, if the fragments before it were told, too.
    """
    opener = Opener()
    return lambda record: _of(record, opener)


def _of(record: StoredRecord, opener: Opener) -> dict[str, Any]:
    size = len(record.key) + len(record.value or b"")
    place = {"offset": record.offset, "at": moment(record.appended_us).isoformat(), "bytes": size}
    try:
        event = opener.event(record)
    except UndecodableEvent as error:
        return place | {"kind": None} | _FIELDS | {"undecodable": str(error)}
    headers = dict(record.headers)
    kind, of = (headers.get(name, b"").partition(b"/")[0].decode() or None for name in ("type", "of"))
    about = {"thread": event.at.thread, "namespace": event.at.namespace, "checkpoint": event.at.id or None}
    return place | {"kind": kind} | _FIELDS | about | {"of": of} | _told(event)


def row(event: dict[str, Any]) -> dict[str, Any]:
    """One line of the table."""
    values = event["values"] or event["writes"] or ()
    return {
        "offset": event["offset"],
        "when (UTC)": when(datetime.fromisoformat(event["at"])),
        "what": event["of"] or event["kind"] or "undecodable",
        "thread": event["thread"],
        "namespace": event["namespace"],
        "checkpoint": event["checkpoint"],
        "parent": event["parent"],
        "task": event["task"],
        "values": ", ".join(_value_text(each) for each in values),
        "new parts": event["parts"] or None,
        "dropped": len(event["dropped"] or ()) or None,
        "hidden": len(event["hidden"] or ()) or None,
        "memories at": event["memories"],
        "sealed": "yes" if event["sealed"] else None,
        "bytes": event["bytes"],
        "because": event["undecodable"],
    }


_FIELDS: dict[str, Any] = dict.fromkeys(
    (
        "thread", "namespace", "checkpoint", "parent", "run", "memories", "task", "path", "values", "removed",
        "writes", "of", "parts", "part_bytes", "dropped", "hidden", "sealed", "undecodable",
    )
)  # fmt: skip


def _told(event: Event) -> dict[str, Any]:
    match event:
        case Put():
            return {
                "parent": event.parent,
                "run": event.run,
                "memories": event.memories,
                "values": [{"channel": channel, **_value(value)} for channel, value in event.values],
                "removed": list(event.removed),
                "sealed": event.sealed,
                **_parts(event.parts),
            }
        case Writes():
            writes = [{"number": w.number, "channel": w.channel, **_value(w.value)} for w in event.writes]
            return {
                "task": event.task,
                "path": event.path,
                "writes": writes,
                "sealed": event.sealed,
                **_parts(event.parts),
            }
        case Parts():
            return {"sealed": event.sealed, **_parts(event.parts)}
        case Fragment():
            return {"sealed": event.sealed}
        case Large():
            return {"sealed": "encoding" in dict(event.headers)}
        case Drop():
            return {"dropped": _places(event.dropped), "hidden": _places(event.hidden)}
        case _:
            return {}


def _parts(parts: Sequence[Part]) -> dict[str, Any]:
    return {"parts": len(parts), "part_bytes": sum(len(part.data) for part in parts)}


def _value(value: Described) -> dict[str, Any]:
    """``bytes`` of a value that stands in the event itself; else how many parts it names, and how."""
    if isinstance(value, Packed):
        return {"tag": value.tag, "bytes": len(value.data), "copied": None, "named": None, "new": None}
    return {"tag": value.tag, "bytes": None, **_pieces(value)}


def _pieces(value: Assembled) -> dict[str, int]:
    return {
        "copied": sum(piece.parts for piece in value.pieces if isinstance(piece, Copy)),
        "named": sum(isinstance(piece, bytes) for piece in value.pieces),
        "new": sum(isinstance(piece, int) for piece in value.pieces),
    }


def _places(places: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"namespace": namespace, "checkpoint": id} for namespace, id in places]


def _value_text(value: dict[str, Any]) -> str:
    if value["bytes"] is not None:
        return f"{value['channel']}: {value['bytes']} bytes"
    kinds = [f"{value[name]} {name}" for name in ("copied", "named", "new") if value[name]]
    return f"{value['channel']}: {', '.join(kinds) or 'no'} parts"
