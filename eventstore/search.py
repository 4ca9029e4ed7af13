"""Answers searches and listings from one moment of the view.

Three ways lead to a page of memories, and the numbers below decide between them: walking the
recency index, scanning a prefix in key order, and ranking by similarity. Whichever is taken,
the answer is the same: filter first, then order, then offset, then limit.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from eventstore.filters import Filter
from eventstore.keys import decode_namespace
from eventstore.operations import Namespaces, Search
from eventstore.turns import EVERY_STEPS, in_turns
from eventstore.values import decode_value
from eventstore.views import ReadView, Row, Vector

SCAN_ROWS: Final = 2_000
"""Prefixes with at most this many memories are scanned: cheaper than random reads."""
WALK_ROWS: Final = 4_096
"""How far the recency index is walked before a scan is cheaper (one random read costs some
ten sequential ones), unless the prefix holds more than 16 times as much."""
RANDOM_READ: Final = 10
"""Memories scanned in the time of one random read, when most are ruled out by their bytes."""
DECODED_READ: Final = 4
"""The same when each has to be decoded."""
FIRST_RANKED: Final = 64
RANKED_ROWS: Final = 1_024
"""How many ranked memories are tested against a filter before the filter goes first."""

Visible = Callable[[Row], bool]


class Hit(NamedTuple):
    """One memory of an answer, its value decoded."""

    row: Row
    value: dict[str, Any]
    score: float | None


def search(view: ReadView, step: Search, query: Vector | None, visible: Visible | None) -> list[Hit]:
    """The page a search asks for. ``visible`` hides memories that have expired, if given."""
    if step.limit == 0:
        return []
    if query is not None:
        return _ranked(view, step, query, visible)
    if step.filter is None and visible is None:
        page = itertools.islice(view.newest(step.prefix), step.offset, step.offset + step.limit)
        return [Hit(row, decode_value(row.data), None) for row in _rows(view, page)]
    return _newest_matching(view, step, visible)


def list_namespaces(view: ReadView, step: Namespaces, hidden: Mapping[bytes, int]) -> list[tuple[str, ...]]:
    """Namespaces that hold a memory, in label order.

    ``hidden`` counts, by encoded namespace, the memories that have expired and are not to be
    seen. Whole namespaces are matched, then cut to ``max_depth``, then counted once.
    """
    by_count = step.matches is None and not hidden
    # A prefix deeper than the cut has no namespaces of that depth to count by.
    if step.max_depth is not None and step.prefix.count(0) > step.max_depth:
        by_count = False
    skip = step.max_depth if by_count else None
    found = _namespaces(view, step, hidden, skip)
    return list(itertools.islice(found, step.offset, step.offset + step.limit))


def _namespaces(
    view: ReadView, step: Namespaces, hidden: Mapping[bytes, int], skip: int | None
) -> Iterator[tuple[str, ...]]:
    last: tuple[str, ...] | None = None
    for row in view.namespaces(step.prefix, skip):
        namespace = decode_namespace(row.prefix)
        if skip is not None and len(namespace) == skip:
            if row.subtree > 0:
                yield namespace
            continue
        if row.direct - hidden.get(row.prefix, 0) <= 0:
            continue
        if step.matches is not None and not step.matches(namespace):
            continue
        # Cutting keeps the order, so equal results stand next to each other.
        cut = namespace if step.max_depth is None else namespace[: step.max_depth]
        if cut != last:
            last = cut
            yield cut


def _rows(view: ReadView, keys: Iterator[bytes]) -> Iterator[Row]:
    for key in in_turns(keys, EVERY_STEPS):
        row = view.get(key)
        if row is not None:
            yield row


def _needles(step: Search) -> Sequence[bytes]:
    """Byte strings in the JSON of every memory that can pass."""
    return () if step.filter is None else step.filter.precheck


def _accept(row: Row, wanted: Filter | None, visible: Visible | None) -> dict[str, Any] | None:
    """The decoded value of a memory that belongs in the answer."""
    if visible is not None and not visible(row):
        return None
    if wanted is None:
        return decode_value(row.data)
    data = row.data
    for needle in wanted.precheck:
        if needle not in data:
            return None
    value = decode_value(data)
    return value if wanted.matches(value) else None


def _newest_matching(view: ReadView, step: Search, visible: Visible | None) -> list[Hit]:
    wanted = step.offset + step.limit
    count = view.count(step.prefix)
    if step.filter is not None and count <= SCAN_ROWS:
        return _scanned(view, step, visible, count)
    bound = max(WALK_ROWS, count // 16)
    hits: list[Hit] = []
    for seen, row in enumerate(_rows(view, view.newest(step.prefix)), 1):
        value = _accept(row, step.filter, visible)
        if value is not None:
            hits.append(Hit(row, value, None))
            if len(hits) == wanted:
                break
        elif seen % 256 == 0 and seen * wanted > bound * max(len(hits), 1):
            return _scanned(view, step, visible, count)
    return hits[step.offset :]


def _scanned(view: ReadView, step: Search, visible: Visible | None, count: int) -> list[Hit]:
    accepted = (
        Hit(row, value, None)
        for row in view.scan(step.prefix, holding=_needles(step), expected=count)
        if (value := _accept(row, step.filter, visible)) is not None
    )
    first = heapq.nsmallest(
        min(step.offset + step.limit, count),
        accepted,
        key=lambda hit: (-hit.row.updated_us, hit.row.key),
    )
    return first[step.offset :]


def _ranked(view: ReadView, step: Search, query: Vector, visible: Visible | None) -> list[Hit]:
    plain = step.filter is None and visible is None
    if plain and not step.offset:
        return _hits(view, view.rank(query, step.prefix, step.limit).hits[: step.limit])
    total = view.rows_to_rank(step.prefix)
    wanted = min(step.offset + step.limit, total)
    if wanted <= step.offset:
        return []
    if plain:
        return _hits(view, view.rank(query, step.prefix, wanted).hits[step.offset : wanted])
    count = view.count(step.prefix)
    scanned_per_tested = RANDOM_READ if step.filter is not None and step.filter.precheck else DECODED_READ
    hits: list[Hit] = []
    tested = 0
    k = max(FIRST_RANKED, 4 * wanted)
    while True:
        # Exactly, however wide: what an approximate ranking leaves out could be all that passes.
        ranking = view.rank(query, step.prefix, min(k, total), exact=True)
        for score, key in in_turns(ranking.hits[tested:], EVERY_STEPS):
            row = view.get(key)
            value = None if row is None else _accept(row, step.filter, visible)
            if row is not None and value is not None:
                hits.append(Hit(row, value, score))
                if len(hits) == wanted:
                    return hits[step.offset :]
        tested = len(ranking.hits)
        if ranking.complete:
            return hits[step.offset :]
        k *= 4
        to_test = tested * wanted // max(len(hits), 1)
        if to_test * scanned_per_tested > count or k > max(RANKED_ROWS, total // 8):
            return _ranked_among(view, step, query, visible, wanted, count)


def _ranked_among(
    view: ReadView, step: Search, query: Vector, visible: Visible | None, wanted: int, count: int
) -> list[Hit]:
    """The filter first: few memories pass it, so ranking those alone costs least."""
    rows = view.scan(step.prefix, holding=_needles(step), expected=count)
    passing = {row.key for row in rows if _accept(row, step.filter, visible) is not None}
    ranking = view.rank(query, step.prefix, min(wanted, max(len(passing), 1)), passing)
    return _hits(view, ranking.hits[step.offset : wanted])


def _hits(view: ReadView, ranked: list[tuple[float, bytes]]) -> list[Hit]:
    hits = []
    for score, key in in_turns(ranked, EVERY_STEPS):
        row = view.get(key)
        if row is not None:
            hits.append(Hit(row, decode_value(row.data), score))
    return hits
