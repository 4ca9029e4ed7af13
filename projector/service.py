"""The projector as a process of its own: it takes a view directory, catches up, and follows the log.

Applications attach to the view it keeps, or keep views of their own. It answers for its health
while it is still catching up, waits for a log that cannot be reached yet, and stops when it is
asked to: after the commit that is under way, with everything saved and its directory free.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from eventstore.config import StoreConfig
from eventstore.connection import FolderPlace, parse
from eventstore.errors import EventStoreError, IndexMismatch, InvalidConfig
from eventstore.log.position import Position
from projector import directories
from projector.endpoints import Endpoints
from projector.lease import Lease
from projector.metrics import Exposition, Facts, Meter, Trouble
from projector.places import open_log, views_of
from projector.runtime import OpenRuntime
from projector.vectors import manifest

log = logging.getLogger("projector.service")

LOOK_SECONDS: Final = 0.25
"""Between looks at the log's end."""
ASK_SECONDS: Final = 1.0
"""The same where it has to be asked for."""
RETRY_SECONDS: Final = 1.0
"""Between attempts to reach a log that does not answer."""


@dataclass(frozen=True)
class Settings:
    """How a projector runs."""

    host: str = "127.0.0.1"
    port: int = 9464
    """0: any free one; the log says which."""
    max_lag: float = 30.0
    """For how many seconds the view may lack something before it is no longer healthy."""
    exclusive: bool = False
    """Whether it is the first view directory or none."""


class _Stopped(Exception):
    """It was asked to stop while it was still catching up."""


