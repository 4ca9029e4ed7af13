"""A new view of checkpoints made from their log: to take the place of another, or to compare with."""

from __future__ import annotations

from pathlib import Path

from eventstore.config import OnUndecodable
from eventstore.log.base import Log
from projector.beside import Beside
from projector.checkpoints.folding import CheckpointFolding
from projector.checkpoints.view import MaterializedCheckpoints


class NewCheckpoints(Beside[MaterializedCheckpoints]):
    """As for every view that is made beside another."""

    def __init__(
        self, source: Log, folder: Path, cache_bytes: int, on_undecodable: OnUndecodable = "stop"
    ) -> None:
        """Open what was begun, if it fits the log, else begin. Raises ``ViewError``."""
        super().__init__(
            source, folder, cache_bytes, on_undecodable, MaterializedCheckpoints, CheckpointFolding
        )
