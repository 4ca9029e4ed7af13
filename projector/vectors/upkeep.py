"""The background thread: seals frozen parts, merges segments, builds graphs, saves the manifest.

It takes the lock only to swap results in. A failure (a full disk) is logged once and
retried; until then everything stays searchable from memory. Which rows exist and which
have died is decided by the index, never here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from projector.vectors import files, graph, manifest, merging
from projector.vectors.delta import Delta
from projector.vectors.limits import Limits
from projector.vectors.manifest import Owner, Saved
from projector.vectors.part import Part
from projector.vectors.segment import Segment

_log = logging.getLogger("projector.vectors")

_FIRST_RETRY_S, _LAST_RETRY_S = 0.5, 30.0


class Upkeep:
    """The frozen and sealed parts of one index, and the thread that looks after them."""

    def __init__(
        self,
        directory: Path,
        owner: Owner,
        saved: Saved,
        limits: Limits,
        lock: AbstractContextManager[object],
        *,
        graphs: bool,
    ) -> None:
        self.frozen: tuple[Delta, ...] = ()
        """Parts waiting to be sealed, oldest first."""
        self.segments: tuple[Segment, ...] = tuple(saved.segments)
        self.covered = saved.covered
        """Every change up to this offset is held by the saved state."""
        self._directory = directory
        self._owner = owner
        self._limits = limits
        self._lock = lock
        self._graphs = graphs
        self._next = saved.next_number
        self._files = saved.names
        self._sealed = saved.covered
        self._unsaved = False
        self._signal = threading.Condition()
        self._pending = True
        self._idle = False
        self._stopping = False
        self._failure: Exception | None = None
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="vectors-upkeep", daemon=True)

    def start(self) -> None:
        """Write the first manifest if there is none, and begin the work.

        Raises:
            OSError: the directory cannot be written.
        """
        if not (self._directory / manifest.NAME).exists():
            self._unsaved = True
            self._save()
        self._thread.start()

    def freeze(self, delta: Delta) -> None:
        """Take over a part that gets no more rows. The lock is held."""
        self.frozen = (*self.frozen, delta)
        self._wake()

    @property
    def accepted(self) -> int:
        """The offset up to which parts were taken over."""
        return self.frozen[-1].through if self.frozen else self._sealed

    def wait(self, covered: int, timeout: float | None) -> Exception | None:
        """Wait until the saved state covers the offset; else return what prevents it, if it is known."""
        self._wake()
        with self._signal:
            failures = self._failures
            self._signal.wait_for(
                lambda: self.covered >= covered or self._stopping or self._failures > failures, timeout
            )
            return self._failure

    def settle(self, timeout: float | None) -> bool:
        """Wait until nothing is left to seal, merge, build or save; whether that was reached."""
        with self._signal:
            self._signal.wait_for(lambda: self._idle or self._stopping, timeout)
            return self._idle

    def stop(self, timeout: float) -> None:
        """End the thread after its current piece of work, waiting ``timeout`` seconds at most."""
        with self._signal:
            self._stopping = True
            self._signal.notify_all()
        self._thread.join(timeout)

    def _wake(self) -> None:
        with self._signal:
            self._pending = True
            self._idle = False
            self._signal.notify_all()

    def _run(self) -> None:
        delay = _FIRST_RETRY_S
        while not self._stopping:
            self._pending = False
            failure: Exception | None = None
            worked = False
            try:
                worked = self._step()
            except Exception as error:
                failure = error
            self._tell(failure)
            with self._signal:
                self._failure = failure
                self._failures += failure is not None
                self._idle = not (worked or failure or self._pending)
                self._signal.notify_all()
                if not worked:
                    self._signal.wait_for(lambda: self._pending or self._stopping, delay if failure else None)
            delay = min(2 * delay, _LAST_RETRY_S) if failure else _FIRST_RETRY_S

    def _tell(self, failure: Exception | None) -> None:
        if failure is not None and self._failure is None:
            _log.warning(
                "vectors in %s cannot be saved (%s: %s); they stay in memory and saving is retried",
                self._directory, type(failure).__name__, failure,
            )  # fmt: skip
        elif failure is None and self._failure is not None:
            _log.info("vectors in %s can be saved again", self._directory)

    def _step(self) -> bool:
        """Do the most urgent piece of work; whether there was one."""
        return self._save() or self._seal() or self._merge() or self._build()

    def _save(self) -> bool:
        if not self._unsaved:
            return False
        directory, owner = self._directory, self._owner
        names, self._next = manifest.save(directory, owner, self._sealed, self._next, self.segments)
        self._unsaved = False
        with self._signal:
            self.covered = self._sealed
            self._signal.notify_all()
        files.remove(self._directory, self._files - names)
        self._files = names
        return True

    def _seal(self) -> bool:
        frozen = self.frozen
        if not frozen:
            return False
        batch = [frozen[0]]
        for delta in frozen[1:]:
            if sum(map(len, batch)) + len(delta) > self._limits.segment_rows:
                break
            batch.append(delta)
        self._replace(batch, batch[-1].through)
        return self._save()

    def _merge(self) -> bool:
        limits = self._limits
        chosen = merging.to_merge(self.segments, limits.segment_rows, limits.dead_share, self._sealed)
        if not chosen:
            return False
        self._replace(chosen, self._sealed)
        return self._save()

    def _replace(self, parts: Sequence[Part], horizon: int) -> None:
        """Put one segment in the place of these parts; the saved state will cover the horizon."""
        merged = merging.merge(parts, horizon, self._owner.dims, self._new_file("segment"))
        gone = set(map(id, parts))
        with self._lock:
            made: tuple[Segment, ...] = ()
            if merged is not None:
                merged.bury()
                made = (merged.segment,)
            self.segments = (*(segment for segment in self.segments if id(segment) not in gone), *made)
            self.frozen = tuple(delta for delta in self.frozen if id(delta) not in gone)
            self._sealed = horizon
            self._unsaved = True

    def _build(self) -> bool:
        limits = self._limits
        if not self._graphs or sum(map(len, self.segments)) <= limits.wide_rows:
            return False
        bare = [
            segment
            for segment in self.segments
            if segment.graph is None
            and len(segment) >= limits.graph_rows
            and graph.suits(segment, self._owner.metric)
        ]
        if not bare:
            return False
        largest = max(bare, key=len)
        path = self._new_file("graph")
        built = graph.build(largest, self._owner.metric, path, limits.build_threads, self._pause)
        if built is None:
            return False
        self._files |= {record.name for record in built.records}
        largest.graph = built
        self._unsaved = True
        return self._save()

    def _pause(self) -> bool:
        """Seal what came in while a graph is being built; whether to give the graph up."""
        self._seal()
        return self._stopping

    def _new_file(self, kind: str) -> Path:
        name = f"{kind}-{self._next:08d}"
        self._next += 1
        self._files.add(name)
        return self._directory / name
