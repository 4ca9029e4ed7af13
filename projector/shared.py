"""What every runtime has, whichever view it shows: its uses counted, closed once, refused after a fork.

Faces opened on the same place in one process share one runtime. Their writes go through one
committer; what happens between the log and the view is left to the kinds of runtime.
"""

from __future__ import annotations

import ctypes
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from eventstore.commit import Committer
from eventstore.errors import EventStoreError, StoreClosed, StoreForked
from eventstore.interrupts import Uninterrupted
from eventstore.log.base import Batch, Log, Record
from eventstore.log.position import Position
from eventstore.targets import Target
from eventstore.views import Written


class Beside(Protocol):
    """The runtime of checkpoints, as that of memories sees it."""

    def retain(self) -> bool:
        """One more use, unless it is closing."""

    def release(self) -> None:
        """One use less."""

    def close(self) -> None:
        """See :meth:`SharedRuntime.close`."""

    def forked(self) -> None:
        """See :meth:`SharedRuntime.forked`."""

    def seen_at(self, wanted: Target) -> Position | None:
        """See :meth:`eventstore.views.Runtime.seen_at`."""


OpenBeside = Callable[[], Beside]


class SharedRuntime(ABC):
    """The part of a :class:`eventstore.views.Runtime` that does not depend on where its view is."""

    def __init__(self, source: Log, beside: OpenBeside) -> None:
        """Takes over the log. ``beside`` opens the runtime of the checkpoints that belong to it."""
        self._log = source
        self._open_beside = beside
        self._beside: Beside | None = None
        self._opening = threading.Lock()
        self._uses = 1
        self._closed = False
        self._forked = False
        self._lock = threading.Lock()
        self._committer = Committer(self._append)

    @property
    def log(self) -> Log:
        return self._log

    @property
    @abstractmethod
    def stopped(self) -> EventStoreError | None:
        """What stopped the projection, if it stopped."""

    def check(self) -> None:
        if self._closed:
            if self._forked:
                raise StoreForked(
                    f"the store at {self._log.location} was opened before this process was forked, and "
                    "cannot be used here. Start processes with multiprocessing's 'spawn' or "
                    "'forkserver', or open stores only after the fork"
                )
            raise StoreClosed("the store is closed; open it again to use it")

    def prepare(self, records: Sequence[Record]) -> Batch:
        self.check()
        if self.stopped is not None:
            raise self.stopped
        return self._log.prepare(records)

    def write(self, batch: Batch) -> Written:
        self.check()
        return self._committer.write(batch)

    async def awrite(self, batch: Batch) -> Written:
        self.check()
        return await self._committer.awrite(batch)

    def write_all(self, batches: Sequence[Batch]) -> list[Written | BaseException]:
        self.check()
        return self._committer.write_all(batches)

    async def awrite_all(self, batches: Sequence[Batch]) -> list[Written | BaseException]:
        self.check()
        return await self._committer.awrite_all(batches)

    def retain(self) -> bool:
        """One more use, unless the runtime is closing."""
        with self._lock:
            if self._uses == 0 or self._closed:
                return False
            self._uses += 1
            return True

    def release(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._uses -= 1
            if self._uses:
                return
        self.close()

    def open_checkpoints(self) -> Beside:
        """One more use of the runtime of checkpoints, which ends with this one at the latest."""
        with self._opening:
            self.check()
            if self._beside is None or not self._beside.retain():
                self._beside = self._open_beside()
            return self._beside

    def seen_at(self, wanted: Target) -> Position | None:
        beside = self.open_checkpoints()
        try:
            return beside.seen_at(wanted)
        finally:
            beside.release()

    def close(self) -> None:
        """Write what is queued, save the views, release everything. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with self._opening:
            beside = self._beside
        if beside is not None:
            beside.close()
        with Uninterrupted():
            self._committer.close()
            self._end()

    def forked(self) -> None:
        """Called in a forked child: its copies of locks, files and threads are not to be touched."""
        self._forked = self._closed = True
        if self._beside is not None:
            self._beside.forked()
        # Freeing RocksDB's objects here would wait for threads that exist only in the parent,
        # and write to files the parent has open. They are kept alive for good.
        for owned in (self._log, *self._owned()):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(owned))

    @abstractmethod
    def _append(self, batches: Sequence[Batch]) -> list[Written | Exception]:
        """Append batches, which the committer gathered."""

    @abstractmethod
    def _end(self) -> None:
        """Release everything; all writes are done."""

    @abstractmethod
    def _owned(self) -> tuple[object, ...]:
        """What must not be freed in a forked child."""
