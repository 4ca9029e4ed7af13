"""One process's part in the cache of a store: its log, the entries in memory, and who keeps them current.

All cache objects on one runtime share it. Reads look at the log's high-water mark first where that
is a memory read, so what another process set is seen by the next read here; on Kafka a thread
follows, and :meth:`SharedCache.sync` waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, cast

from eventstore.cache.changes import Changes
from eventstore.cache.entries import Entries, Entry
from eventstore.cache.events import DAY_US, CacheEvent, Kind, decode, encode
from eventstore.cache.place import Trimmed
from eventstore.cache.sealing import Seal
from eventstore.commit import Committer
from eventstore.errors import EventStoreError, LogUnavailable, StoreClosed, UndecodableEvent, ViewBehind
from eventstore.log.base import Batch, Log, Reader, Record, StoredRecord
from eventstore.log.position import Position
from eventstore.ttl import now_us
from eventstore.views import Runtime, Written

log = logging.getLogger("eventstore.cache")

MEMORY_BYTES: Final = 64 * 1024 * 1024
LOG_BYTES: Final = 128 * 1024 * 1024
"""What an embedded cache log may take on disk; a start reads all of it."""
SHOW_SECONDS: Final = 10.0
"""How long a write on Kafka waits until it is visible here."""
_LOOK_SECONDS: Final = 0.05
_POLL_SECONDS: Final = 0.2
_TIDY_SECONDS: Final = 30.0
_MOST_SESSIONS: Final = 4_096


class Watch:
    """Notices that somebody wrote or removed an entry while it is being loaded."""

    def __init__(self) -> None:
        self.overtaken = False


class _Write(NamedTuple):
    """A batch of one event, and the load that it ends."""

    records: Sequence[Record]
    prepared: Batch
    watch: Watch | None


class SharedCache:
    """The engine under :class:`eventstore.cache.cache.Cache`. Safe for threads and event loops."""

    def __init__(
        self,
        runtime: Runtime,
        source: Log,
        *,
        memory_bytes: int = MEMORY_BYTES,
        log_bytes: int = LOG_BYTES,
        clock: Callable[[], int] = now_us,
        seal: Seal | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes over the cache's log, and reads what it holds. ``clock`` gives µs since the epoch."""
        self.clock = clock
        self.seal = seal or Seal()
        self._runtime = runtime
        self._log = source
        self._log_bytes = log_bytes
        self._applying = threading.RLock()
        self._moved = threading.Condition(self._applying)
        self._entries = Entries(memory_bytes)
        self.changes = Changes(runtime, self._entries, self._applying)
        self._position = Position.start(1)
        self._sessions: dict[bytes, int] = {}
        self._watches: dict[bytes, list[Watch]] = {}
        self._announcing = False
        self._damaged = False
        self._closed = threading.Event()
        self._on_close = on_close
        try:
            self._replay()
            self.changes.forget_beyond(runtime.log.high_water_mark())
        except BaseException:
            source.close()
            raise
        self._committer = Committer(self._append)
        self._thread = threading.Thread(target=self._follow, name="eventstore-cache", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ reading

    def check(self) -> None:
        """Raise ``StoreClosed`` or ``StoreForked`` where this cannot be used."""
        self._runtime.check()
        if self._closed.is_set():
            raise StoreClosed("the cache is closed; make another from the store")

    def is_behind(self) -> bool:
        """Whether the log is known to hold more than is visible here."""
        return self._log.ahead_of(self._position)

    def catch_up(self) -> None:
        """Take in what the log holds, where its end is in memory."""
        if not self._log.end_is_local:
            return
        with self._applying:
            # Our own appends are visible before they are announced.
            announcing = self._announcing
            end = self._log.high_water_mark()
            if end == self._position:
                return
            if not end.covers(self._position):
                if announcing:
                    return
                self._lose("damage cut its end off, and offsets are given anew")
            self._replay()

    def find(self, digest: bytes) -> Entry | None:
        """The entry as it is visible here, expired or not. Asks nobody, and waits for nobody."""
        return self._entries.get(digest)

    def sync(self, timeout: float = SHOW_SECONDS) -> None:
        """Return when everything is visible here that any process had written, memories included.

        Raises ``ViewBehind`` after ``timeout`` seconds, ``LogUnavailable``.
        """
        self.check()
        self._runtime.wait_for(self._runtime.log.high_water_mark(), timeout)
        self.catch_up()
        self._wait_for(self._log.high_water_mark(), timeout)
        self.changes.catch_up()

    # ------------------------------------------------------------------ writing

    def write(self, events: Sequence[CacheEvent], watch: Watch | None = None) -> bool:
        """Append events, each on its own; whether all of them count.

        They do not where ``watch`` saw somebody else's write. Raises ``LogError`` and ``LimitExceeded``.
        """
        self.check()
        return _outcome(self._committer.write_all(self._prepared(events, watch)))

    async def awrite(self, events: Sequence[CacheEvent], watch: Watch | None = None) -> bool:
        """:meth:`write` without blocking the event loop."""
        self.check()
        return _outcome(await self._committer.awrite_all(self._prepared(events, watch)))

    def make_durable(self) -> None:
        """Sync what was written, where that is not done by the log anyway."""
        if isinstance(self._log, Trimmed):
            self._log.sync()

    @contextlib.contextmanager
    def watching(self, digest: bytes) -> Iterator[Watch]:
        """While in here, writes of others to an entry are noticed; what loaders bring is not one."""
        watch = Watch()
        with self._applying:
            self._watches.setdefault(digest, []).append(watch)
        try:
            yield watch
        finally:
            with self._applying:
                self._watches[digest].remove(watch)
                if not self._watches[digest]:
                    del self._watches[digest]

    def close(self) -> None:
        """Write what is queued, and release the log. Idempotent."""
        with self._applying:
            if self._closed.is_set():
                return
            self._closed.set()
        self._on_close()
        self._committer.close()
        self.changes.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
        self._log.close()
        with self._applying:
            self._entries.drop_all()

    # ------------------------------------------------------------------ appending

    def _prepared(self, events: Sequence[CacheEvent], watch: Watch | None) -> list[Batch]:
        records = [encode(event, self.seal) for event in events]
        return [cast(Batch, _Write([record], self._log.prepare([record]), watch)) for record in records]

    def _append(self, batches: Sequence[Batch]) -> list[Written | Exception]:
        writes = [cast(_Write, batch) for batch in batches]
        self.catch_up()
        due: list[_Write] = []
        written_here: set[bytes] = set()
        for write in writes:
            digest = write.records[0].key
            if write.watch is None:
                written_here.add(digest)
            elif write.watch.overtaken or digest in written_here:
                continue
            due.append(write)
        results: dict[int, Written | Exception] = {}
        if due:
            self._announcing = True
            try:
                appended = self._log.append([write.prepared for write in due], self._show)
            finally:
                self._announcing = False
            for write, records in zip(due, appended, strict=True):
                results[id(write)] = records if isinstance(records, Exception) else Written(records, {})
            if not self._log.end_is_local:
                self._show_own([records for records in appended if not isinstance(records, Exception)])
        return [results.get(id(write)) or Written([], {}) for write in writes]

    def _show(self, lists: Sequence[Sequence[StoredRecord]]) -> None:
        """Between appended and announced: who sees the new end finds the entries here."""
        try:
            with self._applying:
                if lists and lists[0] and lists[0][0].offset != self._position[0]:
                    self._replay()
                for records in lists:
                    self._apply(records)
        except EventStoreError as error:
            self._lose(str(error))

    def _show_own(self, lists: Sequence[Sequence[StoredRecord]]) -> None:
        """Show what follows on what is visible; the follower brings the rest."""
        with self._applying:
            for records in lists:
                if records[0].offset == self._position[0]:
                    self._apply(records)
        for records in lists:
            self._wait_for(Position(records[-1].offset + 1), SHOW_SECONDS)

    def _wait_for(self, position: Position, timeout: float) -> None:
        with self._applying:
            if not self._moved.wait_for(lambda: self._position.covers(position), timeout):
                raise ViewBehind(
                    f"the cache stands at {self._position}, not yet at {position}, after {timeout} s; "
                    "is the broker up?"
                )

    # ------------------------------------------------------------------ applying

    def _replay(self) -> None:
        """Take in the log up to its present end."""
        with self._applying:
            try:
                for chunk in self._log.chunks(self._position):
                    self._apply(chunk.records)
                    self._advance(chunk.position)
            except (LogUnavailable, StoreClosed):
                raise
            except (EventStoreError, OSError) as error:
                self._lose(str(error))
                self._advance(self._log.high_water_mark())
                self._damaged = True

    def _apply(self, records: Sequence[StoredRecord]) -> None:
        if not records:
            return
        with self._applying:
            sessions, due = self._sessions, self._position[0]
            for record in records:
                # A write that comes after a later one of its writer was given up; it must not undo that.
                if record.offset >= due and record.sequence > sessions.get(record.session, 0):
                    sessions[record.session] = record.sequence
                    self._fold(record)
            self._advance(Position(records[-1].offset + 1))
            if len(self._sessions) > _MOST_SESSIONS:
                self._sessions.clear()

    def _fold(self, record: StoredRecord) -> None:
        try:
            event = decode(record, self.seal)
        except UndecodableEvent as error:
            log.debug("an entry counts as missing: %s", error)
            self._entries.drop(record.key)
            return
        if not event.loaded:
            for watch in self._watches.get(event.digest, ()):
                watch.overtaken = True
        if event.kind is Kind.SET and record.appended_us + event.ttl_us <= self.clock():
            self._entries.drop(record.key)
            return
        entry = self._entries.apply(event, record)
        if entry is not None and entry.depends is not None:
            self.changes.arrived(entry)

    def _advance(self, position: Position) -> None:
        if position[0] > self._position[0]:
            self._position = position
            self._moved.notify_all()

    def _lose(self, why: str) -> None:
        """Forget all entries: some event cannot be read, and it may have removed any of them."""
        log.warning("the cache starts empty: %s", why)
        with self._applying:
            self._entries.drop_all()
            self._sessions.clear()
            self._position = Position.start(1)

    # ------------------------------------------------------------------ following

    def _follow(self) -> None:
        """Keep the entries current while nobody reads; ends with the store."""
        reader: Reader | None = None
        tidied = 0.0
        while not self._closed.is_set():
            try:
                self._runtime.check()
                if time.monotonic() - tidied > _TIDY_SECONDS:
                    tidied = time.monotonic()
                    self._tidy()
                if self._log.end_is_local:
                    self.catch_up()
                    if self.changes.is_behind():
                        self.changes.catch_up()
                    self._closed.wait(_LOOK_SECONDS)
                else:
                    reader = reader or self._log.reader(self._position)
                    for chunk in reader.poll(_POLL_SECONDS):
                        with self._applying:
                            self._apply(chunk.records)
                            self._advance(chunk.position)
            except StoreClosed:
                break
            except LogUnavailable as error:
                _release(reader)
                reader = None
                log.debug("the cache's log cannot be read now: %s", error)
                self._closed.wait(1.0)
            except EventStoreError as error:
                _release(reader)
                reader = None
                self._lose(str(error))
                self._closed.wait(1.0)
        _release(reader)
        self.close()

    def _tidy(self) -> None:
        now = self.clock()
        with self._applying:
            self._entries.sweep(now)
        self.changes.tidy()
        if isinstance(self._log, Trimmed):
            # What cannot be read now could not be read at the next start either.
            self._log.trim(now - DAY_US, 0 if self._damaged else self._log_bytes)
            self._damaged = False


def _release(reader: Reader | None) -> None:
    if reader is not None:
        reader.close()


def _outcome(results: Sequence[Written | BaseException]) -> bool:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return all(isinstance(result, Written) and result.records for result in results)
