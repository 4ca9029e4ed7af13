"""Where the checkpoints' log is: beside the log of memories, in a folder or a topic of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from eventstore.checkpoint.views import CheckpointRuntime
from eventstore.errors import InvalidConfig
from eventstore.log.base import Log
from eventstore.log.embedded import EmbeddedLog

FOLDER: Final = "checkpoints"


@runtime_checkable
class HasCheckpoints(Protocol):
    """A runtime that can open the checkpoints beside its memories."""

    def open_checkpoints(self) -> CheckpointRuntime:
        """One more use of the runtime of checkpoints, opened if it is not."""


@runtime_checkable
class KnowsCheckpoints(Protocol):
    """A log that knows where the log of checkpoints is."""

    def open_checkpoints(self) -> Log:
        """Open it; made when missing."""

    def find_checkpoints(self) -> Log | None:
        """Open it, if it is there."""


def open_beside(memories: Log, segment_bytes: int) -> Log:
    """The log of checkpoints that belongs to a log of memories, made when missing.

    Raises ``InvalidConfig``, ``LogUnavailable``, and ``LogDamaged`` when its files do not hold.
    """
    if isinstance(memories, EmbeddedLog):
        return EmbeddedLog.open(_folder(memories), segment_bytes=segment_bytes)
    if isinstance(memories, KnowsCheckpoints):
        return memories.open_checkpoints()
    raise InvalidConfig(f"a {type(memories).__name__} has no place for checkpoints")


def find_beside(memories: Log, segment_bytes: int) -> Log | None:
    """The log of checkpoints that belongs to a log of memories, if it was ever made.

    Raises as :func:`open_beside`.
    """
    if isinstance(memories, EmbeddedLog):
        folder = _folder(memories)
        return EmbeddedLog.open(folder, segment_bytes=segment_bytes) if folder.is_dir() else None
    return memories.find_checkpoints() if isinstance(memories, KnowsCheckpoints) else None


def _folder(memories: EmbeddedLog) -> Path:
    return Path(memories.location).with_name(FOLDER)
