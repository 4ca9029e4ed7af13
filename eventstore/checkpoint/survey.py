"""What threads there are and what is in them, told without the values of a state.

Everything comes from rows of the view. What is sealed is told as far as it is readable without a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

from langgraph.checkpoint.serde.base import SerializerProtocol
from pydantic import BaseModel, ConfigDict

from eventstore.checkpoint.contents import Missing
from eventstore.checkpoint.engine import Engine
from eventstore.checkpoint.views import Row, ThreadRow, WriteRow
from eventstore.errors import CheckpointSealed, CheckpointUnreadable
from eventstore.history import moment

INTERRUPT: Final = "__interrupt__"


class Thread(BaseModel):
    """A thread that has checkpoints. Times are the log's."""

    model_config = ConfigDict(frozen=True)

    thread: str
    checkpoints: int
    namespaces: int
    """One for the graph itself, and one for each run of a subgraph with checkpoints of its own."""
    interrupts: int
    """Tasks of the newest checkpoint that called ``interrupt`` and were not resumed to their end."""
    sealed: bool
    bytes: int
    """What it takes in the view, before compression."""
    created_at: datetime
    updated_at: datetime
    """When its last checkpoint was put."""


class ThreadCheckpoint(BaseModel):
    """One checkpoint of a thread, without the values of its channels."""

    model_config = ConfigDict(frozen=True)

    namespace: str
    checkpoint: str
    parent: str | None
    step: int | None
    """``None``, as is ``source``, where the metadata cannot be read: it is sealed, say, or encrypted."""
    source: str | None
    at: datetime
    """When it was put, by the log's clock."""
    run: str | None
    channels: int
    """Channels that have a value in it."""
    writes: int
    """Pending writes of the tasks that run from here."""
    interrupts: int
    """Tasks that called ``interrupt`` here and were not resumed to their end."""
    position: str | None
    """Where the log of memories stood: ``store.as_of`` shows what could be known then."""
    sealed: bool


def threads(engine: Engine, limit: int | None) -> list[Thread]:
    """Threads, the last active first."""
    engine.refresh()
    rows = sorted(engine.runtime.checkpoints.threads(), key=attrgetter("updated_us"), reverse=True)
    return [_thread(engine, row) for row in rows[:limit]]


def checkpoints(
    engine: Engine, thread: str, limit: int | None, serde: SerializerProtocol
) -> list[ThreadCheckpoint]:
    """The checkpoints of a thread, in all its namespaces, newest id first."""
    engine.refresh()
    rows = [row for row in engine.runtime.checkpoints.of_thread(thread) if not row.hidden]
    rows.sort(key=lambda row: (row.at.id, row.at.namespace), reverse=True)
    return [_checkpoint(engine, row, serde) for row in rows[:limit]]


def waiting(writes: Sequence[WriteRow]) -> int:
    """How many tasks wait for an answer: they were interrupted, and have not come to an end since."""
    ended = {write.task for write in writes if write.number >= 0}
    return len({write.task for write in writes if write.channel == INTERRUPT} - ended)


def _thread(engine: Engine, thread: ThreadRow) -> Thread:
    view = engine.runtime.checkpoints
    rows = [row for row in view.of_thread(thread.thread) if not row.hidden]
    newest = max((row.at for row in rows if not row.at.namespace), default=None)
    return Thread(
        thread=thread.thread,
        checkpoints=len(rows),
        namespaces=len({row.at.namespace for row in rows}),
        interrupts=0 if newest is None else waiting(view.writes(newest)),
        sealed=any(row.sealed for row in rows),
        bytes=view.size(thread.thread),
        created_at=moment(thread.created_us),
        updated_at=moment(thread.updated_us),
    )


def _checkpoint(engine: Engine, row: Row, serde: SerializerProtocol) -> ThreadCheckpoint:
    writes = engine.runtime.checkpoints.writes(row.at)
    metadata = _metadata(engine, row, serde)
    return ThreadCheckpoint(
        namespace=row.at.namespace,
        checkpoint=row.at.id,
        parent=row.parent,
        step=metadata.get("step"),
        source=metadata.get("source"),
        at=moment(row.appended_us),
        run=row.run,
        channels=len(row.values),
        writes=len(writes),
        interrupts=waiting(writes),
        position=row.memories,
        sealed=row.sealed,
    )


def _metadata(engine: Engine, row: Row, serde: SerializerProtocol) -> Mapping[str, Any]:
    try:
        return engine.reading.metadata(row, serde)
    except (CheckpointSealed, CheckpointUnreadable, Missing):
        return {}
