"""The runtime of checkpoints: their log, and this process's view of it, beside those of the memories."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from eventstore.checkpoint.events import Where
from eventstore.checkpoint.place import FOLDER, open_beside
from eventstore.checkpoint.views import CheckpointView
from eventstore.config import StoreConfig
from eventstore.errors import InvalidConfig
from eventstore.log.base import Log
from eventstore.log.position import Position
from eventstore.targets import Target
from projector.checkpoints.folding import CheckpointFolding
from projector.checkpoints.view import MaterializedCheckpoints
from projector.opening import Kind
from projector.projected import ProjectedRuntime
from projector.shared import Beside

CHECKPOINTS: Final = Kind(MaterializedCheckpoints, CheckpointFolding)


class OpenCheckpoints(ProjectedRuntime[MaterializedCheckpoints]):
    """A :class:`eventstore.checkpoint.views.CheckpointRuntime`."""

    def __init__(self, source: Log, views: Path, config: StoreConfig) -> None:
        """Takes over the log of checkpoints; its views have a folder of their own among ``views``."""
        super().__init__(source, views / FOLDER, config, CHECKPOINTS, _nothing_beside)

    @property
    def checkpoints(self) -> CheckpointView:
        return self._view

    def seen_at(self, wanted: Target) -> Position | None:
        """See :meth:`eventstore.views.Runtime.seen_at`."""
        self.catch_up()
        namespace = wanted.namespace or ""
        at = None if wanted.checkpoint is None else Where(wanted.thread, namespace, wanted.checkpoint)
        if at is None:
            at = next(iter(self._view.page(wanted.thread, namespace, None, 1)), None)
        row = None if at is None else self._view.row(at)
        if row is None or row.hidden or row.memories is None:
            return None
        return Position.of(row.memories)


def open_checkpoints(memories: Log, views: Path, config: StoreConfig) -> OpenCheckpoints:
    """The runtime of the checkpoints that belong to a log of memories."""
    return OpenCheckpoints(open_beside(memories, config.segment_bytes), views, config)


def _nothing_beside() -> Beside:
    raise InvalidConfig("checkpoints have no checkpoints beside them")
