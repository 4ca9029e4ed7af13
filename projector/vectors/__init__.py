"""The FAISS shape of the vectors: opaque item keys ranked by similarity, exactly, under a byte prefix."""

from __future__ import annotations

from projector.vectors.index import VectorIndex
from projector.vectors.limits import Limits, Metric, VectorChange, VectorStats
from projector.vectors.ranking import Ranking
from projector.vectors.state import State

__all__ = ["Limits", "Metric", "Ranking", "State", "VectorChange", "VectorIndex", "VectorStats"]
