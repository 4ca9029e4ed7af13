"""A new view made from the log beside the one in use, to go on with it where it was left.

It is a whole view in a folder of its own with its own position, so work on it can be cancelled or
killed at any moment and continued later. Nobody reads it. Putting it in the place of the one in
use is the runtime's part, which folder it stands in is ``directories``' part.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

from eventstore.config import OnUndecodable
from eventstore.errors import LogMismatch, ViewDamaged
from eventstore.log.base import Log
from eventstore.log.position import Position
from projector import directories
from projector.folding import Folding, Folds
from projector.rocks import Rocks
from projector.runner import Progress, Projected, Projector
from projector.view import MaterializedView

log = logging.getLogger("projector.beside")

BULK_RECORDS: Final = 5_000
"""Records of one write batch: nobody waits for a single one of them."""


class View(Projected, Protocol):
    """What can be made beside another."""

    @property
    def db(self) -> Rocks: ...

    def close(self) -> None:
        """Release it."""


V = TypeVar("V", bound=View)


class Beside(Generic[V]):
    """A view that is being made in a folder. The caller holds the right to build there."""

    def __init__(
        self,
        source: Log,
        folder: Path,
        cache_bytes: int,
        on_undecodable: OnUndecodable,
        kind: Callable[[Path, str, int], V],
        folding: Callable[[Any, bool], Folds],
    ) -> None:
        """Open what was begun, if it fits the log, else begin. Raises ``ViewError``.

        ``kind`` opens a view in a folder, of the log with an id, with so many bytes of cache.
        """
        self.folder = folder
        self._on_undecodable = on_undecodable
        self._kind = kind
        self._folding = folding
        try:
            self._open(source, cache_bytes)
        except (ViewDamaged, LogMismatch) as error:
            log.warning("what was begun in %s is of no use and is made again: %s", folder, error)
            directories.empty(folder)
            self._open(source, cache_bytes)
        self.first = self.projector.position
        """Where it stood when it was opened."""

    def _open(self, source: Log, cache_bytes: int) -> None:
        if (self.folder / "damaged").exists():
            raise ViewDamaged("it was found damaged")
        self.view = self._kind(self.folder, source.log_id, cache_bytes)
        try:
            self.projector = Projector(source, self.view, self._on_undecodable, self._folding)
        except BaseException:
            self.view.close()
            raise

    @property
    def position(self) -> Position:
        """Everything before it is in the new view."""
        return self.projector.position

    def advance(
        self,
        limit: Position | None = None,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        """Apply the log up to its end or ``limit``; see :meth:`Projector.catch_up`.

        Raises what stopped the projection, if an event did.
        """
        self.projector.catch_up(progress, limit=limit, stop=stop, commit_records=BULK_RECORDS)
        if self.projector.stopped is not None:
            raise self.projector.stopped

    def close(self) -> None:
        """Close it; it stays on disk. Idempotent."""
        self.view.close()


class NewView(Beside[MaterializedView]):
    """A new view of memories."""

    def __init__(
        self, source: Log, folder: Path, cache_bytes: int, on_undecodable: OnUndecodable = "stop"
    ) -> None:
        """As for every view that is made beside another."""
        super().__init__(source, folder, cache_bytes, on_undecodable, MaterializedView, Folding)
