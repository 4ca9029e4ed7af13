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
from functools import partial
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
    ViewBehind,
    ViewDamaged,
    ViewError,
)
from eventstore.log.base import Log
from eventstore.views import IndexSettings, Metric, Ranks, View
from projector import directories
from projector.attached import AttachedRuntime
from projector.beside import NewView
from projector.checkpoints.runtime import open_checkpoints
from projector.lease import Lease
from projector.opening import MEMORIES
from projector.places import name_of, open_embedded, open_log, require, views_of
from projector.projected import ProjectedRuntime, TakeLease
from projector.runner import Progress
from projector.shared import SharedRuntime
from projector.view import MaterializedView

log = logging.getLogger("projector.runtime")

LOOK_SECONDS: Final = 0.5
"""Seconds between looks for a view that another process rebuilt."""
EXCHANGE_RECORDS: Final = 1_000
"""What a rebuilt view may lack when writers are held off for the exchange."""
RETIRE_SECONDS: Final = 60.0
"""How long an exchanged view waits for readers that are still at work in it."""

_open: weakref.WeakValueDictionary[tuple[str, str, bool], SharedRuntime] = weakref.WeakValueDictionary()
_opening = threading.Lock()
_all: weakref.WeakSet[SharedRuntime] = weakref.WeakSet()


def open_runtime(
    conn_string: object,
    views: str | Path | None,
    config: StoreConfig,
    indexed: IndexSettings | None = None,
) -> SharedRuntime:
    """The runtime of a connection string, shared if this process has it open.

    With ``indexed``, vectors go into the index while the view catches up, and are not read back for it.

    Raises ``InvalidConfig`` for a place that cannot be used, ``LogDamaged`` and ``LogMismatch``
    for a log that must not be trusted.
    """
    place = parse(conn_string, config.kafka)
    if isinstance(place, FolderPlace) and place.directory is None:
        if config.attach:
            raise InvalidConfig("a temporary store has no projector to attach to; give a folder or a topic")
        temporary = Path(tempfile.mkdtemp(prefix="eventstore-"))
        return OpenRuntime(
            open_embedded(temporary, config), temporary / "views", config, temporary, indexed=indexed
        )
    views_at = views_of(place, views)
    key = (name_of(place), os.path.realpath(views_at), config.attach)
    with _opening:
        runtime = _open.get(key)
        if runtime is None or not runtime.retain():
            if config.attach:
                require(place)
                source = open_log(place, config)
                runtime = AttachedRuntime(
                    source, views_at, config, partial(open_checkpoints, source, views_at, config)
                )
                _all.add(runtime)
            else:
                runtime = OpenRuntime(open_log(place, config), views_at, config, indexed=indexed)
            _open[key] = runtime
        return runtime


def runtime_of(store: EventStore) -> OpenRuntime:
    """What a store was opened on. Raises ``InvalidType`` for a store on something else."""
    found = store._runtime
    if not isinstance(found, OpenRuntime):
        raise InvalidType(f"this needs a store opened by its path, not one on a {type(found).__name__}")
    return found


class OpenRuntime(ProjectedRuntime[MaterializedView]):
    """A :class:`eventstore.views.Runtime`: one log of memories and this process's view of it."""

    def __init__(
        self,
        source: Log,
        views: Path,
        config: StoreConfig,
        temporary: Path | None = None,
        *,
        indexed: IndexSettings | None = None,
        lease: TakeLease = Lease.take,
        progress: Progress | None = None,
    ) -> None:
        """Takes over the log; ``temporary`` is a folder that is removed at the end.

        ``indexed`` are the settings of the index that the first who opens this will ask for.
        ``lease`` takes a view directory; ``progress`` is told how far the first catch-up is.
        """
        self._temporary = temporary
        self._index = indexed
        beside = partial(open_checkpoints, source, views, config)
        # Before the thread starts that follows the log: it looks at this.
        self._looked = time.monotonic()
        kind = MEMORIES._replace(open=self._open_view)
        super().__init__(source, views, config, kind, beside, lease=lease, progress=progress)
        _all.add(self)

    @property
    def view(self) -> View:
        return self._view

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

    def _end(self) -> None:
        try:
            super()._end()
        finally:
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)

    def _open_view(self, folder: Path, log_id: str, cache_bytes: int) -> MaterializedView:
        view = MaterializedView(folder, log_id, cache_bytes)
        try:
            self._make_index(view)
        except BaseException:
            view.close()
            raise
        return view

    def _look_around(self) -> None:
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            self._take_over()

    def _make_index(self, view: MaterializedView) -> None:
        """Make rankings possible on a view that takes the place of this one, unless the model was changed."""
        if self._index is not None:
            try:
                view.use_vectors(*self._index)
            except IndexMismatch:
                self._index = None

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
