"""Follows the log of memories, so that entries end when a memory they name changes.

Only while something depends on memories: it starts at the earliest moment any entry was made
from, so entries that were there before the process are held against what happened since. The
latest changes are remembered for entries that arrive late; one that is older than what is
remembered ends, to be safe.

Where the log's end is in memory, who reads catches up. Otherwise a thread follows, and who reads
waits until it has come as far as the view of memories.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Collection, Iterator
from typing import Final

from eventstore.cache.dependencies import names, touched
from eventstore.cache.entries import Entries, Entry
from eventstore.cache.events import Depends
from eventstore.errors import EventStoreError, LogError, StoreClosed
from eventstore.log.base import Chunk, Reader
from eventstore.log.position import Position
from eventstore.views import Runtime

log = logging.getLogger("eventstore.cache")

REMEMBERED: Final = 65_536
"""Changes that are remembered, over all partitions."""
WAIT_SECONDS: Final = 2.0
"""How long a read waits for the follower; after that what depends on memories counts as missing."""
_POLL_SECONDS: Final = 0.2


class Changes:
    """Which memories changed, for one cache. ``lock`` is the one that guards its entries."""

    def __init__(self, runtime: Runtime, entries: Entries, lock: threading.RLock) -> None:
        self._runtime = runtime
        self._log = runtime.log
        self._entries = entries
        self._lock = lock
        self._moved = threading.Condition(lock)
        self._loads: dict[object, Position] = {}
        self._position: Position | None = None
        self._floor: list[int] = []
        self._recent: list[deque[tuple[int, bytes]]] = []
        self._round = 0
        """Counts how often following began, so that a reader of an earlier time is told."""
        self._closed = threading.Event()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def now(self) -> Position:
        """A moment that reads of memories from now on are sure to show."""
        runtime = self._runtime
        with contextlib.suppress(EventStoreError):
            if self._log.end_is_local:
                runtime.catch_up()
            elif self._position is not None and not runtime.applied.covers(self._position):
                # Else a load that follows on a change would be made from before it, in vain.
                runtime.wait_for(self._position, WAIT_SECONDS)
        return runtime.applied

    def depends(self, on: tuple[bytes, ...], seen: Position) -> Depends:
        """What an entry made from a moment says of it."""
        return Depends(on, self._log.log_id, seen)

    @contextlib.contextmanager
    def since(self, seen: Position) -> Iterator[None]:
        """While in here, changes from a moment on are remembered."""
        token = object()
        with self._lock:
            self._loads[token] = seen
            self._begin()
        try:
            yield
        finally:
            with self._lock:
                del self._loads[token]

    def arrived(self, entry: Entry) -> None:
        """An entry that depends on memories is there; drop it if one has changed since it was made."""
        depends = entry.depends
        if depends is None:
            return
        with self._lock:
            if (
                depends.log_id != self._log.log_id
                or len(depends.seen) != self._log.partitions
                or (self._position is not None and self.changed(depends.on, depends.seen))
            ):
                self._entries.drop(entry.digest)

    def changed(self, on: Collection[bytes], seen: Position) -> bool:
        """Whether one of these has changed since a moment, or may have."""
        with self._lock:
            if self._position is None:
                return False
            for offset, floor, recent in zip(seen, self._floor, self._recent, strict=True):
                if offset < floor:
                    return True
                for at, key in reversed(recent):
                    if at < offset:
                        break
                    if touched(key, on):
                        return True
        return False

    def is_behind(self) -> bool:
        """Whether entries may be there that a change has ended already."""
        position = self._position
        if position is None:
            return self._entries.any_depend
        if self._log.end_is_local:
            return self._log.ahead_of(position)
        return not position.covers(self._runtime.applied)

    def catch_up(self) -> bool:
        """Take in what happened; whether that was possible. May wait, up to ``WAIT_SECONDS``."""
        with self._lock:
            self._begin()
            position = self._position
            if position is None:
                return True
            if self._log.end_is_local:
                try:
                    for chunk in self._log.chunks(position):
                        self._take(chunk)
                except LogError as error:
                    log.warning("what depends on memories counts as missing: %s", error)
                    return False
                return True
            target = self._runtime.applied
            return self._moved.wait_for(
                lambda: self._position is not None and self._position.covers(target), WAIT_SECONDS
            )

    def forget_beyond(self, end: Position) -> None:
        """Drop what was made from memories that a log which ends here does not have."""
        with self._lock:
            for entry in list(self._entries.dependent()):
                if entry.depends and not end.covers(entry.depends.seen):
                    self._entries.drop(entry.digest)

    def tidy(self) -> None:
        """Stop following when nothing depends on memories any more."""
        with self._lock:
            if not self._is_wanted():
                self._wanted.clear()
                self._position = None
                self._recent = []

    def close(self) -> None:
        """End the thread, within a moment."""
        self._closed.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(5 * _POLL_SECONDS)

    # ------------------------------------------------------------------ inside

    def _is_wanted(self) -> bool:
        return self._entries.any_depend or bool(self._loads)

    def _begin(self) -> None:
        """Start following, if something depends on memories and nobody follows."""
        if self._position is not None or not self._is_wanted():
            return
        moments = [*self._loads.values()]
        moments += [entry.depends.seen for entry in self._entries.dependent() if entry.depends]
        self._position = Position(*map(min, zip(*moments, strict=True)))
        self._round += 1
        self._floor = list(self._position)
        self._recent = [deque() for _ in self._floor]
        if not self._log.end_is_local:
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="eventstore-changes", daemon=True)
                self._thread.start()

    def _take(self, chunk: Chunk) -> None:
        """Take in records, and drop what they end. Under the lock."""
        position = self._position
        if position is None:
            return
        for record in chunk.records:
            if record.offset < position[record.partition]:
                continue
            recent = self._recent[record.partition]
            recent.append((record.offset, record.key))
            if len(recent) > REMEMBERED // len(self._recent):
                self._floor[record.partition] = recent.popleft()[0] + 1
            for name in names(record.key):
                for entry in self._entries.depending_on(name):
                    if entry.depends and record.offset >= entry.depends.seen[record.partition]:
                        self._entries.drop(entry.digest)
        self._position = Position(*map(max, zip(position, chunk.position, strict=True)))
        self._moved.notify_all()

    def _run(self) -> None:
        """Follow a log whose end is not known here, for as long as it is wanted."""
        reader: Reader | None = None
        began = 0
        while True:
            self._wanted.wait()
            if self._closed.is_set():
                break
            try:
                with self._lock:
                    current, position = self._round, self._position
                if reader is not None and current != began:
                    reader.close()
                    reader = None
                if position is None:
                    continue
                if reader is None:
                    reader, began = self._log.reader(position), current
                for chunk in reader.poll(_POLL_SECONDS):
                    with self._lock:
                        if began == self._round:
                            self._take(chunk)
            except StoreClosed:
                break
            except EventStoreError as error:
                log.warning("the changes of memories cannot be followed now: %s", error)
                if reader is not None:
                    reader.close()
                    reader = None
                self._closed.wait(1.0)
        if reader is not None:
            reader.close()
