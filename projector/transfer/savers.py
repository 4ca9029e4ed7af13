"""Migration of checkpoints: the threads of any other LangGraph saver, read through its own interface.

Each checkpoint comes over with its parent, metadata, versions and pending writes, oldest first, and is
held against what the source gave once it is written. What the target has already is left alone, so
a migration can be stopped at any moment and repeated.

A saver's interface does not tell the paths of tasks, only the order of their writes, which is kept;
nor what memories a checkpoint knew, so ``as_of`` has no answer for one that came from elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple
from pydantic import BaseModel, ConfigDict

from eventstore.checkpoint import EventSaver
from eventstore.checkpoint.composing import LEFT_OUT
from eventstore.checkpoint.contents import Missing
from eventstore.checkpoint.events import Packed, Where, config_of
from eventstore.checkpoint.views import Row
from eventstore.errors import InvalidInput, InvalidType
from eventstore.targets import target as target_of
from projector.progress import Bar
from projector.transfer.sources import opened

log = logging.getLogger("projector.transfer")

SAVERS: Final = {
    "postgres": ("langgraph.checkpoint.postgres", "PostgresSaver"),
    "postgresql": ("langgraph.checkpoint.postgres", "PostgresSaver"),
    "sqlite": ("langgraph.checkpoint.sqlite", "SqliteSaver"),
}
"""Module and class by what a source's connection string begins with."""
PAGE: Final = 200
"""Checkpoints of one request, where a source gives its listings as a whole."""
_WHOLE_LISTINGS: Final = "langgraph.checkpoint.postgres"
"""Whose savers fetch a listing, with all values, before they give the first; newest id first."""


class MigratedThreads(BaseModel):
    """What a migration did, in checkpoints."""

    model_config = ConfigDict(frozen=True)

    threads: int
    """That the source has."""
    read: int
    written: int
    """With their pending writes, or only those."""
    present: int
    """Left alone because the target says the same already."""
    conflicts: int
    """Left alone because the target has another checkpoint under the same id."""
    seconds: float


class _Numbered(NamedTuple):
    """A pending write with the number that a saver gives it."""

    task: str
    number: int
    channel: str
    value: Any


def open_saver(name: str) -> AbstractContextManager[BaseCheckpointSaver[Any]]:
    """A saver by its connection string, or by ``module:factory``, closed at the end of the block.

    ``postgresql://…`` and ``sqlite:path`` open LangGraph's own savers, with their own serializer. A
    factory is called without arguments and gives a saver, or a context manager that does. Raises
    ``InvalidConfig`` for what cannot be opened, ``InvalidType`` for what is no saver.
    """
    kind: type[BaseCheckpointSaver[Any]] = BaseCheckpointSaver
    return opened(name, SAVERS, kind, lambda saver: next(iter(saver.list(None, limit=1)), None))


def migrate_threads(
    source: BaseCheckpointSaver[Any], target: EventSaver, *, threads: Collection[str] | None = None
) -> MigratedThreads:
    """Write the source's checkpoints that the target does not have; all threads, or those named.

    Nothing should write to the source meanwhile; what it does write comes with the next migration.
    Raises what the source raises, and ``InvalidInput`` naming a checkpoint that cannot be kept as it is.
    """
    with Bar("copying checkpoints", log) as bar:
        found = sorted(_places(source, threads))
        moving = _Moving(source, target)
        for done, at in enumerate(found, 1):
            moving.move(at)
            bar.update(done, len(found))
        return MigratedThreads(
            threads=len({at.thread for at in found}),
            read=moving.read,
            written=moving.written,
            present=moving.present,
            conflicts=moving.conflicts,
            seconds=bar.seconds,
        )


