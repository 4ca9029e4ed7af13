"""What becomes of whole threads: which checkpoints a prune keeps, and what a copy consists of.

Here decisions are made, from the rows that are there; the fold carries them out as they were made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from eventstore.checkpoint.events import Drop, Where
from eventstore.checkpoint.views import Row

Metadata = Callable[[Row], Any]
"""Gives a checkpoint's metadata."""


class Kept(NamedTuple):
    """How a thread is thinned out."""

    newest: int | None = None
    """So many of each namespace stay; ``None``: no limit."""
    since_us: int = 0
    """Older ones go, but for the newest of each namespace; by append time, µs since the epoch."""


def thinned(thread: str, rows: Sequence[Row], kept: Kept, metadata: Metadata) -> Drop | None:
    """What goes so that ``kept`` holds; the newest checkpoint of a namespace always stays."""
    going: set[Where] = set()
    places: dict[str, list[Row]] = {}
    for row in rows:
        if not row.hidden:
            places.setdefault(row.at.namespace, []).append(row)
    for found in places.values():
        found.sort(key=lambda row: row.at.id, reverse=True)
        for number, row in enumerate(found):
            too_many = kept.newest is not None and number >= kept.newest
            if number and (too_many or row.appended_us < kept.since_us):
                going.add(row.at)
    return without(thread, rows, going, metadata)


def without(thread: str, rows: Sequence[Row], going: Collection[Where], metadata: Metadata) -> Drop | None:
    """The removal of some checkpoints, and of those that were hidden for them alone.

    Delta channels are rebuilt from the writes of ancestors, so an ancestor that a staying checkpoint
    needs is hidden and keeps its writes.
    """
    by_place = {row.at: row for row in rows}
    needed: set[Where] = set()
    for row in rows:
        if not row.hidden and row.at not in going:
            _note_ancestors(row, by_place, metadata(row), needed)
    hidden = {at for at in going if at in needed}
    dropped = {at for at in going if at in by_place and at not in needed}
    dropped |= {row.at for row in rows if row.hidden and row.at not in needed}
    if not hidden and not dropped:
        return None
    known = max(row.event[1] for row in rows)
    return Drop(Where(thread), _named(dropped), _named(hidden), known)


def _note_ancestors(row: Row, by_place: dict[Where, Row], metadata: Any, needed: set[Where]) -> None:
    """The ancestors whose writes make up a checkpoint's delta channels, up to stored values."""
    counters = metadata.get("counters_since_delta_snapshot") if isinstance(metadata, dict) else None
    missing = {channel for channel in counters or () if channel not in row.values}
    seen = {row.at}
    while missing and row.parent is not None:
        ancestor = by_place.get(row.at._replace(id=row.parent))
        if ancestor is None or ancestor.at in seen:
            return
        seen.add(ancestor.at)
        needed.add(ancestor.at)
        missing -= set(ancestor.values)
        row = ancestor


def _named(places: Iterable[Where]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((at.namespace, at.id) for at in places))
