"""The approximate path: one HNSW graph over one segment, for wide searches only.

A node of the graph stands for all rows of one vector: equal rows inside an HNSW graph hide
one another. A graph proposes rows; it never scores them. When what it proposes could hide a
tie, or is too little once dead rows are taken out, it says so and the caller scans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np
from numpy.typing import NDArray

from projector.vectors import files
from projector.vectors.files import FileRecord, UnusableFile
from projector.vectors.limits import Floats32, Metric, Numbers, Offsets
from projector.vectors.scoring import Query, Scorer, one_thread
from projector.vectors.segment import Segment

_faiss: Any = faiss  # its type stubs lack HNSW
_NEIGHBOURS = 32
_BUILD_EFFORT = 100
_LEAST_EFFORT = 128
_BUILD_ROWS = 1_024
_HALF_MAX = 60_000.0
_TIE = 1e-5


class Nodes(NamedTuple):
    """Which rows the nodes stand for: those of node ``n`` are ``rows[starts[n]:starts[n + 1]]``."""

    starts: NDArray[np.uint32]
    rows: NDArray[np.uint32]

    def expand(self, nodes: Numbers) -> Numbers:
        """All rows of the nodes."""
        first = self.starts[nodes].astype(np.int64)
        counts = self.starts[nodes + 1].astype(np.int64) - first
        ends = np.cumsum(counts)
        inside = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
        rows: Numbers = self.rows[np.repeat(first, counts) + inside].astype(np.int64)
        return rows


class Graph:
    """A built graph. Never added to, hence safe to search from many threads."""

    def __init__(self, index: faiss.Index, nodes: Nodes, records: tuple[FileRecord, FileRecord]) -> None:
        self.records = records
        """The files of the graph and of its nodes."""
        self._index: Any = index
        self._nodes = nodes

    @classmethod
    def open(cls, directory: Path, records: tuple[FileRecord, FileRecord], rows: int) -> Graph:
        """Map the saved graph of a segment with so many rows.

        Raises:
            UnusableFile: a file is missing, damaged or does not belong to the segment.
        """
        graph, nodes = records
        files.open_verified(directory, graph).close()
        numbers = np.frombuffer(files.open_verified(directory, nodes), np.uint32)
        try:
            index = faiss.read_index(str(directory / graph.name), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise UnusableFile(graph.name, "is not a graph that FAISS can read") from error
        if len(numbers) != index.ntotal + 1 + rows:
            raise UnusableFile(nodes.name, "belongs to another graph or segment")
        return cls(index, Nodes(numbers[:-rows], numbers[-rows:]), records)

    def propose(
        self, segment: Segment, rows: slice, offset: int, query: Query, scorer: Scorer, k: int
    ) -> Numbers | None:
        """Visible rows of the range that hold its ``k`` best items, most likely; ``None``: scan instead."""
        one_thread()
        effort = max(_LEAST_EFFORT, 4 * k)
        for width in (effort, 4 * effort):
            parameters = _faiss.SearchParametersHNSW(efSearch=width)
            _, found = self._index.search(query.scan[None], width, params=parameters)
            near: Numbers = self._nodes.expand(found[0][found[0] >= 0])
            near = near[(near >= rows.start) & (near < rows.stop)]
            near = near[segment.visible(near, offset)]
            if _enough(segment, near, query, scorer, k):
                return near
        return None


def _enough(segment: Segment, near: Numbers, query: Query, scorer: Scorer, k: int) -> bool:
    """Whether k items are there, and the last row is clearly worse than the k-th item."""
    if len(near) <= k:
        return False
    bounds = scorer.bounds(query, segment.vectors, segment.norms, near)
    order = np.argsort(-bounds)
    kth = k - 1
    if not segment.single:
        firsts: dict[bytes, int] = {}
        for place, row in enumerate(near[order].tolist()):
            firsts.setdefault(segment.key(row), place)
        if len(firsts) < k:
            return False
        kth = list(firsts.values())[k - 1]
    best, last = bounds[order[kth]], bounds[order[-1]]
    return bool(best - last > _TIE * (1.0 if scorer.metric == "cosine" else abs(last)))


def suits(segment: Segment, metric: Metric) -> bool:
    """Whether half-precision graph storage can hold these vectors."""
    if metric == "inner_product" or not segment.tame:
        return False
    return metric == "cosine" or bool(segment.norms[np.isfinite(segment.norms)].max(initial=0.0) < _HALF_MAX)


def build(
    segment: Segment, metric: Metric, path: Path, threads: int, pause: Callable[[], bool]
) -> Graph | None:
    """Build and save the graph of a segment; ``pause`` is called every so often and may cancel by true.

    Raises:
        OSError: a file could not be written.
    """
    nodes = _nodes_of(segment, metric)
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    index = _faiss.IndexHNSWSQ(segment.dims, faiss.ScalarQuantizer.QT_fp16, _NEIGHBOURS, kind)
    index.hnsw.efConstruction = _BUILD_EFFORT
    faiss.omp_set_num_threads(threads)
    for block in _blocks(segment, metric, nodes.rows[nodes.starts[:-1]]):
        index.add(block)
        if pause():
            return None
    try:
        faiss.write_index(index, str(files.temporary_for(path)))
    except RuntimeError as error:
        files.temporary_for(path).unlink(missing_ok=True)
        raise OSError(f"the graph {path.name} could not be written; free some space") from error
    del index
    beside = path.with_name(path.name.replace("graph", "nodes"))
    records = files.adopt(path), files.write(beside, [nodes.starts.tobytes(), nodes.rows.tobytes()])
    return Graph(faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC), nodes, records)


def _blocks(segment: Segment, metric: Metric, rows: NDArray[np.uint32]) -> Iterator[Floats32]:
    for start in range(0, len(rows), _BUILD_ROWS):
        some = rows[start : start + _BUILD_ROWS]
        block = segment.vectors[some]
        yield (block / segment.norms[some, None]).astype(np.float32) if metric == "cosine" else block


def _nodes_of(segment: Segment, metric: Metric) -> Nodes:
    """Group the rows that are the same in half precision, by a hash that is linear in their bits."""
    factors: Offsets = np.random.default_rng(segment.dims).integers(0, 1 << 64, segment.dims, np.uint64)
    every = np.arange(len(segment), dtype=np.uint32)
    digests = [
        (block.astype(np.float16).view(np.uint16) * factors).sum(axis=1)
        for block in _blocks(segment, metric, every)
    ]
    _, firsts, groups = np.unique(np.concatenate(digests), return_index=True, return_inverse=True)
    # Nodes in row order, so that building reads the segment from front to back.
    numbers = np.argsort(np.argsort(firsts))[groups]
    starts = np.concatenate([[0], np.cumsum(np.bincount(numbers))])
    return Nodes(starts.astype(np.uint32), np.argsort(numbers, kind="stable").astype(np.uint32))