class Service:
    """One run of a projector. Use it from the main thread, since it takes the signals."""

    def __init__(
        self, conn_string: str, views: Path | None, config: StoreConfig, settings: Settings | None = None
    ) -> None:
        """Nothing is opened yet. Raises ``InvalidConfig``."""
        self._place = parse(conn_string, config.kafka)
        if isinstance(self._place, FolderPlace) and self._place.directory is None:
            raise InvalidConfig("a temporary store has no projector of its own; give a folder or a topic")
        self._views = views_of(self._place, views)
        self._config = config
        self._settings = settings or Settings()
        self._stop = threading.Event()
        self._meter = Meter()
        self._runtime: OpenRuntime | None = None
        self._trouble: Trouble | None = None
        self._unreachable: str | None = None
        self._exposition = Exposition(self._meter, self._facts)

    def run(self) -> None:
        """Run until a SIGTERM, a SIGINT, or :meth:`stop`. Raises what makes running impossible."""
        earlier = {each: signal.signal(each, self._signalled) for each in (signal.SIGTERM, signal.SIGINT)}
        endpoints: Endpoints | None = None
        try:
            settings = self._settings
            endpoints = Endpoints(settings.host, settings.port, self.health, self._exposition.text)
            log.info("listening", extra={"host": settings.host, "port": endpoints.port})
            with contextlib.suppress(_Stopped):
                self._runtime = self._open()
                self._follow(self._runtime)
        finally:
            self._stop.set()
            if self._runtime is not None:
                position = self._runtime.applied
                self._runtime.release()
                log.info("stopped", extra={"position": str(position)})
            if endpoints is not None:
                endpoints.close()
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Ask it to stop, from any thread."""
        self._stop.set()

    def health(self) -> tuple[bool, Mapping[str, Any]]:
        """Whether the view is caught up and followed, and where it stands."""
        runtime = self._runtime
        if runtime is not None and runtime.log.end_is_local and not self._stop.is_set():
            self._look(runtime)
        lags = self._meter.lags()
        seconds = max((each.seconds for each in lags), default=0.0)
        reason: str | None = None
        if self._stop.is_set():
            reason = "it is stopping"
        elif runtime is None:
            reason = self._unreachable or "it is catching up with the log"
        elif runtime.trouble is not None:
            reason = f"{type(runtime.trouble).__name__}: {runtime.trouble}"
        elif self._unreachable is not None:
            reason = self._unreachable
        elif not lags:
            reason = "it has not looked at the log's end yet"
        elif seconds > self._settings.max_lag:
            reason = f"the view has been behind for {seconds:.1f} s, more than {self._settings.max_lag} s"
        return reason is None, {
            "healthy": reason is None,
            "reason": reason,
            "position": ",".join(str(each.position) for each in lags) or None,
            "end": ",".join(str(each.end) for each in lags) or None,
            "lag_records": sum(each.records for each in lags),
            "lag_seconds": round(seconds, 3),
            "directory": None if runtime is None else str(runtime.directory),
            "pid": os.getpid(),
        }

    # ------------------------------------------------------------------ opening

    def _open(self) -> OpenRuntime:
        while True:
            try:
                started = time.monotonic()
                runtime = OpenRuntime(
                    open_log(self._place, self._config),
                    self._views,
                    self._config,
                    lease=Lease.only if self._settings.exclusive else Lease.take,
                    progress=self._caught_up_to,
                )
            except EventStoreError as error:
                if not error.retriable:
                    raise
                self._note(error)
                self._unreachable = str(error)
                log.warning("the log cannot be opened yet: %s", error)
                if self._stop.wait(RETRY_SECONDS):
                    raise _Stopped from None
                continue
            self._unreachable = None
            _keep_index(runtime)
            self._meter.observe(runtime.applied, runtime.applied)
            log.info(
                "caught up",
                extra={
                    "log": runtime.log.location,
                    "directory": str(runtime.directory),
                    "position": str(runtime.applied),
                    "records": self._meter.applied,
                    "seconds": round(time.monotonic() - started, 3),
                },
            )
            return runtime

    def _caught_up_to(self, position: Position, end: Position) -> None:
        self._meter.observe(position, end)
        if self._stop.is_set():
            raise _Stopped

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        # A second one ends the process as if nobody were listening.
        signal.signal(number, signal.SIG_DFL)
        self._stop.set()

    # ------------------------------------------------------------------ following

    def _follow(self, runtime: OpenRuntime) -> None:
        pause = LOOK_SECONDS if runtime.log.end_is_local else ASK_SECONDS
        while not self._stop.wait(pause):
            self._look(runtime)

    def _look(self, runtime: OpenRuntime) -> None:
        # What is applied is read second: it may be ahead of the end that was read, and is not lag.
        try:
            end = runtime.log.high_water_mark()
        except EventStoreError as error:
            if self._unreachable is None:
                log.warning("the log cannot be reached: %s", error)
            self._note(error)
            self._unreachable = str(error)
            return
        if self._unreachable is not None:
            log.info("the log is reached again")
            self._unreachable = None
        self._meter.observe(runtime.applied, end)
        if runtime.trouble is not None:
            self._note(runtime.trouble)

    def _note(self, error: EventStoreError) -> None:
        noted = self._trouble
        if noted is None or (noted.kind, noted.message) != (type(error).__name__, str(error)):
            self._trouble = Trouble(type(error).__name__, str(error), time.time())

    def _facts(self) -> Facts:
        runtime = self._runtime
        memories: int | None = None
        if runtime is not None:
            with contextlib.suppress(EventStoreError), runtime.view.read() as view:
                memories = view.count(b"")
        directory = None if runtime is None else runtime.directory
        quarantined = None if runtime is None else runtime.materialized.quarantine.count
        return Facts(self.health()[0], memories, quarantined, directory, self._trouble)


def _keep_index(runtime: OpenRuntime) -> None:
    """Keep a saved vector index up to date, for stores that will open this directory themselves."""
    owner = manifest.owner(directories.current(runtime.directory) / directories.DATA[1])
    if owner is not None:
        with contextlib.suppress(IndexMismatch):
            runtime.use_vectors(owner.dims, owner.metric, owner.identity.partition("|")[2], False)
