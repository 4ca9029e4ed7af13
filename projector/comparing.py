"""Two views of one log, held against each other row by row; and the FAISS index against its vectors.

A difference is described by family, memory and place, by versions, times and sizes; what a memory
says is never part of it. Sequences of vectors are the views' own, so those rows are matched by
where their events stand in the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final

import xxhash

from eventstore.history import moment
from eventstore.keys import decode_item, decode_namespace
from eventstore.views import Vector
from projector.frozen import Frozen, Source, value
from projector.projections import history, items, models, namespaces, quarantine, recency, vectors
from projector.projections.vectors import key_of
from projector.rocks import scan
from projector.tally import NOTHING, UNREADABLE, Difference, Pairs, Same, Tally, hold, merge

_STAMP: Final = 8


def compare(expected: Frozen, found: Frozen) -> Tally:
    """Every family of a view against those of a replay to the same position."""
    tally = Tally()
    default, other = expected.families["default"], found.families["default"]
    _rows(tally, "items", _all(expected, "items"), _all(found, "items"))
    _rows(tally, "recency", _all(expected, "recency"), _all(found, "recency"))
    _rows(tally, "namespaces", _all(expected, "namespaces"), _all(found, "namespaces"))
    _rows(tally, "history", _all(expected, "history"), _all(found, "history"), _same_history(found))
    _rows(tally, "graves", scan(default, b"g"), scan(other, b"g"))
    _rows(tally, "expiries", scan(default, b"x"), scan(other, b"x"))
    _rows(tally, "models", scan(default, models.PREFIX), scan(other, models.PREFIX))
    _rows(
        tally,
        "quarantined",
        scan(default, quarantine.PREFIX),
        scan(other, quarantine.PREFIX),
        quarantine.same,
    )
    _rows(tally, "writers", scan(default, b"w"), scan(other, b"w"))
    _vectors(tally, expected.families["vectors"], found.families["vectors"])
    return tally


def compare_index(tally: Tally, found: Frozen) -> None:
    """The FAISS index of a view against its rows of vectors, up to where the index stands."""
    state, index = found.vectors, found.ranked
    if state is None or index is None:
        return
    source = found.families["vectors"]
    latest: dict[int, int] = {}
    for sequence, row in _readable(source):
        if sequence > state.offset:
            break
        digest = xxhash.xxh3_64_intdigest(row.key)
        if not row.counts_for(index):
            continue
        if len(row.vectors) and row.fits(index):
            latest[digest] = sequence
        else:
            latest.pop(digest, None)
    tally.seen("index", len(latest))
    for key, group in groupby(state.rows(), itemgetter(0)):
        have = sorted(vector.tobytes() for _, vector in group)
        at = latest.pop(xxhash.xxh3_64_intdigest(key), None)
        want = [] if at is None else sorted(vector.tobytes() for vector in _at(source, at))
        if have != want:
            told = _same_text(f"{len(want)} vectors", f"{len(have)} vectors")
            tally.differs("index", partial(_of_memory, "index", key, *told))
    for at in latest.values():
        tally.differs("index", partial(_missing_vectors, source, at, len(_at(source, at))))


def _rows(tally: Tally, family: str, expected: Pairs, found: Pairs, same: Same | None = None) -> None:
    hold(tally, family, expected, found, _difference, same)


def _same_history(found: Frozen) -> Same:
    source = found.families["vectors"]

    def same(want: bytes, have: bytes) -> bool:
        try:
            ours, theirs = history.stored(b"\x00" * 9, want), history.stored(b"\x00" * 9, have)
        except UNREADABLE:
            return False
        if ours._replace(vectors=None) != theirs._replace(vectors=None):
            return False
        if ours.vectors is None or theirs.vectors is None:
            return ours.vectors is theirs.vectors
        kept = value(source, key_of(theirs.vectors))
        return kept is not None and vectors.place(kept) == (theirs.partition, theirs.offset)

    return same


def _vectors(tally: Tally, expected: Source, found: Source) -> None:
    # With one partition the sequences are alike, and nothing has to be sorted.
    if all(want == have for _, want, have in merge(scan(expected, b""), scan(found, b""))):
        tally.seen("vectors", sum(1 for _ in scan(expected, b"")))
        return
    _rows(tally, "vectors", _by_place(expected), _by_place(found))


def _by_place(source: Source) -> Pairs:
    placed = sorted((*vectors.place(data), key) for key, data in scan(source, b""))
    for partition, offset, key in placed:
        data = value(source, key)
        if data is not None:
            yield partition.to_bytes(2, "big") + offset.to_bytes(_STAMP, "big"), data


def _all(found: Frozen, family: str) -> Pairs:
    return scan(found.families[family], b"")


def _readable(source: Source) -> Iterator[tuple[int, vectors.VectorRow]]:
    """Sequences and rows of vectors; what no fold wrote was found before and is passed over."""
    for key, data in scan(source, b""):
        try:
            yield vectors.row(key, data)
        except UNREADABLE:
            continue


def _at(source: Source, sequence: int) -> Vector:
    return next(vectors.read(source, sequence))[1].vectors


def _missing_vectors(source: Source, sequence: int, count: int) -> Difference:
    row = next(vectors.read(source, sequence))[1]
    told = _of_memory("index", row.key, f"{count} vectors", NOTHING)
    return told.model_copy(update={"position": f"{row.partition}:{row.offset}"})


# ---------------------------------------------------------------------- describing


def _difference(family: str, key: bytes, want: bytes | None, have: bytes | None) -> Difference:
    try:
        expected, found = _same_text(_text(family, want), _text(family, have))
        made = _place(family, key, want if want is not None else have or b"")
    except UNREADABLE:
        return Difference(family=family, expected=_size(want), found=f"{_size(have)}, which cannot be read")
    return Difference(family=family, expected=expected, found=found).model_copy(update=made)


def _same_text(expected: str, found: str) -> tuple[str, str]:
    return (expected, found) if expected != found else (expected, f"{found}, with other content")


def _of_memory(family: str, key: bytes, expected: str, found: str) -> Difference:
    return Difference(family=family, expected=expected, found=found).model_copy(update=_memory(key))


def _memory(key: bytes) -> dict[str, object]:
    namespace, name = decode_item(key)
    return {"namespace": list(namespace), "key": name}


def _place(family: str, key: bytes, data: bytes) -> dict[str, object]:
    """Which memory or event a row is about."""
    if family == "items":
        return {**_memory(key), "position": "{}:{}".format(*items.place(data))}
    if family == "namespaces":
        return {"namespace": list(decode_namespace(key))}
    if family == "recency":
        return _memory(recency.memory(key))
    if family == "history":
        row = history.stored(key, data)
        return {**_memory(row.key), "position": f"{row.partition}:{row.offset}"}
    if family == "vectors":
        at = vectors.row(key.rjust(_STAMP, b"\x00")[-_STAMP:], data)[1]
        return {**_memory(at.key), "position": f"{at.partition}:{at.offset}"}
    if family == "graves":
        return _memory(key[1:])
    if family == "expiries":
        return _memory(key[1 + _STAMP :])
    if family == "quarantined":
        return {"position": "{}:{}".format(*quarantine.place(key))}
    if family == "models":
        return {"position": f"0:{int.from_bytes(key[-_STAMP:], 'big')}"}
    return {"position": f"{int.from_bytes(key[-2:], 'big')}:"} if family == "writers" else {}


def _text(family: str, data: bytes | None) -> str:
    """What a row says, its memory's content aside."""
    if data is None:
        return NOTHING
    if family == "items":
        row = items.row(b"", data)
        expiry = f", expires {moment(row.expires_us).isoformat()}" if row.expires_us else ""
        when = moment(row.updated_us).isoformat()
        return f"version {row.version}, updated {when}{expiry}, {len(row.data)} bytes"
    if family == "namespaces":
        return "{} memories, {} with those below".format(*namespaces.counts(data))
    if family == "history":
        return f"an event of {len(data)} bytes"
    return _size(data)


def _size(data: bytes | None) -> str:
    return NOTHING if data is None else f"a row of {len(data)} bytes"
