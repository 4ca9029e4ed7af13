"""Verify: the log is read whole, and every view is held against a replay of it.

The replay goes into a scratch view, so the live one is not disturbed; both are read as they stood
at one position. What is found is named by family, memory and place; what memories say is never
part of a report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict

from eventstore import EventStore
from eventstore.checkpoint.place import FOLDER, find_beside
from eventstore.config import StoreConfig
from eventstore.connection import parse
from eventstore.errors import LogDamaged, LogMismatch, ViewError
from eventstore.log.base import Log
from eventstore.log.position import Position
from projector import directories
from projector.beside import NewView
from projector.checkpoints import comparing as checkpoints
from projector.checkpoints import frozen as frozen_checkpoints
from projector.checkpoints.beside import NewCheckpoints
from projector.comparing import compare, compare_index
from projector.frozen import Frozen, Standing, check_belongs, of_directory, of_view
from projector.places import open_log, require, views_of
from projector.progress import Bar
from projector.runner import Progress
from projector.runtime import OpenRuntime, runtime_of
from projector.tally import Difference, Tally

log = logging.getLogger("projector.integrity")

LOOKS: Final = 2
"""How often another process's view is looked at before a difference in it is believed."""


class Replay(Protocol):
    """A view that is made from the log, to be compared with."""

    @property
    def position(self) -> Position: ...

    def advance(self, limit: Position, progress: Progress) -> None:
        """Apply the log up to a position. Raises ``LogDamaged``."""

    def close(self) -> None:
        """Close it."""


R = TypeVar("R", bound=Replay)
F = TypeVar("F", bound=Standing)


class Subject(NamedTuple, Generic[R, F]):
    """What is verified: views of memories, or of checkpoints."""

    of_directory: Callable[[Path], AbstractContextManager[F]]
    """The view in a view directory, standing still."""
    replay: Callable[[Log, Path, int], R]
    """A new one, in a folder and with so many bytes of cache."""
    compare: Callable[[R, F], Tally]


class Report(BaseModel):
    """What a verification found."""

    model_config = ConfigDict(frozen=True)

    view: str | None
    """The view directory; ``None`` where only the log was read."""
    position: str | None
    """Up to where view and replay were compared."""
    end: str
    """Where the log ends."""
    records: int
    """Records of the log read, each with its checksum."""
    rows: dict[str, int]
    """Rows compared, by family."""
    differences: dict[str, int]
    """Rows that differ, by family; families without any are left out."""
    first: Difference | None
    """The first difference, if there is one."""
    damage: str | None
    """What is wrong with the log, with file and position, if anything is."""
    seconds: float

    @property
    def exit_code(self) -> int:
        """0: all agree. 1: the view differs, a rebuild repairs it. 2: the log itself is damaged."""
        if self.damage is not None:
            return 2
        return 1 if self.first is not None else 0


def verify(store: EventStore | OpenRuntime) -> Report:
    """Verify the log of an open store, and the view it reads.

    The store goes on serving meanwhile. Raises ``LogUnavailable`` where the log cannot be read.
    """
    runtime = store if isinstance(store, OpenRuntime) else runtime_of(store)
    runtime.check()
    view = runtime.materialized
    with view.read(), _Check(MEMORIES, runtime.log, runtime.directory.parent, runtime.config) as check:
        check.compare(runtime.directory, of_view(view))
        return check.reports()[0]


def verify_at(conn_string: str | Path, *, views: str | Path | None = None) -> list[Report]:
    """Verify a log and all views kept for it here, those of other processes too.

    Then the log of its checkpoints and their views, if there are any. A log without views gives one
    report. Raises ``InvalidConfig`` where there is no store, and ``LogDamaged`` where a log cannot
    even be opened.
    """
    config = StoreConfig()
    place = parse(conn_string)
    require(place)
    at = views_of(place, views)
    source = open_log(place, config)
    try:
        found = _all(MEMORIES, source, at, config)
        beside = find_beside(source, config.segment_bytes)
    finally:
        source.close()
    if beside is None:
        return found
    try:
        return found + _all(CHECKPOINTS, beside, at / FOLDER, config)
    finally:
        beside.close()


def _all(subject: Subject[R, F], source: Log, views: Path, config: StoreConfig) -> list[Report]:
    with _Check(subject, source, views, config) as check:
        for home in directories.numbered(views):
            check.look(home)
        return check.reports()


