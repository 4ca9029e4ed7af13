"""Rebuild: a new view is made from the log while the old one serves, then takes its place.

Nobody ever sees a mixture or an empty store: the exchange is one reference in the process that
serves, and one name on disk. A rebuild that is cancelled or killed is continued by the next one.
Vectors travel in the log, so no embedding model is called.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from eventstore import EventStore
from eventstore.checkpoint.place import FOLDER, find_beside
from eventstore.config import OnUndecodable, StoreConfig
from eventstore.connection import parse
from eventstore.errors import IndexMismatch, InvalidInput
from eventstore.log.base import Log
from eventstore.log.position import Position
from eventstore.status import LISTED, QuarantinedEvent
from projector import directories
from projector.beside import Beside, NewView
from projector.checkpoints.beside import NewCheckpoints
from projector.lease import Lease
from projector.places import open_log, require, views_of
from projector.progress import Bar
from projector.projections import quarantine as aside
from projector.runtime import OpenRuntime, runtime_of
from projector.vectors import manifest

log = logging.getLogger("projector.rebuild")

TAKEN_SECONDS: Final = 30.0
"""How long a command waits for the process that has the view to take over the new one."""
LOOK_SECONDS: Final = 0.05

B = TypeVar("B", bound=Beside[Any])
Make = Callable[[Log, Path, int, OnUndecodable], B]
"""Opens or begins a new view of a log, in a folder and with so many bytes of cache."""


class Rebuilt(BaseModel):
    """What a rebuild came to."""

    model_config = ConfigDict(frozen=True)

    directory: str
    """The view directory."""
    outcome: Literal["exchanged", "ready", "stopped"]
    """``exchanged``: the new view is in use. ``ready``: the process that has the directory takes it
    over, or the next one to open it. ``stopped``: it was stopped; the next rebuild continues."""
    position: str
    """Where the new view stands."""
    continued: int
    """Events that an earlier, unfinished rebuild had applied already."""
    events: int
    """Events applied by this one."""
    seconds: float
    quarantined: int
    """How many events the new view has set aside."""
    quarantine: list[QuarantinedEvent]
    """The first of them, by partition and offset."""

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / self.seconds if self.seconds else 0.0


def rebuild(store: EventStore | OpenRuntime, *, stop: threading.Event | None = None) -> Rebuilt:
    """Rebuild the view of an open store, which goes on serving.

    Setting ``stop``, or Ctrl-C, ends it early; the next rebuild continues. Raises ``ViewError``
    when one is running already or the disk is full, ``LogDamaged``, and what stops the projection.
    """
    runtime = store if isinstance(store, OpenRuntime) else runtime_of(store)
    runtime.check()
    home = runtime.directory
    with directories.alone(home):
        directories.withdraw(home)
        started = time.monotonic()
        made = _begin(runtime.log, home, runtime.config, NewView)
        exchanged = False
        try:
            _advance(made, runtime.applied, stop)
            listed = _set_aside(made)
            if stop is None or not stop.is_set():
                runtime.exchange(made)
                exchanged = True
        finally:
            if not exchanged:
                made.close()
        return _report(home, made, started, "exchanged" if exchanged else "stopped", listed)


def rebuild_at(
    conn_string: str | Path,
    *,
    views: str | Path | None = None,
    number: int | None = None,
    stop: threading.Event | None = None,
    wait: float = TAKEN_SECONDS,
    quarantine: bool = False,
) -> list[Rebuilt]:
    """Rebuild the views kept for a store and for its checkpoints, or only that in directory ``number``.

    A directory that no process has gets its new view at once. Where one has it, that process
    takes the new view over when it is ready; this waits ``wait`` seconds for it, but for one of
    checkpoints, which the next process to open the directory takes over. With
    ``quarantine`` events that cannot be applied are set aside instead of ending it.
    Raises ``InvalidInput`` where there is no such view, and what :func:`rebuild` raises.
    """
    config = StoreConfig(on_undecodable="quarantine" if quarantine else "stop")
    place = parse(conn_string)
    require(place)
    homes = directories.numbered(views_of(place, views))
    if number is not None:
        homes = [home for home in homes if int(home.name) == number]
        if not homes:
            raise InvalidInput(f"there is no view directory {number}; `projector status` lists them")
    source = open_log(place, config)
    beside: Log | None = None
    try:
        done = [_rebuild_in(source, home, config, stop, wait, NewView) for home in homes]
        beside = None if number is not None else find_beside(source, config.segment_bytes)
        if beside is not None:
            for home in directories.numbered(views_of(place, views) / FOLDER):
                done.append(_rebuild_in(beside, home, config, stop, 0.0, NewCheckpoints))
        return done
    finally:
        source.close()
        if beside is not None:
            beside.close()


def _rebuild_in(
    source: Log, home: Path, config: StoreConfig, stop: threading.Event | None, wait: float, make: Make[B]
) -> Rebuilt:
    started = time.monotonic()
    with directories.alone(home):
        directories.withdraw(home)
        made = _begin(source, home, config, make)
        try:
            _advance(made, source.high_water_mark(), stop)
            listed = _set_aside(made)
            stopped = stop is not None and stop.is_set()
            if not stopped and isinstance(made, NewView):
                _make_index(home, made)
        finally:
            made.close()
        if stopped:
            return _report(home, made, started, "stopped", listed)
        lease = Lease.of(home)
        if lease is not None:
            directories.make_current(made.folder)
            directories.remove_unused(home)
            lease.release()
            return _report(home, made, started, "exchanged", listed)
        directories.make_ready(made.folder)
    taken = _wait_until_taken(home, made.folder, wait)
    return _report(home, made, started, "exchanged" if taken else "ready", listed)


def _begin(source: Log, home: Path, config: StoreConfig, make: Make[B]) -> B:
    """A new view, or the one that was begun.

    Where that has set events aside it is made again: they may be decoded by now, and come in order.
    """
    folder = directories.beside(home)
    made = make(source, folder, config.cache_bytes, config.on_undecodable)
    if made.view.quarantine.count:
        made.close()
        directories.empty(folder)
        made = make(source, folder, config.cache_bytes, config.on_undecodable)
    return made


def _advance(made: Beside[Any], goal: Position, stop: threading.Event | None) -> None:
    first = made.position
    with Bar(f"rebuilding the view in {made.folder.parent}", log) as bar:

        def show(position: Position, end: Position) -> None:
            bar.update(first.behind(position), first.behind(end))

        if stop is not None and stop.is_set():
            return
        made.advance(progress=show, stop=stop, limit=goal)
        bar.update(first.behind(made.position), first.behind(goal))


def _make_index(home: Path, made: NewView) -> None:
    """Save the vectors in the shape that the old view had them in, so that they need not be fed later."""
    owner = manifest.owner(directories.current(home) / "vectors")
    if owner is not None:
        with contextlib.suppress(IndexMismatch):
            made.view.use_vectors(owner.dims, owner.metric, owner.identity.partition("|")[2], False)


def _wait_until_taken(home: Path, folder: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while directories.current(home) != folder:
        if time.monotonic() >= deadline or directories.ready(home) != folder:
            return directories.current(home) == folder
        time.sleep(LOOK_SECONDS)
    return True


def _set_aside(made: Beside[Any]) -> list[QuarantinedEvent]:
    return [QuarantinedEvent.of(row) for row in islice(aside.read(made.view.db.default), LISTED)]


def _report(
    home: Path,
    made: Beside[Any],
    started: float,
    outcome: Literal["exchanged", "ready", "stopped"],
    listed: list[QuarantinedEvent],
) -> Rebuilt:
    start = Position.start(len(made.position))
    return Rebuilt(
        directory=str(home),
        outcome=outcome,
        position=str(made.position),
        continued=start.behind(made.first),
        events=made.first.behind(made.position),
        seconds=time.monotonic() - started,
        quarantined=made.view.quarantine.count,
        quarantine=listed,
    )
