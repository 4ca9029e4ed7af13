"""The projector: reads the log, has its events folded, commits views and position together.

An event is applied exactly once because its rows and the next offset are one write batch.
Events of one atomic batch are committed in one, too. An event that cannot be applied, because it
cannot be decoded or because a projection fails on it, stops the projection where it is, with the
reason, and reads go on from what is there; or, if that is the policy, it is set aside, and the
events behind it are applied.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from eventstore.config import OnUndecodable
from eventstore.errors import (
    EventStoreError,
    LogMismatch,
    StoreClosed,
    ViewBehind,
    ViewDamaged,
)
from eventstore.interrupts import Uninterrupted
from eventstore.log.base import Chunk, Log, StoredRecord
from eventstore.log.position import Position
from eventstore.views import Outcome, Quarantined
from projector.collector import HeldCollector
from projector.folding import Folded, Folding, Folds
from projector.intake import Place
from projector.projections import quarantine
from projector.rocks import let_go
from projector.unfit import NOT_OF_AN_EVENT, find_unfit

log = logging.getLogger("projector.runner")

COMMIT_RECORDS: Final = 1_000
"""Records gathered into one write batch while catching up."""
MANY_RECORDS: Final = 200
"""From so many on, catching up is worth holding the garbage collector off."""

Progress = Callable[[Position, Position], None]
"""Told where the view stands and where the log ends while catching up."""


class _Early(NamedTuple):
    """Records that were folded before they were durable."""

    lists: Sequence[Sequence[StoredRecord]]
    folded: Folded | Exception


class Projected(Protocol):
    """A view as whoever keeps it up to date sees it."""

    @property
    def directory(self) -> Path: ...

    @property
    def quarantine(self) -> quarantine.Quarantine: ...

    @property
    def is_open(self) -> bool: ...

    def position(self, partitions: int) -> Position:
        """Where it stands. Raises ``LogMismatch`` for a log of another number of partitions."""

    def mark_damaged(self) -> None:
        """Have the next open rebuild it."""


class Projector:
    """Keeps one view up to date with one log. Safe to call from several threads."""

    def __init__(
        self,
        source: Log,
        view: Projected,
        on_undecodable: OnUndecodable = "stop",
        folding: Callable[[Any, bool], Folds] = Folding,
    ) -> None:
        """``folding`` is given the view, and whether what cannot be applied is set aside.

        Raises ``LogMismatch`` when the view holds more than the log has.
        """
        self._sets_aside = on_undecodable == "quarantine"
        self._fold_for = folding
        self._log = source
        self._applying = threading.RLock()
        # The lock is taken by itself, never through the condition, whose __enter__ is Python code
        # that Ctrl-C can end with the lock taken.
        self._advancing = threading.Lock()
        self._advanced = threading.Condition(self._advancing)
        self._own: dict[Place, Outcome] = {}
        self._own_aside: dict[Place, Quarantined] = {}
        self._show(view)
        self.position = view.position(source.partitions)
        """Everything before it is visible."""
        self.stopped: EventStoreError | None = None
        end = source.high_water_mark()
        if not end.covers(self.position):
            raise LogMismatch(
                f"the view in {view.directory} was built up to {self.position}, "
                f"but {source.location} ends at {end}: it was restored from an older copy, or cut. "
                "Restore the whole log; or, to accept the loss, "
                f"remove {view.directory} and the view is rebuilt from what is there"
            )

    def _show(self, view: Projected) -> None:
        self._view = view
        self._folding = self._fold_for(view, self._sets_aside)
        self._early: _Early | None = None
        self.unsure = False
        """Whether a commit broke off, so that only the view itself knows what it holds."""

    def expect(self, lists: Sequence[Sequence[StoredRecord]]) -> None:
        """Fold lists of records that are about to be durable, and show nothing of them.

        :meth:`apply` then has less to do. It may be called for the very same lists or not at all.
        """
        with self._applying:
            self._early = None
            if self.stopped is None and not self.unsure and self._are_next(lists):
                try:
                    self._early = _Early(lists, self._folding.fold(self._chunks(lists), self.position, {}))
                except Exception as error:
                    let_go(error)
                    self._early = _Early(lists, error)

    def apply(self, lists: Sequence[Sequence[StoredRecord]]) -> None:
        """Commit lists of records just appended, each list wholly; those already applied are skipped.

        Raises what stopped the projection, or ``ViewError`` when the view could not be written;
        then it stands as before.
        """
        with self._applying:
            early, self._early = self._early, None
            if any(records and records[0].offset > self.position[records[0].partition] for records in lists):
                self.catch_up()
            expected = early.folded if early is not None and early.lists is lists else None
            self._commit(self._chunks(lists), expected)
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

    def outcomes(self, records: Sequence[StoredRecord]) -> dict[Place, Outcome]:
        """What did not take effect of records appended by this process, by partition and offset.

        Asked once per record; whichever thread applied them. Raises ``UnappliedEvent`` for one that
        was set aside.
        """
        found = {}
        aside: Quarantined | None = None
        if self._own or self._own_aside:
            for record in records:
                at = (record.partition, record.offset)
                if at in self._own:
                    found[at] = self._own.pop(at)
                aside = self._own_aside.pop(at, None) or aside
        if aside is not None:
            raise quarantine.not_shown(aside)
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
        with self._applying, HeldCollector() as collector:
            if self.stopped is not None:
                return
            gathered: list[Chunk] = []
            count = 0
            for chunk in self._log.chunks(self.position):
                if limit is not None:
                    chunk = _cut(chunk, limit)
                gathered.append(chunk)
                count += len(chunk.records)
                if count >= MANY_RECORDS:
                    collector.hold()
                last = limit is not None and chunk.position.covers(limit)
                if count >= commit_records or last:
                    self._commit(gathered)
                    if last or self.stopped is not None or (stop is not None and stop.is_set()):
                        return
                    gathered, count = [], 0
                    collector.let_collect()
                    if progress is not None:
                        progress(self.position, limit or self._log.high_water_mark())
            if gathered:
                self._commit(gathered)

    def switch(self, view: Projected) -> None:
        """Go on with another view of the same log, which stands where this one does.

        The caller holds the lock of :meth:`hold`.
        """
        self._show(view)

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

    def _commit(self, chunks: Sequence[Chunk], expected: Folded | Exception | None = None) -> None:
        if self.stopped is not None:
            return
        if self.unsure:
            raise ViewBehind("the view is being opened anew after a failure; try again")
        with Uninterrupted():
            try:
                foreign = self._fold(chunks, expected)
            except BaseException as error:
                # Not only errors: an interrupt of another kind can fall between the view's write and
                # what is kept of it here.
                self.unsure = True
                let_go(error)
                if isinstance(error, ViewDamaged):
                    self._view.mark_damaged()
                raise
        if foreign is not None:
            raise foreign

    def _fold(self, chunks: Sequence[Chunk], expected: Folded | Exception | None = None) -> Exception | None:
        """Fold and commit. What was raised meanwhile, once, and not by an event, is given back."""
        try:
            if isinstance(expected, Exception):
                raise expected
            if expected is not None and expected.start is self.position:
                folded = expected
            else:
                folded = self._folding.fold(chunks, self.position, {})
        except NOT_OF_AN_EVENT:
            raise
        except Exception as error:
            let_go(error)
            if not self._view.is_open:
                raise StoreClosed("the store is closed; open it again to use it") from error
            return self._fold_apart(chunks, error)
        self._finish(chunks, folded)
        return None

    def _fold_apart(self, chunks: Sequence[Chunk], error: Exception) -> Exception | None:
        """Find the events that folding fails on, by halves, and commit what is before and behind them.

        One is believed to be the cause when it fails again; an error that does not come back fell in
        from elsewhere, a signal's handler say, and is not an event's.
        """
        known = self._view.quarantine.count
        if len(chunks) == 1:
            records = [r for r in chunks[0].records if r.offset >= self.position[r.partition]]
            unfit = find_unfit(self._folding, records, self.position, all_of_them=self._sets_aside)
            self._finish(chunks, self._folding.fold(chunks, self.position, unfit))
        else:
            middle = len(chunks) // 2
            for half in (chunks[:middle], chunks[middle:]):
                if self.stopped is None:
                    self._fold(half)
        explained = self.stopped is not None or self._view.quarantine.count > known
        return None if explained else error

    def _finish(self, chunks: Sequence[Chunk], folded: Folded) -> None:
        if folded.end != self.position:
            outcomes, aside = folded.outcomes, folded.aside
            if outcomes or aside:
                # Ours are kept before they are visible: whoever waits for them asks right after.
                session = self._log.session
                own = {(r.partition, r.offset) for c in chunks for r in c.records if r.session == session}
                self._own.update((at, outcome) for at, outcome in outcomes.items() if at in own)
                places = (((each.partition, each.offset), each) for each in aside)
                self._own_aside.update((at, each) for at, each in places if at in own)
            self._folding.commit(folded)
            self.position = folded.end
            with self._advancing:
                self._advanced.notify_all()
            for each in aside:
                log.error(
                    "an event is set aside and those behind it are applied: partition %d, offset %d: %s",
                    each.partition, each.offset, each.reason,
                )  # fmt: skip
        if folded.failure is not None:
            self.stopped = folded.failure
            log.error(
                "the projection stopped; reads go on from what is there, writes are refused: %s",
                folded.failure,
            )

    def _are_next(self, lists: Sequence[Sequence[StoredRecord]]) -> bool:
        """Whether nothing lies between the view and the records, or between two of their lists."""
        reached = list(self.position)
        for records in lists:
            if records and records[0].offset > reached[records[0].partition]:
                return False
            for record in records:
                reached[record.partition] = record.offset + 1
        return True

    def _chunks(self, lists: Sequence[Sequence[StoredRecord]]) -> list[Chunk]:
        position = self.position
        return [Chunk(list(records), after(position, records)) for records in lists]


def after(position: Position, records: Sequence[StoredRecord]) -> Position:
    """Where a reader that stands at a position stands after these records too."""
    if len(position) == 1:
        return position.advanced(0, records[-1].offset + 1) if records else position
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
