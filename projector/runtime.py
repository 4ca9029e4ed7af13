"""Puts log, projector and view together for one connection string.

Faces opened on the same place in one process share one runtime; the last one to leave closes
it. Here a damaged view is set aside and built again, a long catch-up shows its progress, and a
forked child finds its parent's runtime unusable instead of harming it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import importlib
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eventstore.commit import Committer
from eventstore.config import StoreConfig
from eventstore.connection import FolderPlace, KafkaPlace, parse, where
from eventstore.errors import (
    EventStoreError,
    InvalidConfig,
    LogError,
    StoreClosed,
    StoreForked,
    ViewBehind,
    ViewDamaged,
    ViewError,
)
from eventstore.log.base import Batch, Log, Record, StoredRecord
from eventstore.log.embedded import EmbeddedLog
from eventstore.log.position import Position
from eventstore.views import Metric, View, Written
from projector.lease import Lease
from projector.runner import Follower, Projector, after
from projector.view import MaterializedView

log = logging.getLogger("projector.runtime")

PROGRESS_AFTER: Final = 1.0
"""Seconds of catching up after which a progress bar is shown."""
STOP_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.5

_open: dict[tuple[str, str], OpenRuntime] = {}
_opening = threading.Lock()
_all: weakref.WeakSet[OpenRuntime] = weakref.WeakSet()


def open_runtime(conn_string: object, views: str | Path | None, config: StoreConfig) -> OpenRuntime:
    """The runtime of a connection string, shared if this process has it open.

    Raises ``InvalidConfig`` for a place that cannot be used, ``LogDamaged`` and ``LogMismatch``
    for a log that must not be trusted.
    """
    place = parse(conn_string, config.kafka)
    if isinstance(place, FolderPlace) and place.directory is None:
        temporary = Path(tempfile.mkdtemp(prefix="eventstore-"))
        return OpenRuntime(_embedded(temporary, config), temporary / "views", config, temporary)
    views_at = _views(place) if views is None else Path(views)
    views_at = views_at.expanduser().absolute()
    named = where(place) if isinstance(place, KafkaPlace) else os.path.realpath(_folder(place))
    key = (named, os.path.realpath(views_at))
    with _opening:
        runtime = _open.get(key)
        if runtime is None or not runtime.retain():
            runtime = OpenRuntime(_log(place, config), views_at, config)
            _open[key] = runtime
        return runtime


def _folder(place: FolderPlace) -> Path:
    return (place.directory or Path()).expanduser().absolute()


def _views(place: FolderPlace | KafkaPlace) -> Path:
    """Where views are kept unless the caller says: beside an embedded log, else with the user's data."""
    if isinstance(place, FolderPlace):
        return _folder(place) / "views"
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    cluster = hashlib.sha256(",".join(sorted(place.servers)).encode()).hexdigest()[:8]
    return Path(home) / "eventstore" / f"{place.topic}-{cluster}"


def _log(place: FolderPlace | KafkaPlace, config: StoreConfig) -> Log:
    if isinstance(place, FolderPlace):
        return _embedded(_folder(place), config)
    try:
        # Only who names a topic needs the Kafka client.
        kafka_log = importlib.import_module("eventstore.log.kafka")
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"a log on Kafka needs {error.name}: pip install 'eventstore-langgraph[kafka]'"
        ) from error
    return cast(Log, kafka_log.KafkaLog(place))


def _embedded(directory: Path, config: StoreConfig) -> EmbeddedLog:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfig(
            f"the store's folder {directory} cannot be made: {error.strerror}. Give another"
        ) from error
    return EmbeddedLog.open(directory / "log", segment_bytes=config.segment_bytes)


