"""What the vector index must answer, computed row by row from a plain dict."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from projector.vectors import Limits, Metric, State, VectorChange, VectorIndex

TINY = Limits(
    delta_rows=16, segment_rows=64, wide_rows=100, graph_rows=32, checkpoint_changes=64, build_threads=1
)

Live = dict[bytes, np.ndarray]


def score(metric: Metric, query: np.ndarray, row: np.ndarray) -> float:
    a, b = query.astype(np.float64), row.astype(np.float64)
    if metric == "l2":
        return float(0.0 - np.sqrt(np.add.reduce((b - a) * (b - a))))
    dot = float(np.add.reduce(a * b))
    if metric == "inner_product":
        return dot + 0.0
    lengths = float(np.sqrt(np.add.reduce(a * a)) * np.sqrt(np.add.reduce(b * b)))
    return min(1.0, max(-1.0, dot / lengths)) + 0.0 if lengths else 0.0


def ranking(
    metric: Metric,
    live: Live,
    query: np.ndarray,
    prefix: bytes = b"",
    k: int = 10,
    only: Collection[bytes] | None = None,
) -> list[tuple[float, bytes]]:
    inside = (key for key in live if key.startswith(prefix) and (only is None or key in only))
    scored = [(max(score(metric, query, row) for row in live[key]), key) for key in inside]
    return sorted(scored, key=lambda hit: (-hit[0], hit[1]))[: max(k, 0)]


class Fed:
    """An index, the log of changes it was given, and what it should hold."""

    def __init__(self, directory: Path, dims: int, metric: Metric = "cosine", **options: Any) -> None:
        self.directory = directory
        self.dims = dims
        self.metric = metric
        self.options = {"limits": TINY, "identity": "log-1", **options}
        self.log: list[VectorChange] = []
        self.live: Live = {}
        self.index = self._open()

    def _open(self) -> VectorIndex:
        return VectorIndex.open(self.directory, dims=self.dims, metric=self.metric, **self.options)

    def put(self, key: bytes, vectors: Any) -> None:
        rows = np.asarray(vectors, np.float32).reshape(-1, self.dims)
        change = VectorChange(len(self.log), key, rows if len(rows) else None)
        self.log.append(change)
        self.live.pop(key, None)
        if len(rows):
            self.live[key] = rows
        self.feed([change])

    def delete(self, key: bytes) -> None:
        self.put(key, [])

    def feed(self, changes: Iterable[VectorChange]) -> None:
        with self.index.lock:
            self.index.apply(list(changes))

    def state(self) -> State:
        with self.index.lock:
            return self.index.state()

    def reopen(self) -> int:
        """Close, open and feed what the saved state does not cover; returns what it covered."""
        self.index.close()
        self.index = self._open()
        covered = self.index.covered
        self.feed(self.log[covered + 1 :])
        return covered

    def expected(self, query: Any, prefix: bytes = b"", k: int = 10, **narrowed: Any) -> Any:
        return ranking(self.metric, self.live, np.asarray(query, np.float32), prefix, k, **narrowed)

    def ranked(self, query: Any, prefix: bytes = b"", k: int = 10, **narrowed: Any) -> Any:
        return self.state().rank(np.asarray(query, np.float32), prefix, k, **narrowed).hits


@contextmanager
def fed(directory: Path, dims: int, metric: Metric = "cosine", **options: Any) -> Any:
    made = Fed(directory, dims, metric, **options)
    try:
        yield made
    finally:
        made.index.close()


def clustered(rng: np.random.Generator, rows: int, dims: int, clusters: int) -> np.ndarray:
    """Rows like embeddings: many around each of some directions."""
    centres = rng.standard_normal((clusters, dims))
    noise = 0.6 * rng.standard_normal((rows, dims))
    return (centres[rng.integers(0, clusters, rows)] + noise).astype(np.float32)


def storm_change(offset: int) -> VectorChange:
    """The change at an offset, the same in every process."""
    rng = np.random.default_rng(offset)
    key = b"%d/%02d" % (rng.integers(3), rng.integers(60))
    return VectorChange(offset, key, rng.standard_normal((rng.integers(0, 3), 6)).astype(np.float32))
