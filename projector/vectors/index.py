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
from typing import Final

import numpy as np

from eventstore.errors import InvalidEmbedding, StoreClosed, ViewError
from projector.vectors import files, manifest
from projector.vectors.delta import Arrival, Delta
from projector.vectors.files import UnusableFile
from projector.vectors.limits import Floats32, Floats64, Limits, Metric, VectorChange, VectorStats
from projector.vectors.manifest import Owner, Saved
from projector.vectors.part import Part
from projector.vectors.scoring import Scorer, norms_of
from projector.vectors.segment import Segment, digest_of
from projector.vectors.state import State
from projector.vectors.upkeep import Upkeep

_log = logging.getLogger("projector.vectors")

TAKEN_IN_AT_ONCE: Final = 256
"""Changes that wait at most: taking them in holds up whoever searches for less than a millisecond."""
_new = tuple.__new__  # half the time of calling the class, and this runs once per change


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
        self._taken_in = self._applied
        """Up to where changes are in a part; those behind it, applied since, wait beside it."""
        self._arrivals: list[Arrival] = []
        self._rows: list[Floats32] = []
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
        if fresh:
            given = [_rows(change, self._dims) for change in fresh]
            self._rows.append(_finite(fresh, given))
            self._arrivals += [
                _new(Arrival, (change.offset, change.key, len(vectors)))
                for change, vectors in zip(fresh, given, strict=True)
            ]
            self._applied = fresh[-1].offset
        if through is not None and through > self._applied:
            self._applied = through
        if len(self._arrivals) >= TAKEN_IN_AT_ONCE:
            self._take_in()

    def state(self) -> State:
        """The index as it is now, to be searched without the lock. The caller holds the lock."""
        self._take_in()
        return State(self._applied, self._parts(), self._scorer, self._limits.wide_rows, exact=self._exact)

    def checkpoint(self, timeout: float | None = 60.0) -> int:
        """Save everything applied so far and return :attr:`covered`. The caller does not hold the lock.

        Raises:
            ViewError: it could not be saved, or not within ``timeout`` seconds; it stays in memory.
            StoreClosed: the index was closed.
        """
        self._check_open()
        with self.lock:
            self._take_in()
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
        with self.lock:
            self._take_in()
        return self._upkeep.settle(timeout)

    def stats(self) -> VectorStats:
        """What the index holds."""
        with self.lock:
            self._take_in()
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
        self._delta.through = self._taken_in
        self._upkeep.freeze(self._delta)
        self._delta = self._new_delta(rows)

    def _take_in(self) -> None:
        """Put what was applied where it is searched: many changes together cost a fraction of one by one."""
        arrivals, rows = self._arrivals, self._rows
        self._arrivals, self._rows = [], []
        if arrivals:
            vectors = rows[0] if len(rows) == 1 else np.concatenate(rows)
            run = _Run(vectors, norms_of(vectors))
            # All rows of one offset go into one part, so that a saved state never ends inside an offset.
            for offset, group in groupby(arrivals, attrgetter("offset")):
                self._take_in_offset(offset, list(group), run)
            run.add_to(self._delta)
        self._taken_in = self._applied

    def _take_in_offset(self, offset: int, group: Sequence[Arrival], run: _Run) -> None:
        limits, rows = self._limits, sum(arrival.rows for arrival in group)
        if not self._delta.fits(run.waiting + rows):
            run.add_to(self._delta)
            self._freeze(rows)
        for arrival in group:
            if arrival.key in run.keys:
                # It must be there to be marked dead.
                run.add_to(self._delta)
            self._kill(arrival.key, offset)
            if arrival.rows:
                run.append(arrival)
        self._delta.changes += len(group)
        self._taken_in = offset
        if (
            len(self._delta) + run.waiting >= limits.delta_rows
            or self._delta.changes >= limits.checkpoint_changes
        ):
            run.add_to(self._delta)
            self._freeze()

    def _kill(self, key: bytes, offset: int) -> None:
        # The live rows of an item come from one change, hence lie in one part.
        digest = digest_of(key)
        for part in reversed(self._parts()):
            if part.kill(key, digest, offset):
                return


class _Run:
    """Arrivals on their way into a part: each item once, their rows one after the other."""

    def __init__(self, vectors: Floats32, norms: Floats64) -> None:
        """``vectors`` are the rows of all arrivals there will be, in their order."""
        self.waiting = 0
        """Rows that are in no part yet."""
        self.keys: set[bytes] = set()
        self._vectors = vectors
        self._norms = norms
        self._arrivals: list[Arrival] = []
        self._first = 0

    def append(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        self.keys.add(arrival.key)
        self.waiting += arrival.rows

    def add_to(self, delta: Delta) -> None:
        """Add to a part what waits."""
        if self._arrivals:
            end = self._first + self.waiting
            delta.add(self._arrivals, self._vectors[self._first : end], self._norms[self._first : end])
            self._first, self.waiting, self._arrivals = end, 0, []
            self.keys.clear()


def _finite(changes: Sequence[VectorChange], given: Sequence[Floats32]) -> Floats32:
    """The rows of all changes together. Raises ``InvalidEmbedding`` for one that is no vector."""
    rows = given[0] if len(given) == 1 else np.concatenate(given)
    if np.count_nonzero(np.isfinite(rows)) != rows.size:
        bad = next(at for at, vectors in enumerate(given) if not np.isfinite(vectors).all())
        raise InvalidEmbedding(f"a vector at offset {changes[bad].offset} holds NaN or infinite numbers")
    return rows


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
