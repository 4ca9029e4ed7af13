"""Runs every cell of one size, store after store, in an order that rotates from turn to turn.

Whatever else the machine does meets all stores alike, so ratios hold where absolute figures would
not. A store that fails a cell, or is too slow to be loaded, stays in the table with the reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.bench import Setting
from benchmarks.cells import CELLS, Cell, Phase
from benchmarks.figures import Figure, Results
from benchmarks.measure import Slice
from benchmarks.peers import CONTENDERS
from benchmarks.worker import Order, Worker
from benchmarks.workload import CHUNKS, Spec, Workload

PATIENCE: Final = 300.0
"""Seconds after which a store that does not answer is given up."""


@dataclass(frozen=True)
class Limits:
    """How long to measure."""

    seconds: float = 3.0
    """For one cell of one store, all its turns together."""
    turns: int = 3
    load_seconds: float = 300.0


class Race:
    """All stores at one size."""

    def __init__(
        self,
        spec: Spec,
        stores: Sequence[str],
        limits: Limits,
        directory: Path,
        say: Callable[[str], None],
        missing: Mapping[str, str],
    ) -> None:
        """``missing`` says of stores why they cannot be measured at all."""
        self._limits = limits
        self._say = say
        self._stores = list(stores)
        self._spec = spec
        vectors = directory / "vectors.npy"
        Workload(spec, vectors)
        self._settings = {name: Setting(name, spec, directory / name, vectors) for name in stores}
        self._workers: dict[str, Worker] = {}
        self._slices: dict[tuple[str, str], list[Slice]] = {}
        self._lost = {name: missing[name] for name in stores if name in missing}
        """Why a store is out of the race."""
        self._loading: dict[str, float] = {}

    def run(self) -> Results:
        before = os.getloadavg()[0]
        try:
            self._start([name for name in self._stores if name not in self._lost])
            self._all_turns("load")
            self._all_turns("read")
            self._all_turns("reopen", fresh=True)
            self._all_turns("rebuild", fresh=True)
            self._restart()
            self._all_turns("write")
        finally:
            for worker in self._workers.values():
                worker.stop()
        results = Results(self._spec, load_average=(before, os.getloadavg()[0]))
        for cell in CELLS:
            results.figures[cell.name] = {
                name: Figure.of(self._slices.get((cell.name, name), [Slice(error="not run")]))
                for name in self._stores
                if CONTENDERS[name].rebuilds or not cell.ours_only
            }
        return results

    def _all_turns(self, phase: Phase, *, fresh: bool = False) -> None:
        for cell in CELLS:
            if cell.phase != phase:
                continue
            self._say(f"{self._spec.items:,} items: {cell.title}")
            turns = cell.turns or self._limits.turns
            for turn in range(turns):
                shift = turn % len(self._stores)
                for name in self._stores[shift:] + self._stores[:shift]:
                    self._one(cell, name, turn, self._limits.seconds / turns, fresh)

    def _one(self, cell: Cell, name: str, turn: int, seconds: float, fresh: bool) -> None:
        done = self._slices.setdefault((cell.name, name), [])
        if done and (done[-1].error or done[-1].over or done[-1].note):
            return
        reason = self._excuse(cell, name, fresh)
        if reason:
            done.append(reason)
            return
        if fresh:
            self._start([name])
        worker = self._workers[name]
        began = time.monotonic()
        measured = worker.measure(Order(cell.name, turn, seconds), max(PATIENCE, self._limits.load_seconds))
        done.append(measured)
        if cell.name == "load":
            self._loading[name] = self._loading.get(name, 0.0) + time.monotonic() - began
            if measured.error:
                self._lost[name] = f"not loaded: {measured.error}"
            elif self._loading[name] > self._limits.load_seconds and turn < CHUNKS - 1:
                share = (turn + 1) / CHUNKS
                self._lost[name] = f"not loaded: {share:.0%} took {self._loading[name]:.0f} s"
                self._stop(name)

    def _excuse(self, cell: Cell, name: str, fresh: bool) -> Slice | None:
        """Why a cell is not run for a store."""
        kind = CONTENDERS[name]
        if cell.ours_only and not kind.rebuilds:
            return Slice(note="only where there is a log")
        if name in self._lost:
            return Slice(error=self._lost[name])
        if fresh and not kind.persistent:
            return Slice(note="nothing to reopen")
        if cell.semantic and (why := kind.cannot_search()):
            return Slice(note=f"left out: {why}")
        return None

    def _stop(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.stop()

    def _start(self, names: Sequence[str]) -> None:
        """New processes, all of them ready."""
        for name in names:
            self._stop(name)
        for name in names:
            self._workers[name] = Worker(self._settings[name])
        for name in names:
            self._workers[name].wait()

    def _restart(self) -> None:
        """New processes for the stores that can be opened again, and nothing left to do in them."""
        names = [name for name in self._stores if CONTENDERS[name].persistent and name not in self._lost]
        self._start(names)
        for name in names:
            self._workers[name].measure(Order("settle", 0, 0.0), PATIENCE)
