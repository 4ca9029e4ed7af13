"""One digest for each family of a view: equal histories give equal digests, whatever log they came by.

What differs between logs (partitions, offsets, append times, writers' sessions) and between views
(the order in which partitions were applied) is left out. Vectors are taken with the history rows
that name them, so a wrong reference shows, and so does a row that nothing names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import xxhash

from eventstore import EventStore
from projector.frozen import Frozen, of_view, value
from projector.projections import history, items, models, quarantine, vectors
from projector.projections.vectors import key_of
from projector.rocks import scan
from projector.runtime import OpenRuntime, runtime_of
from projector.view import MaterializedView

_LENGTHS = struct.Struct(">IQ")
Pairs = Iterator[tuple[bytes, bytes]]


def digest(view: EventStore | OpenRuntime | MaterializedView | Frozen) -> dict[str, str]:
    """A 128-bit digest, in hex, of each family of a view."""
    if isinstance(view, Frozen):
        return {family: _digest(pairs) for family, pairs in _logical(view).items()}
    if isinstance(view, EventStore):
        view = runtime_of(view)
    if isinstance(view, OpenRuntime):
        view.catch_up()
        view = view.materialized
    with view.read():
        return digest(of_view(view))


def _digest(pairs: Pairs) -> str:
    made = xxhash.xxh3_128()
    for key, data in pairs:
        # Lengths, so that bytes cannot move from one to the other unnoticed.
        made.update(_LENGTHS.pack(len(key), len(data)))
        made.update(key)
        made.update(data)
    return made.hexdigest()


def _logical(found: Frozen) -> dict[str, Pairs]:
    families = found.families
    return {
        "items": ((key, items.fact(data)) for key, data in scan(families["items"], b"")),
        "recency": scan(families["recency"], b""),
        "namespaces": scan(families["namespaces"], b""),
        "history": _history(found),
        "vectors": _vectors(found),
        "graves": scan(families["default"], b"g"),
        "expiries": scan(families["default"], b"x"),
        "quarantined": _quarantined(found),
        "models": ((b"", data) for _, data in scan(families["default"], models.PREFIX)),
    }


def _quarantined(found: Frozen) -> Pairs:
    for key in sorted(row.key for row in quarantine.read(found.families["default"])):
        yield key, b""


def _history(found: Frozen) -> Pairs:
    for key, data in scan(found.families["history"], b""):
        row = history.stored(key, data)
        yield row.key, row.fact + (b"-" if row.vectors is None else b"v")


def _vectors(found: Frozen) -> Pairs:
    named = 0
    source = found.families["vectors"]
    for key, data in scan(found.families["history"], b""):
        row = history.stored(key, data)
        if row.vectors is not None:
            named += 1
            kept = value(source, key_of(row.vectors))
            yield row.key, b"" if kept is None else vectors.fact(kept)
    yield b"", str(sum(1 for _ in scan(source, b"")) - named).encode()
