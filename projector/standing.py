"""Where a log and all its views on this machine stand, seen from outside.

Nothing is opened for writing, caught up or taken: it works while other processes use the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from eventstore.checkpoint.place import FOLDER, find_beside
from eventstore.config import StoreConfig
from eventstore.connection import FolderPlace, parse
from eventstore.errors import EventStoreError, InvalidConfig, LogError, LogUnavailable, ViewError
from eventstore.log.base import Log
from eventstore.log.position import Position
from eventstore.status import LISTED, QuarantinedEvent
from projector import directories
from projector.checkpoints import frozen as frozen_checkpoints
from projector.checkpoints import tables
from projector.frozen import Source, check_belongs, of_directory
from projector.frozen import Standing as Made
from projector.lease import Lease
from projector.places import Place, as_it_is, folder_of, name_of, open_log, require, views_of
from projector.projections import namespaces, quarantine
from projector.rocks import scan_keys


class ViewStanding(BaseModel):
    """One view directory."""

    model_config = ConfigDict(frozen=True)

    directory: str
    owner: int | None
    """Process id of who has it open; ``None`` when it is free. The lock ends with its process."""
    position: str | None
    """``None`` when the view cannot be read."""
    lag: int | None
    """How many offsets it is behind the log."""
    memories: int | None
    """How many there are; ``None`` for a view of checkpoints, as ``threads`` is for the others."""
    threads: int | None
    quarantined: int | None
    """How many events could not be applied and were set aside."""
    quarantine: list[QuarantinedEvent]
    """The first of them, by partition and offset."""
    rebuild: Literal["running", "unfinished", "ready"] | None
    """What a rebuild has left, if anything."""
    bytes: int
    problem: str | None
    """Why it cannot be read, or does not belong to this log."""


class Standing(BaseModel):
    """A log and its views."""

    model_config = ConfigDict(frozen=True)

    log: str
    log_id: str | None
    end: str | None
    """``None``, as is the id, where the log cannot be opened."""
    bytes: int | None
    """Size of an embedded log."""
    problem: str | None
    """Why the log cannot be opened."""
    views: list[ViewStanding]
    checkpoints: Standing | None
    """The log of checkpoints beside it, and their views, if there ever were any."""


class _Found(NamedTuple):
    """A view that can be read."""

    view: Made
    rows: Source
    memories: int | None
    threads: int | None


Look = Callable[[Path], AbstractContextManager[_Found]]


def standing(conn_string: str | Path, *, views: str | Path | None = None) -> Standing:
    """Where everything stands. Raises ``InvalidConfig`` where there is neither a log nor a view of one."""
    place = parse(conn_string)
    require(place)
    at = views_of(place, views)
    homes = list(directories.numbered(at))
    size = directories.size(folder_of(place) / "log") if isinstance(place, FolderPlace) else None
    config = StoreConfig()
    source: Log | None = None
    try:
        try:
            source = open_log(as_it_is(place), config)
            found = _of(source, homes, _memories, size)
        except (LogError, InvalidConfig) as error:
            if not homes:
                raise
            found = _without_log(name_of(place), homes, _memories, size, error)
        return found.model_copy(update={"checkpoints": _beside(source, place, at / FOLDER, config)})
    finally:
        if source is not None:
            source.close()


def _of(source: Log, homes: Sequence[Path], look: Look, size: int | None) -> Standing:
    """Raises ``LogError`` where the log does not tell its end."""
    end = str(source.high_water_mark())
    found = [_view(source, home, look) for home in homes]
    return Standing(
        log=source.location,
        log_id=source.log_id,
        end=end,
        bytes=size,
        problem=None,
        views=found,
        checkpoints=None,
    )


def _without_log(
    name: str, homes: Sequence[Path], look: Look, size: int | None, error: EventStoreError
) -> Standing:
    found = [_view(None, home, look) for home in homes]
    problem = f"{type(error).__name__}: {error}"
    return Standing(
        log=name, log_id=None, end=None, bytes=size, problem=problem, views=found, checkpoints=None
    )


def _beside(memories: Log | None, place: Place, views: Path, config: StoreConfig) -> Standing | None:
    """Where the checkpoints stand; ``memories`` is their log, where that could be opened."""
    homes = list(directories.numbered(views))
    size, name = None, f"{name_of(place)}.{FOLDER}"
    if isinstance(place, FolderPlace):
        folder = folder_of(place) / FOLDER
        size, name = directories.size(folder) if folder.is_dir() else None, str(folder)
    source: Log | None = None
    try:
        source = None if memories is None else find_beside(memories, config.segment_bytes)
        if source is not None:
            return _of(source, homes, _checkpoints, size)
        gone = LogUnavailable("the log of these checkpoints is not there, or its memories' log is not")
        return _without_log(name, homes, _checkpoints, size, gone) if homes else None
    except (LogError, InvalidConfig) as error:
        return _without_log(name, homes, _checkpoints, size, error)
    finally:
        if source is not None:
            source.close()


@contextmanager
def _memories(home: Path) -> Iterator[_Found]:
    with of_directory(home) as frozen:
        memories = namespaces.count(frozen.families["namespaces"], b"")
        yield _Found(frozen, frozen.families["default"], memories, None)


@contextmanager
def _checkpoints(home: Path) -> Iterator[_Found]:
    with frozen_checkpoints.of_directory(home) as frozen:
        threads = sum(1 for _ in scan_keys(frozen.rows, tables.THREAD))
        yield _Found(frozen, frozen.rows, None, threads)


def sets_aside(conn_string: str | Path, *, views: str | Path | None = None) -> bool:
    """Whether a view kept here, of checkpoints too, has set events aside; one that cannot be read has not."""
    at = views_of(parse(conn_string), views)
    looks = ((at, _memories), (at / FOLDER, _checkpoints))
    for look, home in ((look, home) for folder, look in looks for home in directories.numbered(folder)):
        with contextlib.suppress(ViewError), look(home) as found:
            if next(quarantine.read(found.rows), None) is not None:
                return True
    return False


def _view(source: Log | None, home: Path, look: Look) -> ViewStanding:
    position: Position | None = None
    end: Position | None = None
    memories: int | None = None
    threads: int | None = None
    problem: str | None = None
    quarantined: int | None = None
    listed: list[QuarantinedEvent] = []
    try:
        with look(home) as found:
            position, memories, threads = found.view.position, found.memories, found.threads
            rows = quarantine.read(found.rows)
            listed = [QuarantinedEvent.of(row) for row in islice(rows, LISTED)]
            quarantined = len(listed) + sum(1 for _ in rows)
            if source is not None:
                # Asked for each: a view goes on while others are looked at.
                end = source.high_water_mark()
                position = position or Position.start(source.partitions)
                check_belongs(found.view, source.log_id, end)
    except (ViewError, LogError) as error:
        problem = str(error)
    lag: int | None = None
    if position is not None and end is not None and len(position) == len(end):
        lag = position.behind(end)
    return ViewStanding(
        directory=str(home),
        owner=Lease.holder(home),
        position=None if position is None else str(position),
        lag=lag,
        memories=memories,
        threads=threads,
        quarantined=quarantined,
        quarantine=listed,
        rebuild=_rebuild(home),
        bytes=directories.size(home),
        problem=problem,
    )


def _rebuild(home: Path) -> Literal["running", "unfinished", "ready"] | None:
    if directories.ready(home) is not None:
        return "ready"
    if not directories.begun(home):
        return None
    with directories.building(home) as free:
        return "unfinished" if free else "running"
