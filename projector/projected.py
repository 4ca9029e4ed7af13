"""A log and this process's own view of it, kept current: by its own writes, and by a thread that follows.

What the view is of is for others to say. A view whose write broke off is opened anew behind the
backs of readers and writers.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from eventstore.config import StoreConfig
from eventstore.errors import (
    EventStoreError,
    InvalidConfig,
    LogDamaged,
    LogMismatch,
    UnappliedEvent,
    ViewBehind,
)
from eventstore.interrupts import Uninterrupted
from eventstore.log.base import Batch, Log, StoredRecord
from eventstore.log.position import Position
from eventstore.views import Written
from projector.follower import Follower
from projector.lease import Lease
from projector.opening import Closable, Kind, open_view
from projector.runner import Progress, after
from projector.shared import OpenBeside, SharedRuntime

log = logging.getLogger("projector.runtime")

TakeLease = Callable[[Path], Lease]
STOP_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.2
"""How long a look for new events waits; also how long closing may wait for it."""


class View(Closable, Protocol):
    """What is kept current here."""

    def close(self, timeout: float = ..., *, anew: bool = False) -> None:
        """Release it; ``anew`` says that another is about to take its place."""


V = TypeVar("V", bound=View)


class ProjectedRuntime(SharedRuntime, Generic[V]):
    """The part of a runtime that is the same for memories and checkpoints."""

    def __init__(
        self,
        source: Log,
        views: Path,
        config: StoreConfig,
        kind: Kind[V],
        beside: OpenBeside,
        *,
        lease: TakeLease = Lease.take,
        progress: Progress | None = None,
    ) -> None:
        """Takes over the log. ``lease`` takes a view directory; ``progress`` is told of the catch-up."""
        super().__init__(source, beside)
        self._config = config
        self._kind = kind
        try:
            self._lease = lease(views)
            try:
                self._view, self._projector = open_view(source, self._lease.directory, config, kind, progress)
            except BaseException:
                self._lease.release()
                raise
        except BaseException:
            self._log.close()
            raise
        self._follower = Follower(self._follow, config.follow_interval if source.end_is_local else 0.0)

    @property
    def applied(self) -> Position:
        return self._projector.position

    @property
    def stopped(self) -> EventStoreError | None:
        return self._projector.stopped

    def catch_up(self) -> None:
        if self._projector.unsure:
            self._reopen()
        projector = self._projector
        if not self._log.end_is_local:
            self.wait_for(self._log.high_water_mark(), self._config.wait_timeout)
        elif self._log.ahead_of(projector.position):
            projector.catch_up()

    def wait_for(self, position: Position, timeout: float) -> None:
        self.check()
        if not self._projector.wait_for(position, timeout):
            raise ViewBehind(
                f"the view stands at {self._projector.position}, not yet at {position}, after {timeout} s; "
                "is the writer of that position on this log?"
            )

    @property
    def trouble(self) -> EventStoreError | None:
        """Why the view does not follow the log at present, if it does not."""
        return self._projector.stopped or self._follower.failure

    @property
    def directory(self) -> Path:
        """The view directory this runtime owns."""
        return self._lease.directory

    @property
    def config(self) -> StoreConfig:
        """The settings it was opened with."""
        return self._config

    def forked(self) -> None:
        super().forked()
        # The lease must end with the parent, not with this child.
        self._lease.release()

    def _end(self) -> None:
        self._follower.stop(STOP_SECONDS)
        try:
            self._view.close()
        finally:
            self._lease.release()
            self._log.close()

    def _owned(self) -> tuple[object, ...]:
        return self._view, self._projector

    def _look_around(self) -> None:
        """What else there is to do for the thread that follows."""

    # ------------------------------------------------------------------ writing

    def _append(self, batches: Sequence[Batch]) -> list[Written | Exception]:
        if self._projector.unsure:
            self._reopen()
        failure: list[EventStoreError] = []

        def show(lists: Sequence[Sequence[StoredRecord]]) -> None:
            """Between durable and announced: whoever sees the new end finds it applied here."""
            try:
                self._projector.apply(lists)
            except EventStoreError as error:
                failure.append(error)

        appended = self._log.append(batches, show, self._projector.expect)
        written = [records for records in appended if isinstance(records, list)]
        if written and not failure and not self._log.end_is_local:
            try:
                self._show_own(written)
            except EventStoreError as error:
                failure.append(error)
        if failure and written and self._projector.unsure:
            # Perhaps only this commit broke off: opened anew, the view takes the write from the log.
            with contextlib.suppress(EventStoreError):
                self._reopen()
                self.wait_for(after(self._projector.position, written[-1]), 0.0)
                failure.clear()
        failed = failure[0] if failure else None
        return [self._became(each, failed) if isinstance(each, list) else each for each in appended]

    def _became(self, records: list[StoredRecord], failed: EventStoreError | None) -> Written | Exception:
        """What became of a batch that is in the log; ``failed`` is why the view may not show it."""
        if failed is not None and not self._projector.position.covers(
            after(Position.start(self._log.partitions), records)
        ):
            unseen = ViewBehind(f"the write is in the log, but the view does not show it: {failed}")
            unseen.__cause__ = failed
            return unseen
        try:
            return Written(records, self._projector.outcomes(records))
        except UnappliedEvent as error:
            return error

    def _show_own(self, written: Sequence[list[StoredRecord]]) -> None:
        """Apply what follows on the view's position at once; wait for the follower to bring the rest."""
        self._projector.offer(written)
        for records in written:
            self.wait_for(after(self._projector.position, records), self._config.wait_timeout)

    def _follow(self) -> None:
        """One step of the follower."""
        self._look_around()
        if self._log.end_is_local:
            self.catch_up()
        else:
            self._poll()

    def _poll(self) -> None:
        """Apply what the log sends next; for a log whose end is not known here."""
        if self._projector.unsure:
            self._reopen()
        if self._projector.stopped is not None:
            time.sleep(POLL_SECONDS)
            return
        start = self._projector.position
        try:
            chunks = self._log.poll(start, POLL_SECONDS)
        except (InvalidConfig, LogDamaged, LogMismatch) as error:
            if self._projector.position != start:
                return  # what could not be read was applied by its writer meanwhile
            self._projector.stopped = error
            log.error("the log is no longer followed; reads go on from what is there: %s", error)
            raise
        if chunks:
            self._projector.apply_chunks(chunks)

    def _reopen(self) -> None:
        """Open the view anew after a write to it broke off: RocksDB may not recover by itself."""
        with Uninterrupted(), self._projector.hold():
            if not self._projector.unsure:
                return
            self._view.close(anew=True)
            view, projector = open_view(self._log, self._lease.directory, self._config, self._kind)
            self._view, self._projector = view, projector
            log.warning("the view in %s is in use again", self._lease.directory)
