"""The projector: reads the log, folds each event, commits views and position together.

An event is applied exactly once because its rows and the next offset are one write batch.
Events of one atomic batch are committed in one, too. An event that cannot be decoded stops the
projection where it is, with the reason, and reads go on from what is there; or, if that is the
policy, it is set aside, and the events behind it are applied.
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
from eventstore.config import OnUndecodable
from eventstore.errors import (
    EventStoreError,
    LogMismatch,
    UndecodableEvent,
    ViewBehind,
    ViewDamaged,
)
from eventstore.events import Event, Kind
from eventstore.interrupts import Uninterrupted
from eventstore.keys import ancestors, namespace_end
from eventstore.log.base import Chunk, Log, StoredRecord
from eventstore.log.position import Position
from eventstore.views import Outcome, Quarantined, Signature
from projector.fold import WriterState, fold, is_duplicate, version_seen
from projector.projections import history, models, quarantine, recency, vectors
from projector.projections.base import Change
from projector.projections.items import Items
from projector.projections.namespaces import Namespaces
from projector.rocks import get, let_go
from projector.view import MaterializedView

log = logging.getLogger("projector.runner")

COMMIT_RECORDS: Final = 1_000
"""Records gathered into one write batch while catching up."""
_WRITER: Final = struct.Struct(">QQ")

Progress = Callable[[Position, Position], None]
"""Told where the view stands and where the log ends while catching up."""


class Projector:
    """Keeps one view up to date with one log. Safe to call from several threads."""

    def __init__(self, source: Log, view: MaterializedView, on_undecodable: OnUndecodable = "stop") -> None:
        """Raises ``LogMismatch`` when the view holds more than the log has."""
        self._sets_aside = on_undecodable == "quarantine"
        self._log = source
        self._view = view
        self._applying = threading.RLock()
        # The lock is taken by itself, never through the condition, whose __enter__ is Python code
        # that Ctrl-C can end with the lock taken.
        self._advancing = threading.Lock()
        self._advanced = threading.Condition(self._advancing)
        self._writers: dict[bytes, WriterState] = {}
        self._own: dict[tuple[int, int], Outcome] = {}
        self._items = Items(view.db)
        self._namespaces = Namespaces(view.db)
        self.position = view.position(source.partitions)
        """Everything before it is visible."""
        self.stopped: EventStoreError | None = None
        self.unsure = False
        """Whether a commit broke off, so that only the view itself knows what it holds."""
        end = source.high_water_mark()
        if not end.covers(self.position):
            raise LogMismatch(
                f"the view in {view.directory} was built up to {self.position}, "
                f"but {source.location} ends at {end}: it was restored from an older copy, or cut. "
                "Restore the whole log; or, to accept the loss, "
                f"remove {view.directory} and the view is rebuilt from what is there"
            )

    def apply(self, lists: Sequence[Sequence[StoredRecord]]) -> None:
        """Commit lists of records just appended, each list wholly; those already applied are skipped.

        Raises what stopped the projection, or ``ViewError`` when the view could not be written;
        then it stands as before.
        """
        with self._applying:
            if any(records and records[0].offset > self.position[records[0].partition] for records in lists):
                self.catch_up()
            self._commit([Chunk(list(records), after(self.position, records)) for records in lists])
            if self.stopped is not None:
                raise self.stopped

    def offer(self, lists: Sequence[Sequence[StoredRecord]]) -> None:
        """Commit those of these lists that follow on the position, each wholly; leave the others."""
        with self._applying:
            chunks: list[Chunk] = []
            position = self.position
            for records in lists:
                if _follows(position, records):
                    position = after(position, records)
                    chunks.append(Chunk(list(records), position))
            if chunks:
                self._commit(chunks)

    def apply_chunks(self, chunks: Sequence[Chunk]) -> None:
        """Commit what the log sent; records already applied are skipped."""
        with self._applying:
            for first in range(0, len(chunks), COMMIT_RECORDS):
                self._commit(chunks[first : first + COMMIT_RECORDS])

    def outcomes(self, records: Sequence[StoredRecord]) -> dict[tuple[int, int], Outcome]:
        """What did not take effect of records appended by this process, by partition and offset.

        Asked once per record; whichever thread applied them.
        """
        found = {}
        for record in records:
            at = (record.partition, record.offset)
            if at in self._own:
                found[at] = self._own.pop(at)
        return found

    def catch_up(
        self,
        progress: Progress | None = None,
        *,
        limit: Position | None = None,
        stop: threading.Event | None = None,
        commit_records: int = COMMIT_RECORDS,
    ) -> None:
        """Apply everything up to the log's present end, or up to an event that stops the projection.

        With ``limit``, no further than that position; when ``stop`` is set, no further than the
        commit that is under way.
        """
        with self._applying:
            if self.stopped is not None:
                return
            gathered: list[Chunk] = []
            count = 0
            for chunk in self._log.chunks(self.position):
                if limit is not None:
                    chunk = _cut(chunk, limit)
                gathered.append(chunk)
                count += len(chunk.records)
                last = limit is not None and chunk.position.covers(limit)
                if count >= commit_records or last:
                    self._commit(gathered)
                    if last or self.stopped is not None or (stop is not None and stop.is_set()):
                        return
                    gathered, count = [], 0
                    if progress is not None:
                        progress(self.position, limit or self._log.high_water_mark())
            if gathered:
                self._commit(gathered)

    def switch(self, view: MaterializedView) -> None:
        """Go on with another view of the same log, which stands where this one does.

        The caller holds the lock of :meth:`hold`.
        """
        self._view = view
        self._items = Items(view.db)
        self._namespaces = Namespaces(view.db)
        self._writers.clear()
        self.unsure = False

    def hold(self) -> threading.RLock:
        """The lock under which nothing is applied."""
        return self._applying

    def wait_for(self, position: Position, timeout: float) -> bool:
        """Whether everything before a position is visible within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not self.position.covers(position):
            if self.stopped is not None:
                raise self.stopped
            if self._log.ahead_of(self.position):
                self.catch_up()
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with self._advancing:
                self._advanced.wait(min(left, 0.01))
        return True

    # ------------------------------------------------------------------ one commit

    def _commit(self, chunks: Sequence[Chunk]) -> None:
        if self.stopped is not None:
            return
        if self.unsure:
            raise ViewBehind("the view is being opened anew after a failure; try again")
        with Uninterrupted():
            try:
                self._fold(chunks)
            except BaseException as error:
                # Not only errors: an interrupt of another kind can fall between the view's write and
                # what is kept of it here.
                self.unsure = True
                let_go(error)
                if isinstance(error, ViewDamaged):
                    self._view.mark_damaged()
                raise

    def _fold(self, chunks: Sequence[Chunk]) -> None:
        batch = WriteBatch(raw_mode=True)
        outcomes: dict[tuple[int, int], Outcome] = {}
        changed: list[vectors.VectorRow] = []
        writers: dict[bytes, WriterState] = {}
        model: Signature | None = None
        aside: list[Quarantined] = []
        self._items.begin()
        self._namespaces.begin()
        upto = list(self.position)
        failure: UndecodableEvent | None = None
        for chunk in chunks:
            fresh = [record for record in chunk.records if record.offset >= upto[record.partition]]
            try:
                decoded = self._decode(fresh, aside)
            except UndecodableEvent as error:
                failure = error
                break
            for record, event in decoded:
                session = record.session + record.partition.to_bytes(2, "big")
                writer = writers.get(session) or self._writer(session)
                if is_duplicate(writer, record):
                    outcomes[record.partition, record.offset] = Outcome("duplicate", 0)
                    continue
                writers[session] = WriterState(record.sequence, record.appended_us)
                if event.kind is Kind.MODEL:
                    model = models.write(batch, record, event)
                    continue
                before = self._items.load(event.key)
                decision = fold(before, event, record.time_us)
                if decision.outcome != "applied":
                    version = version_seen(before, event, record.time_us)
                    outcomes[record.partition, record.offset] = Outcome(decision.outcome, version)
                    if decision.outcome == "void" and event.kind is not Kind.DELETE:
                        continue
                prefixes = ancestors(event.key[: namespace_end(event.key)])
                change = Change(record, event, decision.outcome, before, decision.state, prefixes)
                self._note(batch, change, changed)
            upto = [max(reached, offset) for reached, offset in zip(upto, chunk.position, strict=True)]
        position = Position(*upto)
        if position != self.position:
            if outcomes:
                # Ours are kept before they are visible: whoever waits for them asks right after.
                self._own.update(
                    ((record.partition, record.offset), outcomes[record.partition, record.offset])
                    for chunk in chunks
                    for record in chunk.records
                    if record.session == self._log.session and (record.partition, record.offset) in outcomes
                )
            self._finish(batch, position, writers, changed, model, aside)
        if failure is not None:
            self.stopped = failure
            log.error(
                "the projection stopped; reads go on from what is there, writes are refused: %s", failure
            )

    def _decode(
        self, records: Sequence[StoredRecord], aside: list[Quarantined]
    ) -> list[tuple[StoredRecord, Event]]:
        """Records with their events. Raises ``UndecodableEvent`` unless such records are set aside.

        Of an atomic batch only they are: which records a log gives out together can differ between
        two readers, what their views hold must not.
        """
        decoded = []
        for record in records:
            try:
                decoded.append((record, decode(record)))
            except UndecodableEvent as error:
                if not self._sets_aside:
                    raise
                aside.append(quarantine.of(record, error))
        return decoded

    def _note(self, batch: WriteBatch, change: Change, changed: list[vectors.VectorRow]) -> None:
        """Rows that every event leaves; those of its memory are written once, at the end of the batch."""
        handles = self._view.db.handles
        row = vectors.of(change)
        sequence = self._view.sequence + len(changed)
        history.write(batch, change, None if row is None else sequence, handles["history"])
        if change.outcome != "applied":
            return
        self._items.add(change)
        if row is not None:
            vectors.write(batch, sequence, row, handles["vectors"])
            changed.append(row)

    def _finish(
        self,
        batch: WriteBatch,
        upto: Position,
        writers: dict[bytes, WriterState],
        changed: list[vectors.VectorRow],
        model: Signature | None,
        aside: Sequence[Quarantined],
    ) -> None:
        handles = self._view.db.handles
        for change in self._items.changes():
            self._items.write(batch, change, handles["items"])
            recency.write(batch, change, handles["recency"])
            self._namespaces.add(change)
        self._namespaces.write(batch, handles["namespaces"])
        for session, state in writers.items():
            batch.put(b"w" + session, _WRITER.pack(*state))
        self._view.commit(batch, upto, changed, model, aside)
        self._namespaces.committed()
        self._writers.update(writers)
        if len(self._writers) > 10_000:
            self._writers.clear()
        self.position = upto
        with self._advancing:
            self._advanced.notify_all()
        for each in aside:
            log.error(
                "an event is set aside and those behind it are applied: partition %d, offset %d: %s",
                each.partition, each.offset, each.reason,
            )  # fmt: skip

    def _writer(self, session: bytes) -> WriterState | None:
        known = self._writers.get(session)
        if known is None:
            data = get(self._view.db.default, b"w" + session)
            if data is not None:
                known = self._writers[session] = WriterState(*_WRITER.unpack(data))
        return known


def after(position: Position, records: Sequence[StoredRecord]) -> Position:
    """Where a reader that stands at a position stands after these records too."""
    for record in records:
        position = position.advanced(record.partition, record.offset + 1)
    return position


def _cut(chunk: Chunk, limit: Position) -> Chunk:
    """What of a chunk lies before a position."""
    if limit.covers(chunk.position):
        return chunk
    reached = Position(*map(min, chunk.position, limit))
    return Chunk([record for record in chunk.records if record.offset < limit[record.partition]], reached)


def _follows(position: Position, records: Sequence[StoredRecord]) -> bool:
    """Whether records are the very next ones of their partitions."""
    for record in records:
        if record.offset != position[record.partition]:
            return False
        position = position.advanced(record.partition, record.offset + 1)
    return True


class Follower:
    """Looks at regular times for what other processes appended, in a daemon thread."""

    def __init__(self, step: Callable[[], None], interval: float) -> None:
        self._step = step
        self._interval = interval
        self._stop = threading.Event()
        self.failure: EventStoreError | None = None
        """What the last look failed with, if it did."""
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
                self.failure = None
            except EventStoreError as error:
                self.failure = error
                # The same error meets every read that asks for the latest state, and every write.
                self._stop.wait(1.0)
