"""Sealing and merging: the rows of several parts, in key order, in one new segment file.

Reads parts that are being searched and whose rows may die meanwhile; it changes none of
them. Work is cut into pieces of a few hundred rows, between which searches keep getting the GIL.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from projector.vectors import files
from projector.vectors.limits import ALIVE, Numbers, Offsets
from projector.vectors.part import Part
from projector.vectors.segment import Block, Segment, Writer

_PIECE = 512


class Merged:
    """A segment made of parts, and where each of its rows came from."""

    def __init__(self, segment: Segment, origins: list[tuple[Part, Numbers, Numbers]]) -> None:
        self.segment = segment
        self._origins = origins

    def bury(self) -> None:
        """Take over all deaths that the parts know of now. The lock is held, until the swap is done."""
        died: Offsets = np.full(len(self.segment), ALIVE, np.uint64)
        for part, places, rows in self._origins:
            died[places] = part.died[rows]
        self.segment.bury(died)


def merge(parts: Sequence[Part], horizon: int, dims: int, path: Path) -> Merged | None:
    """Write the rows of the parts that live beyond the horizon; ``None`` if there are none.

    ``horizon`` is the offset that the saved state will cover: rows that died later must stay
    for it to be complete.

    Raises:
        OSError: the file could not be written.
    """
    runs = [_Run(part, horizon) for part in parts]
    rows = sum(len(run.rows) for run in runs)
    if not rows:
        return None
    writer = Writer(rows, dims)
    record = files.write(path, writer.encode(_pieces(runs)))
    segment = Segment(files.open_verified(path.parent, record), record, writer.items)
    return Merged(segment, [run.origin() for run in runs])


class _Run:
    """The kept rows of one part in key order, and how far they have been merged."""

    def __init__(self, part: Part, horizon: int) -> None:
        ordered = part.sorted_rows()
        self.part = part
        self.rows: Numbers = ordered[part.died[ordered] > horizon]
        self.done = 0
        self.places: list[Numbers] = []

    def key_at(self, distance: int) -> bytes | None:
        """The key so many rows ahead, unless the run ends before."""
        at = self.done + distance
        return self.part.key(int(self.rows[at])) if at < len(self.rows) else None

    def take(self, bound: bytes | None) -> Numbers:
        """The next rows whose keys are not above the bound."""
        start = self.done
        self.done = len(self.rows)
        if bound is not None:
            self.done = bisect_right(self.rows, bound, start, key=self.part.key)
        return self.rows[start : self.done]

    def origin(self) -> tuple[Part, Numbers, Numbers]:
        """The part, the places of its rows in the merged segment, and these rows."""
        return self.part, np.concatenate([np.empty(0, np.int64), *self.places]), self.rows


def _pieces(runs: list[_Run]) -> Iterator[Block]:
    size = max(32, _PIECE // len(runs))
    written = 0
    while any(run.done < len(run.rows) for run in runs):
        bound = min((key for run in runs if (key := run.key_at(size)) is not None), default=None)
        keys: list[bytes] = []
        vectors, norms, takes = [], [], []
        for run in runs:
            rows = run.take(bound)
            keys += map(run.part.key, rows.tolist())
            vectors.append(run.part.vectors[rows])
            norms.append(run.part.norms[rows])
            takes.append(len(rows))
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), np.int64)
        places = np.empty_like(order)
        places[order] = np.arange(written, written + len(order))
        for run, part_places in zip(runs, np.split(places, np.cumsum(takes)[:-1]), strict=True):
            run.places.append(part_places)
        yield sorted(keys), np.concatenate(vectors)[order], np.concatenate(norms)[order]
        written += len(order)


def to_merge(segments: Sequence[Segment], limit: int, dead_share: float, horizon: int) -> list[Segment]:
    """The segments to make into one now: some of similar size, or one with many rows that can be dropped."""
    ranked = sorted(segments, key=len)
    chosen: list[Segment] = []
    total = 0
    for segment in ranked:
        if chosen and (len(segment) > 2 * total or total + len(segment) > limit):
            break
        chosen.append(segment)
        total += len(segment)
    if len(chosen) > 1:
        return chosen
    return [segment for segment in ranked if segment.dead_by(horizon) > dead_share * len(segment)][:1]
