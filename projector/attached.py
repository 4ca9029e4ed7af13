"""An application on the view that another process keeps, a ``projector run`` most of all.

It appends to the log itself and projects nothing: a write returns when the other process's view
shows it, and what became of it is read from there. Reads go on while that process is away; then
writes end with an error that names it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from eventstore.codec import decode
from eventstore.config import StoreConfig
from eventstore.errors import (
    EventStoreError,
    InvalidConfig,
    StoreClosed,
    UnappliedEvent,
    ViewBehind,
    ViewError,
)
from eventstore.log.base import Batch, Log, StoredRecord
from eventstore.log.position import Position
from eventstore.views import Metric, Outcome, Ranks, View, Written
from projector import directories
from projector.attached_view import AttachedView, Replica
from projector.fold import ItemState, version_seen
from projector.lease import Lease
from projector.projections import history, quarantine
from projector.runner import after
from projector.secondary import identity
from projector.shared import OpenBeside, SharedRuntime

log = logging.getLogger("projector.attached")

EAGER_SECONDS: Final = 0.001
"""Between looks at the view while somebody waits for it."""
LOOK_SECONDS: Final = 1.0
"""Without progress for so long, another process's view is looked for; also the pause after an error."""
STOP_SECONDS: Final = 5.0


class Waiting(NamedTuple):
    """Somebody who waits for the view to show a position."""

    position: Position
    done: concurrent.futures.Future[None]


