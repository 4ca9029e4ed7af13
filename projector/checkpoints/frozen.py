"""The rows of a view of checkpoints as they stood at one moment, whoever has the view."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from eventstore.log.position import Position
from projector import directories
from projector.checkpoints.view import FORMAT, MaterializedCheckpoints
from projector.frozen import Source, database, made_from
from projector.rocks import CheckpointDatabase


class FrozenCheckpoints(NamedTuple):
    """One moment of a view."""

    directory: Path
    rows: Source
    position: Position | None
    """Where it stands; ``None`` while nothing was applied."""
    log_id: str


@contextmanager
def of_directory(home: Path) -> Iterator[FrozenCheckpoints]:
    """The view in a view directory. Raises ``ViewDamaged``."""
    folder = directories.current(home)
    with database(folder, CheckpointDatabase) as db:
        log_id, position = made_from(folder, db.default, FORMAT)
        yield FrozenCheckpoints(folder, db.default, position, log_id)


def of_view(view: MaterializedCheckpoints) -> FrozenCheckpoints:
    """A view that nobody writes to."""
    log_id, position = made_from(view.directory, view.db.default, FORMAT)
    return FrozenCheckpoints(view.directory, view.db.default, position, log_id)
