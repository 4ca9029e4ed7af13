"""How far a long piece of work is: a bar with rate and time left on a terminal, else log lines.

Nothing is shown of work that ends within a second, so callers always use it.
"""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

SHOWN_AFTER: Final = 1.0
"""Seconds of work after which something is shown."""
LINE_SECONDS: Final = 10.0
"""Seconds between log lines where there is no terminal."""


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s")


class Bar:
    """The progress of one piece of work, in a ``with`` block."""

    def __init__(self, what: str, logger: logging.Logger) -> None:
        """``what`` says what is being done; ``logger`` takes the lines where there is no terminal."""
        self._what = what
        self._logger = logger
        self._started = self._told = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self.done = 0
        """Steps done, as last reported."""

    @property
    def seconds(self) -> float:
        """Since the work began."""
        return time.monotonic() - self._started

    def update(self, done: int, total: int) -> None:
        """So many steps of so many are done."""
        self.done = done
        if self.seconds < SHOWN_AFTER:
            return
        if not sys.stderr.isatty():
            self._tell(done, total)
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn(self._what),
                BarColumn(),
                MofNCompleteColumn(),
                _Rate(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=total)
        self._bar.update(self._task, completed=done, total=total)

    def _tell(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._told < LINE_SECONDS:
            return
        self._told = now
        rate = done / self.seconds
        left = (total - done) / rate if rate else 0.0
        self._logger.info(
            "%s: %d of %d, %.0f/s, about %.0f s left", self._what, done, total, rate, max(left, 0.0)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self.seconds >= SHOWN_AFTER and self.done:
            self._logger.info(
                "%s: %d in %.1f s (%.0f/s)", self._what, self.done, self.seconds, self.done / self.seconds
            )