class AttachedRuntime(SharedRuntime):
    """A :class:`eventstore.views.Runtime` without a projector of its own."""

    def __init__(self, source: Log, views: Path, config: StoreConfig, beside: OpenBeside) -> None:
        """Takes over the log; ``beside`` is as for :class:`SharedRuntime`.

        Raises ``InvalidConfig`` where nobody has made a view yet.
        """
        super().__init__(source, beside)
        self._config = config
        self._views = views
        try:
            home = choose(views)
            if home is None:
                raise InvalidConfig(
                    f"there is no view in {views} to attach to; start `projector run` for {source.location} "
                    "with these views first"
                )
            with contextlib.ExitStack() as undo:
                scratch = undo.enter_context(directories.scratch(views))
                self._view = AttachedView(home, source.log_id, source.partitions, config.cache_bytes, scratch)
                self._scratch = undo.pop_all()
        except BaseException as error:
            source.close()
            if isinstance(error, OSError):
                raise InvalidConfig(
                    f"{views} cannot be written: {error.strerror}. Attaching keeps its own files there"
                ) from error
            raise
        self._waiting: list[Waiting] = []
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._moved = time.monotonic()
        self._failure: str | None = None
        self._thread = threading.Thread(target=self._run, name="eventstore-attached", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ what faces use

    @property
    def view(self) -> View:
        return self._view

    @property
    def applied(self) -> Position:
        return self._view.position

    @property
    def stopped(self) -> EventStoreError | None:
        """Not known here: it is the other process that would have stopped."""
        return None

    @property
    def directory(self) -> Path:
        """The view directory that is read."""
        return self._view.home

    def catch_up(self) -> None:
        self.wait_for(self._log.high_water_mark(), self._config.wait_timeout)

    def wait_for(self, position: Position, timeout: float) -> None:
        self.check()
        if self._view.position.covers(position):
            return
        waiting = self._wait(position)
        try:
            waiting.done.result(timeout)
        except concurrent.futures.TimeoutError:
            raise self._behind(position, timeout) from None
        finally:
            self._forget(waiting)

    def use_vectors(self, dims: int, distance: Metric, model: str, exact: bool) -> None:
        self._view.use_vectors(dims, distance, model, exact)

    def ranks_by(self, ranks: Ranks) -> bool:
        return self._view.ranks_by(ranks)

    def write(self, batch: Batch) -> Written:
        (shown,) = self.write_all([batch])
        return _or_raise(shown)

    def write_all(self, batches: Sequence[Batch]) -> list[Written | BaseException]:
        done = super().write_all(batches)
        failure: ViewError | None = None
        try:
            self.wait_for(self._after(done), self._config.wait_timeout)
        except ViewError as error:
            failure = _unseen(error)
        return self._judged(done, failure)

    async def awrite(self, batch: Batch) -> Written:
        (shown,) = await self.awrite_all([batch])
        return _or_raise(shown)

    async def awrite_all(self, batches: Sequence[Batch]) -> list[Written | BaseException]:
        done = await super().awrite_all(batches)
        position, timeout = self._after(done), self._config.wait_timeout
        failure: ViewError | None = None
        if not self._view.position.covers(position):
            waiting = self._wait(position)
            try:
                await asyncio.wait_for(asyncio.wrap_future(waiting.done), timeout)
            except TimeoutError:
                failure = _unseen(self._behind(position, timeout))
            finally:
                self._forget(waiting)
        return self._judged(done, failure)

    # ------------------------------------------------------------------ writing

    def _append(self, batches: Sequence[Batch]) -> list[Written | Exception]:
        appended = self._log.append(batches)
        return [Written(each, {}) if isinstance(each, list) else each for each in appended]

    def _after(self, done: Iterable[Written | BaseException]) -> Position:
        position = Position.start(self._log.partitions)
        for each in done:
            if isinstance(each, Written):
                position = after(position, each.records)
        return position

    def _judged(
        self, done: Sequence[Written | BaseException], failure: ViewError | None
    ) -> list[Written | BaseException]:
        """What was written, with what became of it, or with why that is not known."""
        if failure is not None:
            return [failure if isinstance(each, Written) else each for each in done]
        with self._view.pinned() as replica:
            return [_became(replica, each) if isinstance(each, Written) else each for each in done]

    def _behind(self, position: Position, timeout: float) -> ViewBehind:
        home = self._view.home
        holder = Lease.holder(home)
        if holder is None:
            keeper, hint = "which no process keeps", f"start `projector run` for {self._log.location}"
        else:
            keeper, hint = f"kept by process {holder}", "look at that projector: its log, or its /healthz"
        trouble = "" if self._failure is None else f" ({self._failure})"
        return ViewBehind(
            f"the view in {home}, {keeper}, stands at {self._view.position}, "
            f"not yet at {position}, after {timeout} s{trouble}; {hint}"
        )

    # ------------------------------------------------------------------ following the view

    def _wait(self, position: Position) -> Waiting:
        waiting = Waiting(position, concurrent.futures.Future())
        self._waiting.append(waiting)
        self._wake.set()
        if self._view.position.covers(position):
            self._tell()
        return waiting

    def _forget(self, waiting: Waiting) -> None:
        with contextlib.suppress(ValueError):
            self._waiting.remove(waiting)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(EAGER_SECONDS if self._waiting else self._config.follow_interval)
            self._wake.clear()
            try:
                if self._view.refresh():
                    self._moved, self._failure = time.monotonic(), None
                elif self._waiting and time.monotonic() - self._moved > LOOK_SECONDS:
                    self._look_elsewhere()
            except (EventStoreError, OSError) as error:
                if self._failure is None:
                    log.warning("the view in %s is shown as it was: %s", self._view.home, error)
                self._failure = str(error)
                self._stop.wait(LOOK_SECONDS)
            self._tell()

    def _tell(self) -> None:
        shown = self._view.position
        for waiting in self._waiting[:]:
            if shown.covers(waiting.position) and not waiting.done.done():
                with contextlib.suppress(concurrent.futures.InvalidStateError):
                    waiting.done.set_result(None)

    def _look_elsewhere(self) -> None:
        """Read the view of another process, if the one that was read has been left alone."""
        self._moved = time.monotonic()
        if Lease.holder(self._view.home) is None:
            home = choose(self._views)
            if home is not None and home != self._view.home and Lease.holder(home) is not None:
                self._view.move_to(home)

    # ------------------------------------------------------------------ the end

    def _end(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join(STOP_SECONDS)
        for waiting in self._waiting[:]:
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                waiting.done.set_exception(StoreClosed("the store was closed while a write was awaited"))
        self._view.close()
        self._scratch.close()
        self._log.close()

    def _owned(self) -> tuple[object, ...]:
        return self._view, *self._view.replicas()


def choose(views: Path) -> Path | None:
    """The view directory to read: the first that a process keeps, else the first with a view in it."""
    made = [
        home
        for home in directories.numbered(views)
        if identity(directories.current(home) / directories.DATA[0]) is not None
    ]
    kept = [home for home in made if Lease.holder(home) is not None]
    return next(iter([*kept, *made]), None)


def _became(replica: Replica, written: Written) -> Written | UnappliedEvent:
    try:
        return Written(written.records, _outcomes(replica, written.records))
    except UnappliedEvent as error:
        return error


def _outcomes(replica: Replica, records: Sequence[StoredRecord]) -> dict[tuple[int, int], Outcome]:
    """What did not take effect, as the view has it: rejected events have a row, void ones have none.

    Raises ``UnappliedEvent`` for one that was set aside.
    """
    found = {}
    for record in records:
        event = decode(record)
        row = history.at(replica.db.history, event.key, record.offset)
        if row is None:
            aside = quarantine.at(replica.db.default, record.partition, record.offset)
            if aside is not None:
                raise quarantine.not_shown(aside)
            found[record.partition, record.offset] = Outcome("void", 0)
        elif row.outcome == "rejected":
            # A memory that is not there has no time at which it was made.
            state = ItemState(row.created_us > 0, row.version, expires_us=row.expires_us)
            seen = version_seen(state, event, record.time_us)
            found[record.partition, record.offset] = Outcome("rejected", seen)
    return found


def _unseen(error: ViewError) -> ViewBehind:
    failed = ViewBehind(f"the write is in the log, but the view does not show it: {error}")
    failed.__cause__ = error
    return failed


def _or_raise(shown: Written | BaseException) -> Written:
    if isinstance(shown, BaseException):
        raise shown
    return shown
