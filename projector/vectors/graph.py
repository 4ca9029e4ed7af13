"""The approximate path: one HNSW graph over one segment, for wide searches only.

A graph proposes rows; it never scores them. When what it proposes could hide a tie or is
too little after dead rows are taken out, it says so and the caller scans the segment.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from projector.vectors import files
from projector.vectors.files import FileRecord, UnusableFile
from projector.vectors.limits import Metric, Numbers
from projector.vectors.scoring import Query, Scorer, one_thread
from projector.vectors.segment import Segment

_faiss: Any = faiss  # its type stubs lack HNSW
_NEIGHBOURS = 16
_BUILD_EFFORT = 40
_LEAST_EFFORT = 96
_BUILD_ROWS = 1_024
_HALF_MAX = 60_000.0
_TIE = 1e-5


class Graph:
    """A built graph. Never added to, hence safe to search from many threads."""

    def __init__(self, index: faiss.Index, record: FileRecord) -> None:
        self.record = record
        self._index: Any = index

    @classmethod
    def open(cls, directory: Path, record: FileRecord) -> Graph:
        """Map a saved graph.

        Raises:
            UnusableFile: the file is missing, damaged or no graph.
        """
        files.open_verified(directory, record).close()
        try:
            index = faiss.read_index(str(directory / record.name), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise UnusableFile(record.name, "is not a graph that FAISS can read") from error
        return cls(index, record)

    def propose(
        self, segment: Segment, rows: slice, offset: int, query: Query, scorer: Scorer, k: int
    ) -> Numbers | None:
        """Visible rows of the range that hold its ``k`` best items, most likely; ``None``: scan instead."""
        one_thread()
        effort = max(_LEAST_EFFORT, 4 * k)
        for width in (effort, 4 * effort):
            parameters = _faiss.SearchParametersHNSW(efSearch=width)
            _, found = self._index.search(query.scan[None], width, params=parameters)
            near: Numbers = found[0]
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
        OSError: the file could not be written.
    """
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    index = _faiss.IndexHNSWSQ(segment.dims, faiss.ScalarQuantizer.QT_fp16, _NEIGHBOURS, kind)
    index.hnsw.efConstruction = _BUILD_EFFORT
    faiss.omp_set_num_threads(threads)
    for start in range(0, len(segment), _BUILD_ROWS):
        block = segment.vectors[start : start + _BUILD_ROWS]
        if metric == "cosine":
            block = (block / segment.norms[start : start + _BUILD_ROWS, None]).astype(np.float32)
        index.add(block)
        if pause():
            return None
    try:
        faiss.write_index(index, str(files.temporary_for(path)))
    except RuntimeError as error:
        raise OSError(f"the graph {path.name} could not be written; free some space") from error
    del index
    record = files.adopt(path)
    return Graph(faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC), record)
