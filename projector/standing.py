"""Where a log and all its views on this machine stand, seen from outside.

Nothing is opened for writing, caught up or taken: it works while other processes use the store.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from eventstore.config import StoreConfig
from eventstore.connection import FolderPlace, parse
from eventstore.errors import InvalidConfig, LogError, ViewError
from eventstore.log.base import Log
from eventstore.log.position import Position
from eventstore.status import LISTED, QuarantinedEvent
from projector import directories
from projector.frozen import check_belongs, of_directory
from projector.lease import Lease
from projector.places import Place, folder_of, name_of, open_log, require, views_of
from projector.projections import namespaces, quarantine


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


def standing(conn_string: str | Path, *, views: str | Path | None = None) -> Standing:
    """Where everything stands. Raises ``InvalidConfig`` where there is neither a log nor a view of one."""
    place = parse(conn_string)
    require(place)
    homes = list(directories.numbered(views_of(place, views)))
    size = directories.size(folder_of(place) / "log") if isinstance(place, FolderPlace) else None
    source: Log | None = None
    try:
        source = open_log(_as_it_is(place), StoreConfig())
        end = str(source.high_water_mark())
    except (LogError, InvalidConfig) as error:
        if source is not None:
            source.close()
        if not homes:
            raise
        problem = f"{type(error).__name__}: {error}"
        found = [_view(None, home) for home in homes]
        return Standing(log=name_of(place), log_id=None, end=None, bytes=size, problem=problem, views=found)
    try:
        found = [_view(source, home) for home in homes]
        return Standing(
            log=source.location, log_id=source.log_id, end=end, bytes=size, problem=None, views=found
        )
    finally:
        source.close()


def _as_it_is(place: Place) -> Place:
    """The place for one who only looks: a topic that is not there is not made."""
    if isinstance(place, FolderPlace):
        return place
    return place.model_copy(update={"options": place.options.model_copy(update={"create": False})})


def sets_aside(conn_string: str | Path, *, views: str | Path | None = None) -> bool:
    """Whether a view kept here has set events aside; one that cannot be read has not."""
    for home in directories.numbered(views_of(parse(conn_string), views)):
        with contextlib.suppress(ViewError), of_directory(home) as frozen:
            if next(quarantine.read(frozen.families["default"]), None) is not None:
                return True
    return False


def _view(source: Log | None, home: Path) -> ViewStanding:
    position: Position | None = None
    end: Position | None = None
    memories: int | None = None
    problem: str | None = None
    quarantined: int | None = None
    listed: list[QuarantinedEvent] = []
    try:
        with of_directory(home) as frozen:
            position = frozen.position
            memories = namespaces.count(frozen.families["namespaces"], b"")
            rows = quarantine.read(frozen.families["default"])
            listed = [QuarantinedEvent.of(row) for row in islice(rows, LISTED)]
            quarantined = len(listed) + sum(1 for _ in rows)
            if source is not None:
                # Asked for each: a view goes on while others are looked at.
                end = source.high_water_mark()
                position = position or Position.start(source.partitions)
                check_belongs(frozen, source.log_id, end)
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
