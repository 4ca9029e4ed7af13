"""The settings and the small records that go in and out of the vector index.

Thresholds are measured defaults; tests use tiny ones so that sealing, merging and graphs
all happen within a few dozen rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Metric = Literal["cosine", "l2", "inner_product"]

Floats32 = NDArray[np.float32]
Floats64 = NDArray[np.float64]
Offsets = NDArray[np.uint64]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

ALIVE = (1 << 64) - 1
"""The ``died`` offset of a row that has not died."""


@dataclass(frozen=True)
class Limits:
    """When the index seals, merges, builds graphs and saves. Rows unless said otherwise."""

    delta_rows: int = 8_192
    """The mutable part is sealed when it holds this many."""
    segment_rows: int = 131_072
    """Merging never makes a segment larger than this."""
    wide_rows: int = 50_000
    """A search over more rows than this may use graphs; below it every search is exact."""
    graph_rows: int = 16_384
    """Smaller segments get no graph: scanning them takes no longer."""
    dead_share: float = 0.25
    """A segment with a larger share of dead rows is rewritten."""
    checkpoint_changes: int = 100_000
    """Changes after which the state is saved even if the mutable part is not full."""
    build_threads: int = 2
    """OpenMP threads of the background thread while it builds a graph; searches use one each."""


class VectorChange(NamedTuple):
    """All vectors of one item from ``offset`` on; ``None`` or no rows: the item has none."""

    offset: int
    key: bytes
    vectors: Floats32 | None


class VectorStats(NamedTuple):
    """What the index holds, for status output."""

    rows: int
    live: int
    segments: int
    graphs: int
    delta_rows: int
    """Rows not yet in a file, including those being sealed."""
    bytes: int
    """Vectors, keys and graphs, in files and in memory."""
    applied: int
    covered: int
