"""The projector: reads the log, folds each event, commits views and position together.

An event is applied exactly once because its rows and the next offset are one write batch.
Events of one atomic batch are committed in one, too. An event that cannot be decoded stops the
projection where it is, with the reason; reads go on from what is there.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from rocksdict import WriteBatch

from eventstore.codec import decode
from eventstore.errors import EventStoreError, LogMismatch, UndecodableEvent
from eventstore.keys import decode_item, encode_namespace
from eventstore.log.base import Log, StoredRecord
from eventstore.views import Outcome
from projector.fold import WriterState, fold, is_duplicate
from projector.projections import history, recency, vectors
from projector.projections.base import Change
from projector.projections.items import Items
from projector.projections.namespaces import Namespaces
from projector.view import MaterializedView

log = logging.getLogger("projector.runner")

COMMIT_RECORDS: Final = 1_000
"""Records gathered into one write batch while catching up."""
_WRITER: Final = struct.Struct(">QQ")

Progress = Callable[[int, int], None]
"""Told the next offset and the end while catching up."""


class Projector:
    """Keeps one view up to date with one log. Safe to call from several threads."""

    def __init__(self, source: Log, view: MaterializedView) -> None:
        """Raises ``LogMismatch`` when the view holds more than the log has."""
        self._log = source
        self._view = view
        self._applying = threading.RLock()
        self._advanced = threading.Condition()
        self._writers: dict[bytes, WriterState] = {}
        self._items = Items(view.db)
        self._namespaces = Namespaces(view.db)
        self.next: int = view.next_offset()
        self.stopped: EventStoreError | None = None
        end = source.end()
        if self.next > end:
            raise LogMismatch(
                f"the view in {view.directory} was built up to offset {self.next}, "
                f"but {source.location} ends at {end}: it was restored from an older copy, or cut. "
                "Restore the whole log; or, to accept the loss, "
                f"remove {view.directory} and the view is rebuilt from what is there"
            )

    def apply(self, lists: Sequence[Sequence[StoredRecord]]) -> dict[int, Outcome]:
        """Commit lists of records, each list wholly; those already applied are skipped.

        Returns, by offset, what did not take effect. Raises what stopped the projection, or
        ``ViewError`` when the view could not be written; then it stands as before.
        """
        with self._applying:
            if lists and lists[0] and lists[0][0].offset > self.next:
                self.catch_up()
            outcomes = self._commit(lists)
            if self.stopped is not None:
                raise self.stopped
            return outcomes

    def catch_up(self, progress: Progress | None = None) -> None:
        """Apply everything up to the log's present end, or up to an event that stops the projection."""
        with self._applying:
            if self.stopped is not None:
                return
            gathered: list[list[StoredRecord]] = []
            count = 0
            for records in self._log.read(self.next):
                gathered.append(records)
                count += len(records)
                if count >= COMMIT_RECORDS:
                    self._commit(gathered)
                    if self.stopped is not None:
                        return
                    gathered, count = [], 0
                    if progress is not None:
                        progress(self.next, self._log.end())
            if gathered:
                self._commit(gathered)

    def hold(self) -> threading.RLock:
        """The lock under which nothing is applied."""
        return self._applying

    def wait_for(self, offset: int, timeout: float) -> bool:
        """Whether everything below an offset is visible within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while self.next < offset:
            if self.stopped is not None:
                raise self.stopped
            if self._log.end() > self.next:
                self.catch_up()
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._advanced:
                self._advanced.wait(min(left, 0.01))
        return True

    # ------------------------------------------------------------------ one commit

    def _commit(self, lists: Sequence[Sequence[StoredRecord]]) -> dict[int, Outcome]:
        if self.stopped is not None:
            return {}
        batch = WriteBatch(raw_mode=True)
        outcomes: dict[int, Outcome] = {}
        changed: list[vectors.VectorRow] = []
        writers: dict[bytes, WriterState] = {}
        self._items.begin()
        self._namespaces.begin()
        upto = self.next
        failure: UndecodableEvent | None = None
        for records in lists:
            try:
                events = [decode(record) for record in records if record.offset >= upto]
            except UndecodableEvent as error:
                failure = error
                break
            fresh = [record for record in records if record.offset >= upto]
            for record, event in zip(fresh, events, strict=True):
                writer = writers.get(record.session) or self._writer(record.session)
                if is_duplicate(writer, record):
                    outcomes[record.offset] = Outcome("duplicate", 0)
                    continue
                writers[record.session] = WriterState(record.sequence, record.appended_us)
                before = self._items.load(event.key)
                decision = fold(before, event, record.time_us)
                if decision.outcome != "applied":
                    version = before.version if before.live else 0
                    outcomes[record.offset] = Outcome(decision.outcome, version)
                    if decision.outcome == "void":
                        continue
                labels, _ = decode_item(event.key)
                change = Change(
                    record, event, decision.outcome, before, decision.state, encode_namespace(labels), labels
                )
                self._write(batch, change, changed)
            if records:
                upto = max(upto, records[-1].offset + 1)
        if upto > self.next:
            self._finish(batch, upto, writers, changed)
        if failure is not None:
            self.stopped = failure
            log.error(
                "the projection stopped; reads go on from what is there, writes are refused: %s", failure
            )
        return outcomes

    def _write(self, batch: WriteBatch, change: Change, changed: list[vectors.VectorRow]) -> None:
        handles = self._view.db.handles
        history.write(batch, change, handles["history"])
        if change.outcome != "applied":
            return
        self._items.write(batch, change, handles["items"])
        recency.write(batch, change, handles["recency"])
        self._namespaces.add(change)
        row = vectors.of(change)
        if row is not None:
            vectors.write(batch, change.record.partition, row, handles["vectors"])
            changed.append(row)

    def _finish(
        self,
        batch: WriteBatch,
        upto: int,
        writers: dict[bytes, WriterState],
        changed: list[vectors.VectorRow],
    ) -> None:
        self._namespaces.write(batch, self._view.db.handles["namespaces"])
        for session, state in writers.items():
            batch.put(b"w" + session, _WRITER.pack(*state))
        self._view.commit(batch, upto, changed)
        self._namespaces.committed()
        self._writers.update(writers)
        if len(self._writers) > 10_000:
            self._writers.clear()
        self.next = upto
        with self._advanced:
            self._advanced.notify_all()

    def _writer(self, session: bytes) -> WriterState | None:
        known = self._writers.get(session)
        if known is None:
            data = self._view.db.default.get(b"w" + session)
            if data is not None:
                known = self._writers[session] = WriterState(*_WRITER.unpack(data))
        return known


class Follower:
    """Looks at regular times for what other processes appended, in a daemon thread."""

    def __init__(self, step: Callable[[], None], interval: float) -> None:
        self._step = step
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="eventstore-follower", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End the thread, within ``timeout`` seconds."""
        self._stop.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._step()
            except EventStoreError:
                # The same error meets every read that asks for the latest state, and every write.
                self._stop.wait(1.0)
