"""What all savers on one log share in a process: the log and its view, values in memory, keys.

A saver is a thin face on this; its shallow copies, which LangGraph makes, are the same saver.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from eventstore.checkpoint import composing, enveloping
from eventstore.checkpoint.composing import Base, Composed
from eventstore.checkpoint.contents import Contents, Missing
from eventstore.checkpoint.entrances import Entrances
from eventstore.checkpoint.events import Delete, Event, Where
from eventstore.checkpoint.moments import Moments
from eventstore.checkpoint.reading import Reading
from eventstore.checkpoint.sealing import Seal, ThreadKeys
from eventstore.checkpoint.views import CheckpointRuntime
from eventstore.errors import CheckpointSealed, StoreClosed, ViewBehind
from eventstore.log.base import Batch
from eventstore.log.position import Position
from eventstore.targets import Target
from eventstore.views import Runtime, Written

_ATTEMPTS: Final = 20
"""How often a write is composed because a prune or delete came between."""

D = TypeVar("D")
Compose = Callable[[Seal, bool], Composed]
"""Makes the events of a write under a seal; told whether they must name nothing that was before."""


class Engine:
    """Safe for threads and event loops."""

    def __init__(
        self,
        runtime: CheckpointRuntime,
        memories: Runtime,
        keys: ThreadKeys | None,
        consistency: str | None,
        on_close: Callable[[], None],
    ) -> None:
        """Takes over one use of ``runtime``; ``on_close`` is called once, behind its release."""
        self.runtime = runtime
        self._memories = memories
        self._keys = keys
        self._asks = consistency in (None, "latest")
        self._on_close = on_close
        self._closing = threading.Lock()
        self._closed = False
        self.contents = Contents(lambda: runtime.checkpoints)
        self.entrances = Entrances()
        self.moments = Moments(self._seen)
        self.reading = Reading(lambda: runtime.checkpoints, self.contents, self._opening)

    # ------------------------------------------------------------------ life cycle

    def check(self) -> None:
        """Raise ``StoreClosed`` or ``StoreForked`` where this cannot be used."""
        self.runtime.check()
        if self._closed:
            raise StoreClosed("the saver is closed; open it again to use it")

    def close(self) -> None:
        """Give up log and view. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self.runtime.release()
        self._on_close()

    # ------------------------------------------------------------------ reading

    def refresh(self, wanted: Target | None = None) -> None:
        """Bring the view to the log's end, unless one checkpoint is wanted and there.

        Whoever resumes a thread must see what the last process saved; a checkpoint never changes but
        for its writes, which whoever resumes it has asked for by its thread. Raises what stopped the
        projection, unless what is wanted is there.
        """
        self.check()
        stopped = self.runtime.stopped
        costly = stopped is not None or not self.runtime.log.end_is_local
        one = wanted if costly and wanted is not None and wanted.checkpoint is not None else None
        if one is not None and self.reading.find(one) is not None:
            return
        if stopped is not None:
            raise stopped
        if self._asks:
            self.runtime.catch_up()

    # ------------------------------------------------------------------ writing

    def put(
        self,
        at: Where,
        parent: str | None,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        new_versions: Mapping[str, Any],
        serde: SerializerProtocol,
        *,
        seen: bool = True,
    ) -> Compose:
        """How a checkpoint is composed; all about it that can be said before is.

        ``seen`` says that it comes of a run here, which knew the memories there are.
        """
        self.check()
        memories = str(self.moments.of(new_versions.values())) if seen else None

        def compose(seal: Seal, whole: bool) -> Composed:
            base = None if parent is None else self._base(at._replace(id=parent), serde)
            return composing.put(
                at, parent, base, checkpoint, metadata, new_versions, memories, serde, self.contents, seal,
                whole=whole,
            )  # fmt: skip

        return compose

    def writes(
        self, at: Where, task: str, path: str, given: Sequence[tuple[str, Any]], serde: SerializerProtocol
    ) -> Compose:
        """How writes of a task are composed."""
        self.check()
        return lambda seal, whole: composing.writes(
            at, task, path, given, serde, self.contents, seal, whole=whole
        )

    def write(self, thread: str, compose: Compose) -> None:
        """Compose and append; returns when it is durable and visible. Raises ``LogError``, ``ViewError``."""
        for attempt in range(_ATTEMPTS):
            prepared = self._prepared(thread, compose, attempt > 0)
            if prepared is None:
                continue
            seal, composed, batch = prepared
            if self._counts(thread, composed, self.runtime.write(batch)) and self._opens(thread, seal):
                return
        raise _overtaken(thread)

    async def awrite(self, thread: str, compose: Compose) -> None:
        """:meth:`write` without blocking the event loop."""
        for attempt in range(_ATTEMPTS):
            prepared = await asyncio.to_thread(self._prepared, thread, compose, attempt > 0)
            if prepared is None:
                continue
            seal, composed, batch = prepared
            if self._counts(thread, composed, await self.runtime.awrite(batch)) and (
                not seal.closes or await asyncio.to_thread(self._opens, thread, seal)
            ):
                return
        raise _overtaken(thread)

    def decided(self, thread: str, decide: Callable[[], D]) -> D:
        """What is decided from rows of a thread, anew if something of them went meanwhile.

        Raises ``ViewDamaged`` where it is missing for good.
        """
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(Missing):
                return decide()
        raise self.reading.damaged(thread)

    def append(self, events: Sequence[Event]) -> None:
        """Append events that name nothing of what is there; all of one thread."""
        self.check()
        for _ in range(_ATTEMPTS):
            # Of a large one the fragments may go on their way, swept up by another process's prune.
            if not _rejected(self.runtime.write(self._batch(events))):
                return
        raise _overtaken(events[0].at.thread)

    def delete(self, thread: str) -> None:
        """Remove a thread and destroy its key, if it has one."""
        self._delete(thread)
        if self._keys is not None:
            self._keys.destroy(thread)
            self._delete(thread)  # what came between the two was sealed under the key that is gone

    def wait_for_writes(self, thread: str) -> None:
        """Return when the writes of a thread that entered until now are in the log, or failed."""
        concurrent.futures.wait(self.entrances.before(thread))

    async def await_writes(self, thread: str) -> None:
        """:meth:`wait_for_writes` for coroutines."""
        pending = self.entrances.before(thread)
        if pending:
            await asyncio.wait([asyncio.wrap_future(each) for each in pending])

    # ------------------------------------------------------------------ inside

    def _prepared(self, thread: str, compose: Compose, whole: bool) -> tuple[Seal, Composed, Batch] | None:
        """A batch to append; ``None`` where something it is made of went meanwhile."""
        seal = Seal() if self._keys is None else Seal(self._keys.make(thread))
        try:
            composed = compose(seal, whole)
        except Missing:
            return None
        return seal, composed, self._batch(composed.events)

    def _batch(self, events: Sequence[Event]) -> Batch:
        limit = self.runtime.log.record_bytes
        made = [record for event in events for record in enveloping.records(event, limit)]
        return self.runtime.prepare(made)

    def _opens(self, thread: str, seal: Seal) -> bool:
        """Whether what was appended under a seal can be read: a delete may have destroyed its key."""
        return self._keys is None or seal.is_under(self._keys.get(thread))

    def _delete(self, thread: str) -> None:
        self.refresh()
        if self.runtime.checkpoints.has_thread(thread):
            self.append([Delete(Where(thread))])

    def _counts(self, thread: str, composed: Composed, written: Written) -> bool:
        if _rejected(written):
            return False
        for value in composed.splits:
            self.contents.keep(thread, value)
        return True

    def _base(self, at: Where, serde: SerializerProtocol) -> Base | None:
        row = self.runtime.checkpoints.row(at)
        if row is None:
            return None
        try:
            versions = self.reading.body(row, serde).get("channel_versions")
        except (Missing, CheckpointSealed):
            return None  # the checkpoint then brings all it has
        return Base(row, versions if isinstance(versions, Mapping) else {})

    def _seen(self) -> Position:
        memories = self._memories
        return memories.log.high_water_mark() if memories.log.end_is_local else memories.applied

    def _opening(self, thread: str, sealed: bool) -> Seal:
        if not sealed:
            return Seal()
        key = None if self._keys is None else self._keys.get(thread)
        if key is None:
            raise CheckpointSealed(
                f"thread {thread!r} is sealed and its key is not here: open the saver with keys=..., or "
                "accept that the key was destroyed and the thread with it"
            )
        return Seal(key)


def _rejected(written: Written) -> bool:
    return any(outcome.reason == "rejected" for outcome in written.outcomes.values())


def _overtaken(thread: str) -> ViewBehind:
    return ViewBehind(
        f"thread {thread!r} is being pruned or deleted again and again while this is written; try again"
    )
