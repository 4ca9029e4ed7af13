"""Puts log, projector and view together for one connection string.

Faces opened on the same place in one process share one runtime; the last one to leave closes
it. Here a rebuilt view takes the place of the one in use, and a forked child finds its parent's
runtime unusable instead of harming it.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from eventstore import EventStore
from eventstore.config import StoreConfig
from eventstore.connection import FolderPlace, parse
from eventstore.errors import (
    EventStoreError,
    IndexMismatch,
    InvalidConfig,
    InvalidType,
    LogDamaged,
    LogMismatch,
    ViewBehind,
    ViewDamaged,
    ViewError,
)
from eventstore.interrupts import Uninterrupted
from eventstore.log.base import Batch, Log, StoredRecord
from eventstore.log.position import Position
from eventstore.views import Metric, Ranks, View, Written
from projector import directories
from projector.attached import AttachedRuntime
from projector.beside import NewView
from projector.lease import Lease
from projector.opening import open_view
from projector.places import name_of, open_embedded, open_log, require, views_of
from projector.runner import Follower, Progress, after
from projector.shared import SharedRuntime
from projector.view import MaterializedView

log = logging.getLogger("projector.runtime")

TakeLease = Callable[[Path], Lease]
STOP_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.2
"""How long a look for new events waits; also how long closing may wait for it."""

LOOK_SECONDS: Final = 0.5
"""Seconds between looks for a view that another process rebuilt."""
EXCHANGE_RECORDS: Final = 1_000
"""What a rebuilt view may lack when writers are held off for the exchange."""
RETIRE_SECONDS: Final = 60.0
"""How long an exchanged view waits for readers that are still at work in it."""

_open: weakref.WeakValueDictionary[tuple[str, str, bool], SharedRuntime] = weakref.WeakValueDictionary()
_opening = threading.Lock()
_all: weakref.WeakSet[SharedRuntime] = weakref.WeakSet()


def open_runtime(conn_string: object, views: str | Path | None, config: StoreConfig) -> SharedRuntime:
    """The runtime of a connection string, shared if this process has it open.

    Raises ``InvalidConfig`` for a place that cannot be used, ``LogDamaged`` and ``LogMismatch``
    for a log that must not be trusted.
    """
    place = parse(conn_string, config.kafka)
    if isinstance(place, FolderPlace) and place.directory is None:
        if config.attach:
            raise InvalidConfig("a temporary store has no projector to attach to; give a folder or a topic")
        temporary = Path(tempfile.mkdtemp(prefix="eventstore-"))
        return OpenRuntime(open_embedded(temporary, config), temporary / "views", config, temporary)
    views_at = views_of(place, views)
    key = (name_of(place), os.path.realpath(views_at), config.attach)
    with _opening:
        runtime = _open.get(key)
        if runtime is None or not runtime.retain():
            if config.attach:
                require(place)
                runtime = AttachedRuntime(open_log(place, config), views_at, config)
                _all.add(runtime)
            else:
                runtime = OpenRuntime(open_log(place, config), views_at, config)
            _open[key] = runtime
        return runtime


def runtime_of(store: EventStore) -> OpenRuntime:
    """What a store was opened on. Raises ``InvalidType`` for a store on something else."""
    found = store._runtime
    if not isinstance(found, OpenRuntime):
        raise InvalidType(f"this needs a store opened by its path, not one on a {type(found).__name__}")
    return found


class OpenRuntime(SharedRuntime):
    """A :class:`eventstore.views.Runtime`: one log and this process's view of it."""

    def __init__(
        self,
        source: Log,
        views: Path,
        config: StoreConfig,
        temporary: Path | None = None,
        *,
        lease: TakeLease = Lease.take,
        progress: Progress | None = None,
    ) -> None:
        """Takes over the log; ``temporary`` is a folder that is removed at the end.

        ``lease`` takes a view directory; ``progress`` is told how far the first catch-up is.
        """
        super().__init__(source)
        self._config = config
        self._temporary = temporary
        self._index: tuple[int, Metric, str, bool] | None = None
        try:
            self._lease = lease(views)
            try:
                self._view, self._projector = open_view(
                    self._log, self._lease.directory, self._config, progress
                )
            except BaseException:
                self._lease.release()
                raise
        except BaseException:
            self._log.close()
            raise
        self._looked = time.monotonic()
        self._follower = Follower(self._follow, config.follow_interval if source.end_is_local else 0.0)
        _all.add(self)

    # ------------------------------------------------------------------ what faces use

    @property
    def view(self) -> View:
        return self._view

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

    def use_vectors(self, dims: int, distance: Metric, model: str, exact: bool) -> None:
        with self._projector.hold():
            with contextlib.suppress(ViewDamaged):
                self._view.use_vectors(dims, distance, model, exact)
                self._index = (dims, distance, model, exact)
                return
            self._projector.unsure = True
            self._reopen()
            self._view.use_vectors(dims, distance, model, exact)
            self._index = (dims, distance, model, exact)

    def ranks_by(self, ranks: Ranks) -> bool:
        return self._view.ranks_by(ranks)

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

    @property
    def materialized(self) -> MaterializedView:
        """The view as it is made, for those who look after it."""
        return self._view

    def exchange(self, made: NewView) -> None:
        """Go on with a view made beside the one in use; no reader or writer notices.

        The caller holds the right to build. Raises ``StoreClosed``, or ``ViewBehind`` when the view
        in use was opened anew meanwhile; then nothing was exchanged.
        """
        projector = self._projector
        while made.position.behind(projector.position) > EXCHANGE_RECORDS:
            made.advance(projector.position)
        self._make_index(made.view)
        with projector.hold():
            made.advance(projector.position)
            if projector is not self._projector or made.position != projector.position:
                raise ViewBehind("the view in use was opened anew meanwhile; try again")
            self._make_index(made.view)
            with self._lock:
                self.check()
                directories.make_current(made.folder)
                old, self._view = self._view, made.view
            projector.switch(made.view)
            old.hand_over(made.view)
        with contextlib.suppress(ViewError):
            old.close(RETIRE_SECONDS)
        directories.remove_unused(self._lease.directory)
        if self._config.on_undecodable == "stop":
            made.view.quarantine.complain()
        log.info("the view in %s was exchanged for a rebuilt one", self._lease.directory)

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
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def _owned(self) -> tuple[object, ...]:
        return self._view, self._view.db, self._projector

    def _make_index(self, view: MaterializedView) -> None:
        """Make rankings possible on a view that takes the place of this one, unless the model was changed."""
        if self._index is not None:
            try:
                view.use_vectors(*self._index)
            except IndexMismatch:
                self._index = None

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

        appended = self._log.append(batches, show)
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
        if failure:
            failed = ViewBehind(f"the write is in the log, but the view does not show it: {failure[0]}")
            failed.__cause__ = failure[0]
            return [failed if isinstance(records, list) else records for records in appended]
        return [
            Written(records, self._projector.outcomes(records)) if isinstance(records, list) else records
            for records in appended
        ]

    def _show_own(self, written: Sequence[list[StoredRecord]]) -> None:
        """Apply what follows on the view's position at once; wait for the follower to bring the rest."""
        self._projector.offer(written)
        for records in written:
            self.wait_for(after(self._projector.position, records), self._config.wait_timeout)

    def _follow(self) -> None:
        """One step of the follower."""
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self._take_over()
        if self._log.end_is_local:
            self.catch_up()
        else:
            self._poll()

    def _take_over(self) -> None:
        """Exchange the view for one that another process made ready."""
        home = self._lease.directory
        if directories.ready(home) is None:
            return
        with directories.building(home) as free:
            folder = directories.ready(home) if free else None
            if folder is None:
                return
            made: NewView | None = None
            try:
                made = NewView(self._log, folder, self._config.cache_bytes, self._config.on_undecodable)
                self.exchange(made)
            except (EventStoreError, OSError) as error:
                directories.withdraw(home)
                if made is not None:
                    made.close()
                log.warning("the rebuilt view in %s could not be taken over: %s", folder, error)

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
            view, projector = open_view(self._log, self._lease.directory, self._config)
            self._make_index(view)
            self._view, self._projector = view, projector
            log.warning("the view in %s is in use again", self._lease.directory)


@atexit.register
def _close_all() -> None:
    """A program that ends without closing loses nothing, but leaves its views in order."""
    for runtime in list(_all):
        runtime.close()


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()
    _open.clear()
    for runtime in list(_all):
        runtime.forked()
    _all.clear()


os.register_at_fork(after_in_child=_after_fork)
