"""A store in a process of its own, measuring a cell when it is told to.

A process to each store keeps one store's memory, threads and garbage out of another's figures, and
makes reopening what it is for a user: the first thing a new process does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Final, NamedTuple

from benchmarks.bench import Bench, Setting
from benchmarks.cells import BY_NAME
from benchmarks.measure import Slice

STOP_SECONDS: Final = 30.0


class Order(NamedTuple):
    """Measure a cell once more, within so many seconds."""

    cell: str
    turn: int
    seconds: float


class Worker:
    """The measuring process, seen from outside."""

    def __init__(self, setting: Setting) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_serve, args=(theirs, setting), daemon=True)
        self._process.start()
        theirs.close()

    def wait(self) -> None:
        """Return when the process is ready to measure, so that its start disturbs no other."""
        self._pipe.poll(STOP_SECONDS)
        with contextlib.suppress(EOFError, OSError):
            self._pipe.recv()

    def measure(self, order: Order, patience: float) -> Slice:
        """One slice; an error of the store, or no answer within ``patience`` seconds, is one too.

        The process is gone after it gave no answer.
        """
        try:
            self._pipe.send(order)
            if not self._pipe.poll(patience):
                self._process.kill()
                return Slice(error=f"no answer within {patience:.0f} s")
            answer: Slice = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(STOP_SECONDS)
            return Slice(error=f"the process ended (exit code {self._process.exitcode})")
        return answer

    def stop(self) -> None:
        """Close the store and end the process."""
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, setting: Setting) -> None:
    bench = Bench(setting)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        bench.turn = order.turn
        pipe.send(_measure(bench, order))
    bench.close()
    pipe.close()
    # Tearing down a heap of millions of objects one by one is nobody's figure.
    os._exit(0)


def _measure(bench: Bench, order: Order) -> Slice:
    try:
        return BY_NAME[order.cell].measure(bench, order.seconds)
    except Exception as error:  # A store that fails is a result, not the end of the run.
        return Slice(error=f"{type(error).__name__}: {error}"[:200])