class _Moving:
    """Takes checkpoints over, one at a time."""

    def __init__(self, source: BaseCheckpointSaver[Any], target: EventSaver) -> None:
        self._source = source
        self._engine = target._engine
        self._serde = target.serde
        self.read = self.written = self.present = self.conflicts = 0
        self._engine.refresh()

    def move(self, at: Where) -> None:
        """Take over a checkpoint, or what it lacks. One that is gone from the source is left out."""
        theirs = self._source.get_tuple(config_of(at))
        if theirs is None:
            return
        self.read += 1
        there = self._row(at)
        differs = None if there is None else self._difference(there, theirs)
        missing = self._missing_writes(at, theirs)
        if differs is not None:
            self.conflicts += 1
            log.warning("thread %r has another checkpoint %s (%s)", at.thread, at.id, differs)
            return
        if there is not None and not missing:
            self.present += 1
            return
        if there is None:
            self._put(at, theirs)
        for path, task in missing:
            compose = self._engine.writes(at, task, path, missing[path, task], self._serde)
            self._engine.write(at.thread, compose)
        self._hold(at, theirs)
        self.written += 1

    def _put(self, at: Where, theirs: CheckpointTuple) -> None:
        # Every version counts as new, since equal ones need not mean equal values in every saver.
        versions = theirs.checkpoint["channel_versions"]
        compose = self._engine.put(
            at, _parent(theirs), theirs.checkpoint, theirs.metadata, versions, self._serde, seen=False
        )
        self._engine.write(at.thread, compose)

    def _hold(self, at: Where, theirs: CheckpointTuple) -> None:
        """What was written against what the source gave."""
        row = self._row(at)
        differs = "all of it" if row is None else self._difference(row, theirs)
        if differs is None and self._missing_writes(at, theirs):
            differs = "its pending writes"
        if differs is not None:
            raise InvalidInput(
                f"checkpoint {at.id} of thread {at.thread!r} did not come over as it is: {differs} differs. "
                "Give the target the serde of the source"
            )

    def _row(self, at: Where) -> Row | None:
        row = self._engine.runtime.checkpoints.row(at)
        return None if row is None or row.hidden else row

    def _difference(self, row: Row, theirs: CheckpointTuple) -> str | None:
        """What differs, if anything does."""
        values = theirs.checkpoint["channel_values"]
        body = {name: value for name, value in theirs.checkpoint.items() if name not in LEFT_OUT}
        read = self._engine.reading.packed
        try:
            if row.parent != _parent(theirs):
                return "its parent"
            if not self._same(read(row, row.body, b"body"), body):
                return "what is in it beside values"
            if not self._same(read(row, row.metadata, b"metadata"), theirs.metadata):
                return "its metadata"
            for channel in {**row.values, **values}:
                stored = row.values.get(channel)
                if (
                    stored is None
                    or channel not in values
                    or not self._same(read(row, stored), values[channel])
                ):
                    return f"the value of {channel!r}"
        except Missing:
            return "something that was pruned meanwhile"
        return None

    def _missing_writes(
        self, at: Where, theirs: CheckpointTuple
    ) -> Mapping[tuple[str, str], Sequence[tuple[str, Any]]]:
        """By path and task, all writes of tasks of which some are not there. Those there stay as they are.

        Of special writes the last counts, so one that is there may be newer.
        """
        there = {(write.task, write.number) for write in self._engine.runtime.checkpoints.writes(at)}
        by_task: dict[str, list[_Numbered]] = {}
        for write in _numbered(theirs):
            by_task.setdefault(write.task, []).append(write)
        in_order = list(by_task) == sorted(by_task)
        found: dict[tuple[str, str], list[tuple[str, Any]]] = {}
        for number, (task, writes) in enumerate(by_task.items()):
            lacking = {write.number for write in writes if (task, write.number) not in there}
            if lacking:
                # Paths only put tasks in order: where their ids do not, the order itself is the path.
                path = "" if in_order else f"{number:08d}"
                found[path, task] = [
                    (write.channel, write.value)
                    for write in sorted(writes, key=lambda write: (write.number < 0, write.number))
                    if write.number >= 0 or write.number in lacking
                ]
        return found

    def _same(self, ours: Packed, theirs: Any) -> bool:
        made = Packed(*self._serde.dumps_typed(theirs))
        if ours == made:
            return True
        try:
            return bool(self._serde.loads_typed(ours) == self._serde.loads_typed(made))
        except ValueError:
            return False  # arrays have no truth


def _places(source: BaseCheckpointSaver[Any], threads: Collection[str] | None) -> Iterator[Where]:
    if threads is None:
        yield from _listed(source, None)
        return
    for thread in threads:
        yield from _listed(source, cast(RunnableConfig, {"configurable": {"thread_id": thread}}))


def _listed(source: BaseCheckpointSaver[Any], config: RunnableConfig | None) -> Iterator[Where]:
    """The checkpoints a source lists; in pages where it would fetch all of them at once."""
    if not type(source).__module__.startswith(_WHOLE_LISTINGS):
        yield from map(_where, source.list(config))
        return
    before: RunnableConfig | None = None
    size = PAGE
    while True:
        page = [_where(each) for each in source.list(config, before=before, limit=size)]
        # Threads can share the id a page ends with: the next page begins with all who have it.
        last = page[-1].id if len(page) == size else ""
        yield from (at for at in page if at.id > last)
        if not last:
            return
        above = [at for at in page if at.id > last]
        if above:
            before, size = config_of(above[-1]), PAGE
        else:
            size *= 2


def _where(found: CheckpointTuple) -> Where:
    named = target_of(found.config)
    if named.checkpoint is None:
        raise InvalidType("the source lists a checkpoint without an id")
    return Where(named.thread, named.namespace or "", named.checkpoint)


def _parent(found: CheckpointTuple) -> str | None:
    return None if found.parent_config is None else target_of(found.parent_config).checkpoint


def _numbered(found: CheckpointTuple) -> Iterator[_Numbered]:
    """Pending writes with their numbers: special ones have fixed ones, others count up by task."""
    counts: dict[str, int] = {}
    for task, channel, value in found.pending_writes or ():
        special = WRITES_IDX_MAP.get(channel)
        number = counts.get(task, 0) if special is None else special
        if special is None:
            counts[task] = number + 1
        yield _Numbered(task, number, channel, value)