class _Check(Generic[R, F]):
    """One verification: a replay that goes on from view to view, and then to the log's end."""

    def __init__(self, subject: Subject[R, F], source: Log, views: Path, config: StoreConfig) -> None:
        self._subject = subject
        self._log = source
        self._views = views
        self._config = config
        self._started = time.monotonic()
        self._end = source.high_water_mark()
        self._furthest = Position.start(source.partitions)
        self._damage: str | None = None
        self._scratch = ExitStack()
        self._replay: R | None = None
        self._found: list[Report] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def look(self, home: Path) -> None:
        """Compare the view in a directory. A difference is believed when it is seen twice.

        Its process goes on writing while the files are being opened.
        """
        for attempt in range(LOOKS):
            try:
                with self._subject.of_directory(home) as frozen:
                    self.compare(home, frozen)
            except ViewError as error:
                self._note(home, None, _unusable(str(error)))
            if self._found[-1].first is None or attempt == LOOKS - 1:
                return
            self._found.pop()

    def compare(self, home: Path, frozen: F) -> None:
        """Compare one view with a replay to where it stands."""
        try:
            check_belongs(frozen, self._log.log_id, self._log.high_water_mark())
        except LogMismatch as error:
            self._note(home, frozen.position, _unusable(str(error)))
            return
        position = frozen.position or Position.start(self._log.partitions)
        try:
            replayed = self._replay_to(position)
        except LogDamaged as error:
            self._damage = str(error)
            self._note(home, position, Tally())
            return
        self._note(home, position, self._subject.compare(replayed, frozen))

    def reports(self) -> list[Report]:
        """What was found, once the rest of the log is read; about the log alone where there is no view."""
        self._read_rest()
        found = self._found or [self._report(None, None, Tally())]
        records = Position.start(self._log.partitions).behind(self._furthest)
        same = {"records": records, "damage": self._damage, "seconds": time.monotonic() - self._started}
        return [report.model_copy(update=same) for report in found]

    def _replay_to(self, position: Position) -> R:
        made = self._replay
        if made is not None and not position.covers(made.position):
            self._drop()
            made = None
        if made is None:
            folder = self._scratch.enter_context(directories.scratch(self._views))
            made = self._replay = self._subject.replay(self._log, folder, self._config.cache_bytes)
        first = made.position
        with Bar("replaying the log", log) as bar:
            made.advance(position, lambda at, end: bar.update(first.behind(at), first.behind(end)))
        if made.position.covers(self._furthest):
            self._furthest = made.position
        return made

    def _read_rest(self) -> None:
        if self._damage is not None:
            return
        first = self._furthest
        try:
            with Bar("reading the rest of the log", log) as bar:
                for chunk in self._log.chunks(first):
                    self._furthest = chunk.position
                    bar.update(first.behind(self._furthest), first.behind(self._end))
        except LogDamaged as error:
            self._damage = str(error)

    def _drop(self) -> None:
        made, self._replay = self._replay, None
        if made is not None:
            made.close()
        self._scratch.close()

    def _note(self, home: Path, position: Position | None, tally: Tally) -> None:
        self._found.append(self._report(home, position, tally))

    def _report(self, home: Path | None, position: Position | None, tally: Tally) -> Report:
        return Report(
            view=None if home is None else str(home),
            position=None if position is None else str(position),
            end=str(self._end),
            records=0,
            rows=tally.rows,
            differences=tally.differences,
            first=tally.first,
            damage=None,
            seconds=0.0,
        )


def _unusable(why: str) -> Tally:
    tally = Tally()
    tally.differs("view", lambda: Difference(family="view", expected="a view of this log", found=why))
    return tally


def _compared(replayed: NewView, frozen: Frozen) -> Tally:
    tally = compare(of_view(replayed.view), frozen)
    compare_index(tally, frozen)
    return tally


# One replay serves views of both policies: one that stopped stands in front of what is set aside.
MEMORIES: Final = Subject(of_directory, partial(NewView, on_undecodable="quarantine"), _compared)
CHECKPOINTS: Final = Subject(
    frozen_checkpoints.of_directory,
    partial(NewCheckpoints, on_undecodable="quarantine"),
    checkpoints.compare,
)
