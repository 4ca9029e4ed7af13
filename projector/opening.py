"""Opening the view of a directory: whatever is found there, it ends with one that has caught up.

A view that was rebuilt meanwhile is put to use, one that is damaged is removed and made again
from the log, and a long catch-up shows its progress.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from eventstore.config import StoreConfig
from eventstore.errors import ViewDamaged
from eventstore.log.base import Log
from eventstore.log.position import Position
from projector import directories
from projector.folding import Folding, Folds
from projector.progress import Bar
from projector.runner import Progress, Projected, Projector
from projector.view import MaterializedView

log = logging.getLogger("projector.opening")


class Closable(Projected, Protocol):
    """A view that can be given up again."""

    def close(self) -> None:
        """Release it."""


V = TypeVar("V", bound=Closable)


class Kind(NamedTuple, Generic[V]):
    """What a view is of, and how it is made."""

    open: Callable[[Path, str, int], V]
    """Opens or creates one in a folder, of the log with an id, with so many bytes of cache."""
    folding: Callable[[Any, bool], Folds]


MEMORIES: Final = Kind(MaterializedView, Folding)


def open_view(
    source: Log, home: Path, config: StoreConfig, kind: Kind[V], progress: Progress | None = None
) -> tuple[V, Projector]:
    """The view in a directory that this process has the lease of, caught up with the log.

    ``progress`` is told of every commit; what it raises ends the catch-up there.

    Raises ``LogMismatch`` for a view that the log does not explain, and what reading the log raises.
    """
    with directories.building(home) as free:
        made = directories.ready(home) if free else None
        if made is not None:
            directories.make_current(made)
    directories.remove_unused(home)
    folder = directories.current(home)
    if (folder / "damaged").exists():
        _set_aside(folder, "it was found damaged")
    try:
        return _build(source, folder, config, kind, progress)
    except ViewDamaged as error:
        _set_aside(folder, str(error))
        return _build(source, folder, config, kind, progress)


def _build(
    source: Log, folder: Path, config: StoreConfig, kind: Kind[V], told: Progress | None
) -> tuple[V, Projector]:
    view = kind.open(folder, source.log_id, config.cache_bytes)
    try:
        projector = Projector(source, view, config.on_undecodable, kind.folding)
        if config.on_undecodable == "stop":
            view.quarantine.complain()
        first = projector.position
        with Bar("catching up with the log", log) as bar:

            def show(position: Position, end: Position) -> None:
                bar.update(first.behind(position), first.behind(end))
                if told is not None:
                    told(position, end)

            projector.catch_up(show)
    except BaseException:
        view.close()
        raise
    return view, projector


def _set_aside(folder: Path, why: str) -> None:
    """Views hold nothing the log does not: a damaged one is removed, and built again."""
    log.warning("rebuilding the view in %s from the log, which is intact: %s", folder, why)
    directories.empty(folder)
