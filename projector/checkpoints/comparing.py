"""A view of checkpoints held against a replay of its log, row by row.

A difference is named by thread, namespace and checkpoint, and told by numbers and sizes; what a
state says is never part of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from eventstore.checkpoint.events import DIGEST_BYTES, Where
from eventstore.keys import decode_labels
from projector.checkpoints import tables
from projector.checkpoints.beside import NewCheckpoints
from projector.checkpoints.frozen import FrozenCheckpoints, of_view
from projector.projections import quarantine
from projector.rocks import scan
from projector.tally import NOTHING, UNREADABLE, Difference, Tally, hold

_FAMILIES: Final = {
    "checkpoints": tables.CHECKPOINT,
    "writes": tables.WRITE,
    "ids": tables.ID,
    "runs": tables.RUN,
    "threads": tables.THREAD,
    "values": tables.VALUE,
    "nodes": tables.NODE,
    "parts": tables.PART,
    "fragments": tables.FRAGMENT,
    "writers": b"w",
}


def compare(expected: NewCheckpoints, found: FrozenCheckpoints) -> Tally:
    """Every family of a view against those of a replay to the same position."""
    tally = Tally()
    want, have = of_view(expected.view).rows, found.rows
    for family, prefix in _FAMILIES.items():
        hold(tally, family, scan(want, prefix), scan(have, prefix), _difference)
    at = quarantine.PREFIX
    hold(tally, "quarantined", scan(want, at), scan(have, at), _difference, quarantine.same)
    return tally


def _difference(family: str, key: bytes, want: bytes | None, have: bytes | None) -> Difference:
    expected, found = _text(family, key, want), _text(family, key, have)
    if expected == found:
        found = f"{found}, with other content"
    place: dict[str, Any] = {}
    with suppress(*UNREADABLE):
        place = _place(family, key, want if want is not None else have or b"")
    return Difference(family=family, expected=expected, found=found).model_copy(update=place)


def _place(family: str, key: bytes, data: bytes) -> dict[str, Any]:
    """Which checkpoint or event a row is about."""
    if family == "checkpoints":
        at = tables.where(key)
        row = tables.row(at, data)
        return {**_named(at), "position": "{}:{}".format(*row.event)}
    if family == "writes":
        return _named(tables.where_of_write(key))
    if family == "ids":
        return _named(tables.where_by_id(key))
    if family == "runs":
        return _named(Where(*decode_labels(key[len(tables.RUN) :])[1:]))
    if family == "threads":
        return {"namespace": [tables.thread_row(key, data).thread]}
    if family == "quarantined":
        return {"position": "{}:{}".format(*quarantine.place(key))}
    if family == "writers":
        return {"position": f"{int.from_bytes(key[-2:], 'big')}:"}
    if family == "fragments":
        return {"namespace": [tables.thread_of_fragment(key)]}
    return {"namespace": [next(_texts(key))]}


def _named(at: Where) -> dict[str, Any]:
    return {"namespace": [at.thread, at.namespace] if at.namespace else [at.thread], "key": at.id}


def _texts(key: bytes) -> Iterator[str]:
    """The thread of a row whose key ends with a digest."""
    yield from decode_labels(key[1:-DIGEST_BYTES])


def _text(family: str, key: bytes, data: bytes | None) -> str:
    """What a row says, the state aside."""
    if data is None:
        return NOTHING
    with suppress(*UNREADABLE):
        if family == "checkpoints":
            row = tables.row(tables.where(key), data)
            return f"{'a hidden' if row.hidden else 'a'} checkpoint of {len(row.values)} channels"
        if family == "writes":
            write = tables.write_row(key, data)
            return f"write {write.number} of task {write.task} to {write.channel}"
        if family == "threads":
            return f"{tables.thread_row(key, data).checkpoints} checkpoints"
        return f"a row of {len(data)} bytes"
    return f"a row of {len(data)} bytes, which cannot be read"
