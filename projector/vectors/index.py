"""The vector index: takes changes in offset order, gives states to search, saves itself.

One thread applies changes, any number take states. Both hold the index's lock for it, and
only for it: states are searched without. Sealing, merging, graphs and saving happen in one
background thread. What is saved can be thrown away at any time; ``covered`` says from
where the caller has to feed changes again.

Thread budget: a search uses the calling thread alone. The background thread adds
``Limits.build_threads - 1`` OpenMP threads, which work only while a graph is built.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eventstore.errors import InvalidEmbedding, StoreClosed, ViewError
from projector.vectors import files, manifest
from projector.vectors.delta import Delta
from projector.vectors.files import UnusableFile
from projector.vectors.limits import Floats32, Floats64, Limits, Metric, VectorChange, VectorStats
from projector.vectors.manifest import Owner, Saved
from projector.vectors.part import Part
from projector.vectors.scoring import Scorer, norms_of
from projector.vectors.segment import Segment, digest_of
from projector.vectors.state import State
from projector.vectors.upkeep import Upkeep

_log = logging.getLogger("projector.vectors")


class VectorIndex:
    """Vectors of items, by item key. Made by :meth:`open`."""

    def __init__(
        self,
        upkeep: Upkeep,
        owner: Owner,
        limits: Limits,
        lock: AbstractContextManager[object],
        *,
        exact: bool,
    ) -> None:
        self.lock = lock
        self._upkeep = upkeep
        self._limits = limits
        self._exact = exact
        self._dims = owner.dims
        self._scorer = Scorer(owner.metric, owner.dims)
        self._applied = upkeep.covered
        self._delta = self._new_delta(0)
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        identity: str,
        dims: int,
        metric: Metric,
        edition: str = "",
        exact: bool = False,
        limits: Limits | None = None,
        lock: AbstractContextManager[object] | None = None,
        position: int | None = None,
    ) -> VectorIndex:
        """Open the saved state, or start empty (``covered`` is -1) with one warning if it cannot be used.

        ``identity`` names the log and the model the vectors belong to, ``edition`` which of them.
        ``position`` is the offset up to which the caller itself holds changes; saved state beyond it
        is not used. No other process may have the directory open.

        Raises:
            OSError: the directory cannot be made or written.
        """
        limits = limits or Limits()
        lock = lock or threading.Lock()
        owner = Owner(identity, dims, metric, edition)
        directory.mkdir(parents=True, exist_ok=True)
        saved = _load(directory, owner, position) or Saved(-1, 0, [], set())
        upkeep = Upkeep(directory, owner, saved, limits, lock, graphs=not exact and metric != "inner_product")
        upkeep.start()
        return cls(upkeep, owner, limits, lock, exact=exact)

    @property
    def covered(self) -> int:
        """Every change up to this offset is held by the saved state; -1: none."""
        return self._upkeep.covered

    @property
    def applied(self) -> int:
        """Every change up to this offset is seen by a new state."""
        return self._applied

    def apply(self, changes: Sequence[VectorChange], *, through: int | None = None) -> None:
        """Apply changes in offset order; those at or below :attr:`applied` do nothing.

        The caller holds the lock and is the only one to apply. Each change replaces all vectors of
        its item. ``through`` says that nothing else up to this offset concerns vectors.

        Raises:
            InvalidEmbedding: a vector of another size or with non-finite numbers; nothing was applied.
            ValueError: offsets decrease; nothing was applied.
            StoreClosed: the index was closed.
        """
        self._check_open()
        fresh = [change for change in changes if change.offset > self._applied]
        if any(later.offset < earlier.offset for earlier, later in pairwise(fresh)):
            raise ValueError("vector changes must be applied in offset order")
        for offset, group in groupby(_prepare(fresh, self._dims), attrgetter("offset")):
            self._apply_one_offset(offset, list(group))
        if through is not None and through > self._applied:
            self._applied = through

    def state(self) -> State:
        """The index as it is now, to be searched without the lock. The caller holds the lock."""
        return State(self._applied, self._parts(), self._scorer, self._limits.wide_rows, exact=self._exact)

    def checkpoint(self, timeout: float | None = 60.0) -> int:
        """Save everything applied so far and return :attr:`covered`. The caller does not hold the lock.

        Raises:
            ViewError: it could not be saved, or not within ``timeout`` seconds; it stays in memory.
            StoreClosed: the index was closed.
        """
        self._check_open()
        with self.lock:
            wanted = self._applied
            if wanted > self._upkeep.accepted:
                self._freeze()
        failure = self._upkeep.wait(wanted, timeout)
        if self.covered < wanted:
            raise ViewError(
                "the vectors could not be saved; the log and the answers are not affected. "
                f"Reason: {failure or 'it takes longer than allowed'}. Free some space or wait, then retry."
            ) from failure
        return self.covered

    def settle(self, timeout: float | None = None) -> bool:
        """Wait until the background thread has nothing to do, without the lock; whether it came to that."""
        return self._upkeep.settle(timeout)

    def stats(self) -> VectorStats:
        """What the index holds."""
        with self.lock:
            segments, deltas = self._upkeep.segments, (*self._upkeep.frozen, self._delta)
            parts: Iterable[Segment | Delta] = (*segments, *deltas)
            graphs = [segment.graph for segment in segments if segment.graph is not None]
            buffered = sum(map(len, deltas))
            return VectorStats(
                rows=sum(map(len, parts)),
                live=sum(len(part) - part.dead for part in parts),
                segments=len(segments),
                graphs=len(graphs),
                delta_rows=buffered,
                bytes=buffered * self._dims * 4
                + sum(segment.record.size for segment in segments)
                + sum(record.size for graph in graphs for record in graph.records),
                applied=self._applied,
                covered=self.covered,
            )

    def close(self, timeout: float = 5.0) -> None:
        """Stop the background thread, waiting ``timeout`` s at most. Saves nothing; states stay usable."""
        self._closed = True
        self._upkeep.stop(timeout)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the vector index was closed; open the store again")

    def _parts(self) -> tuple[Part, ...]:
        return (*self._upkeep.segments, *self._upkeep.frozen, self._delta)

    def _new_delta(self, rows: int) -> Delta:
        return Delta(self._dims, max(rows, self._limits.delta_rows), self.lock)

    def _freeze(self, rows: int = 0) -> None:
        self._delta.through = self._applied
        self._upkeep.freeze(self._delta)
        self._delta = self._new_delta(rows)

    def _apply_one_offset(self, offset: int, group: list[_Prepared]) -> None:
        # All rows of one offset go into one part, so that a saved state never ends inside an offset.
        rows = sum(len(change.vectors) for change in group)
        if not self._delta.fits(rows):
            self._freeze(rows)
        for change in group:
            self._kill(change.key, offset)
            if len(change.vectors):
                self._delta.add(offset, change.key, change.vectors, change.norms)
        self._delta.changes += len(group)
        self._applied = offset
        limits = self._limits
        if len(self._delta) >= limits.delta_rows or self._delta.changes >= limits.checkpoint_changes:
            self._freeze()

    def _kill(self, key: bytes, offset: int) -> None:
        # The live rows of an item come from one change, hence lie in one part.
        digest = digest_of(key)
        for part in reversed(self._parts()):
            if part.kill(key, digest, offset):
                return


class _Prepared(NamedTuple):
    """A change that was checked, with the norms of its rows."""

    offset: int
    key: bytes
    vectors: Floats32
    norms: Floats64


def _prepare(changes: Sequence[VectorChange], dims: int) -> list[_Prepared]:
    """Check changes; the arithmetic is done on the rows of all of them at once."""
    given = [_rows(change, dims) for change in changes]
    if not given:
        return []
    rows = given[0] if len(given) == 1 else np.concatenate(given)
    if np.count_nonzero(np.isfinite(rows)) != rows.size:
        bad = next(at for at, vectors in enumerate(given) if not np.isfinite(vectors).all())
        raise InvalidEmbedding(f"a vector at offset {changes[bad].offset} holds NaN or infinite numbers")
    norms = norms_of(rows)
    prepared = []
    end = 0
    for change, vectors in zip(changes, given, strict=True):
        start, end = end, end + len(vectors)
        prepared.append(_Prepared(change.offset, change.key, vectors, norms[start:end]))
    return prepared


def _rows(change: VectorChange, dims: int) -> Floats32:
    if change.vectors is None:
        return np.empty((0, dims), np.float32)
    vectors: Floats32 = np.asarray(change.vectors, np.float32)
    if vectors.size == 0:
        return vectors.reshape(0, dims)
    if vectors.ndim != 2 or vectors.shape[1] != dims:
        raise InvalidEmbedding(
            f"the vectors at offset {change.offset} have the shape {vectors.shape}, the index has {dims} "
            "dimensions; rebuild the vectors with the present model"
        )
    return vectors


def _load(directory: Path, owner: Owner, position: int | None) -> Saved | None:
    try:
        saved = manifest.load(directory, owner)
        if saved is not None and position is not None and saved.covered > position:
            raise UnusableFile(manifest.NAME, f"covers offset {saved.covered}, the view ends at {position}")
    except UnusableFile as error:
        _log.warning("saved vectors in %s are not used (%s); they must be fed again", directory, error)
        saved = None
    keep = {manifest.NAME, *saved.names} if saved else set()
    names = [path.name for path in directory.iterdir() if path.is_file()]
    files.remove(directory, [name for name in names if name not in keep])
    return saved