class OpenRuntime:
    """A :class:`eventstore.views.Runtime`: one log and this process's view of it."""

    def __init__(self, source: Log, views: Path, config: StoreConfig, temporary: Path | None = None) -> None:
        """Takes over the log; ``temporary`` is a folder that is removed at the end."""
        self._log = source
        self._config = config
        self._temporary = temporary
        self._uses = 1
        self._closed = False
        self._forked = False
        self._lock = threading.Lock()
        self._index: tuple[int, Metric, str, bool] | None = None
        self._failed = False
        try:
            self._lease = Lease.take(views)
            try:
                self._view = self._open_view()
            except BaseException:
                self._lease.release()
                raise
        except BaseException:
            self._log.close()
            raise
        self._committer = Committer(self._append)
        local = source.end_is_local
        self._follower = Follower(
            self.catch_up if local else self._poll, config.follow_interval if local else 0.0
        )
        _all.add(self)

    # ------------------------------------------------------------------ what faces use

    @property
    def log(self) -> Log:
        return self._log

    @property
    def view(self) -> View:
        return self._view

    @property
    def applied(self) -> Position:
        return self._projector.position

    @property
    def stopped(self) -> EventStoreError | None:
        return self._projector.stopped

    def check(self) -> None:
        if self._closed:
            if self._forked:
                raise StoreForked(
                    f"the store at {self._log.location} was opened before this process was forked; "
                    "open it again here (it is safe beside the parent's)"
                )
            raise StoreClosed("the store is closed; open it again to use it")

    def prepare(self, records: Sequence[Record]) -> Batch:
        self.check()
        if self._projector.stopped is not None:
            raise self._projector.stopped
        return self._log.prepare(records)

    def write(self, batch: Batch) -> Written:
        self.check()
        return self._committer.write(batch)

    async def awrite(self, batch: Batch) -> Written:
        self.check()
        return await self._committer.awrite(batch)

    def catch_up(self) -> None:
        if self._failed:
            self._reopen()
        if not self._log.end_is_local:
            self.wait_for(self._log.high_water_mark(), self._config.wait_timeout)
        elif self._log.ahead_of(self._projector.position):
            self._projector.catch_up()

    def wait_for(self, position: Position, timeout: float) -> None:
        self.check()
        if not self._projector.wait_for(position, timeout):
            raise ViewBehind(
                f"the view stands at {self._projector.position}, not yet at {position}, after {timeout} s; "
                "is the writer of that position on this log?"
            )

    def use_vectors(self, dims: int, distance: Metric, model: str, exact: bool) -> None:
        with self._projector.hold():
            self._view.use_vectors(dims, distance, model, exact)
            self._index = (dims, distance, model, exact)

    def retain(self) -> bool:
        """One more use, unless the runtime is closing."""
        with self._lock:
            if self._uses == 0 or self._closed:
                return False
            self._uses += 1
            return True

    def release(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._uses -= 1
            if self._uses:
                return
        self.close()

    def close(self) -> None:
        """Write what is queued, save the views, release everything. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._committer.close()
        self._follower.stop(STOP_SECONDS)
        try:
            self._view.close()
        finally:
            self._lease.release()
            self._log.close()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def forked(self) -> None:
        """Called in a forked child: its copies of locks, files and threads are not to be touched."""
        self._forked = self._closed = True
        # Freeing RocksDB's objects here would wait for threads that exist only in the parent,
        # and write to files the parent has open. They are kept alive for good.
        for owned in (self._view, self._view.db, self._projector, self._log):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owned))

    # ------------------------------------------------------------------ writing

    def _append(self, batches: Sequence[Batch]) -> list[Written | Exception]:
        if self._failed:
            self._reopen()
        failure: list[EventStoreError] = []

        def show(lists: Sequence[Sequence[StoredRecord]]) -> None:
            """Between durable and announced: whoever sees the new end finds it applied here."""
            try:
                self._projector.apply(lists)
            except EventStoreError as error:
                failure.append(error)

        appended = self._log.append(batches, show)
        written = [records for records in appended if not isinstance(records, LogError)]
        if written and not failure and not self._log.end_is_local:
            try:
                self._show_own(written)
            except EventStoreError as error:
                failure.append(error)
        if failure:
            failed = ViewBehind(f"the write is in the log, but the view does not show it: {failure[0]}")
            failed.__cause__ = failure[0]
            self._failed = self._failed or isinstance(failure[0], ViewError)
            return [records if isinstance(records, LogError) else failed for records in appended]
        return [
            records if isinstance(records, LogError) else Written(records, self._projector.outcomes(records))
            for records in appended
        ]

    def _show_own(self, written: Sequence[list[StoredRecord]]) -> None:
        """Apply what follows on the view's position at once; wait for the follower to bring the rest."""
        self._projector.offer(written)
        for records in written:
            self.wait_for(after(self._projector.position, records), self._config.wait_timeout)

    def _poll(self) -> None:
        """Apply what the log sends next; for a log whose end is not known here."""
        if self._failed:
            self._reopen()
        if self._projector.stopped is not None:
            time.sleep(POLL_SECONDS)
            return
        chunks = self._log.poll(self._projector.position, POLL_SECONDS)
        if chunks:
            self._projector.apply_chunks(chunks)

    def _reopen(self) -> None:
        """Open the view anew after a write to it failed: RocksDB may not recover by itself."""
        with self._projector.hold():
            if not self._failed:
                return
            with contextlib.suppress(ViewError):
                self._view.close()
            self._view = self._open_view()
            if self._index is not None:
                self._view.use_vectors(*self._index)
            self._failed = False
            log.warning("the view in %s is in use again", self._lease.directory)

    # ------------------------------------------------------------------ opening

    def _open_view(self) -> MaterializedView:
        directory = self._lease.directory
        if (directory / "damaged").exists():
            self._set_aside(directory, "it was found damaged")
        try:
            view = self._build(directory)
        except ViewDamaged as error:
            self._set_aside(directory, str(error))
            view = self._build(directory)
        return view

    def _build(self, directory: Path) -> MaterializedView:
        view = MaterializedView(directory, self._log.log_id, self._config.cache_bytes)
        try:
            self._projector = Projector(self._log, view)
            self._catch_up()
        except BaseException:
            view.close()
            raise
        return view

    def _set_aside(self, directory: Path, why: str) -> None:
        """Views hold nothing the log does not: a damaged one is removed, and built again."""
        log.warning("rebuilding the view in %s from the log, which is intact: %s", directory, why)
        for name in ("rocksdb", "vectors"):
            shutil.rmtree(directory / name, ignore_errors=True)
        (directory / "damaged").unlink(missing_ok=True)

    def _catch_up(self) -> None:
        started = time.monotonic()
        first = self._projector.position
        bar: Progress | None = None
        task = None

        def progress(position: Position, end: Position) -> None:
            nonlocal bar, task
            if time.monotonic() - started < PROGRESS_AFTER or not sys.stderr.isatty():
                return
            if bar is None:
                bar = Progress(
                    TextColumn("catching up with the log"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeRemainingColumn(),
                    transient=True,
                )
                bar.start()
                task = bar.add_task("", total=first.behind(end))
            assert task is not None
            bar.update(task, completed=first.behind(position), total=first.behind(end))

        try:
            self._projector.catch_up(progress)
        finally:
            if bar is not None:
                bar.stop()
        seconds = time.monotonic() - started
        if seconds >= PROGRESS_AFTER:
            count = first.behind(self._projector.position)
            log.info("caught up with %d events in %.1f s (%.0f/s)", count, seconds, count / seconds)


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
