"""One write batch in the making: events become rows of every projection, and nobody sees them yet.

What is folded waits in memory until the runner commits it, or drops it: until then neither the view
nor what is kept here of it has changed. When a batch is committed, and what becomes of an event that
cannot be applied, is decided by the runner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from rocksdict import WriteBatch

from eventstore.codec import decode
from eventstore.errors import UndecodableEvent
from eventstore.events import Kind
from eventstore.keys import ancestors, namespace_end
from eventstore.log.base import Chunk
from eventstore.log.position import Position
from eventstore.turns import EVERY_STEPS, in_turns
from eventstore.views import Outcome, Quarantined, Signature
from projector.fold import WriterState, fold, version_seen
from projector.intake import Decoding, Place, Writers
from projector.projections import history, models, recency, vectors
from projector.projections.base import Change
from projector.projections.items import Items
from projector.projections.namespaces import Namespaces
from projector.view import MaterializedView

_new = tuple.__new__  # half the time of calling the class, and this runs once per event


class Folded(NamedTuple):
    """What some chunks come to, ready to be committed at the position they were folded for."""

    start: Position
    end: Position
    batch: WriteBatch
    writers: dict[bytes, WriterState]
    counts: dict[bytes, tuple[int, int]]
    """By namespace: how many memories it holds itself, and with those below it."""
    outcomes: dict[Place, Outcome]
    """Of the events that were not simply applied."""
    changed: list[vectors.VectorRow]
    model: Signature | None
    """What is of record from here on, if that changed."""
    aside: list[Quarantined]
    failure: UndecodableEvent | None
    """What stopped it in front of an event; everything before its chunk is folded."""


class Folds(Protocol):
    """Makes write batches of one view."""

    def fold(
        self, chunks: Iterable[Chunk], start: Position, unfit: Mapping[Place, UndecodableEvent]
    ) -> Folded:
        """The rows of everything in ``chunks`` from ``start`` on, which nobody sees yet."""

    def commit(self, folded: Folded) -> None:
        """Make visible what :meth:`fold` returned last. Raises ``ViewError``; then nothing is."""


class Folding:
    """Folds chunks for one view; one at a time, in the order in which they are committed."""

    def __init__(self, view: MaterializedView, sets_aside: bool) -> None:
        """``sets_aside`` says that an event which cannot be applied does not stop those behind it."""
        self._view = view
        self._decoding = Decoding(decode, sets_aside)
        self._items = Items(view.db)
        self._namespaces = Namespaces(view.db)
        self._writers = Writers(lambda: view.db.default)

    def fold(
        self, chunks: Iterable[Chunk], start: Position, unfit: Mapping[Place, UndecodableEvent]
    ) -> Folded:
        """The rows of everything in ``chunks`` from ``start`` on.

        ``unfit`` are events that cannot be applied though they can be decoded. Raises ``ViewError``
        when the view cannot be read, and whatever a projection raises.
        """
        batch = WriteBatch(raw_mode=True)
        # No handle by itself: an error that is kept keeps this frame, and an open handle RocksDB.
        handles = self._view.db.handles
        outcomes: dict[Place, Outcome] = {}
        changed: list[vectors.VectorRow] = []
        writers: dict[bytes, WriterState] = {}
        aside: list[Quarantined] = []
        model: Signature | None = None
        failure: UndecodableEvent | None = None
        items, sequence = self._items, self._view.sequence
        items.begin()
        self._namespaces.begin()
        upto = list(start)
        for chunk in in_turns(chunks, EVERY_STEPS):
            try:
                decoded = self._decoding.fresh(chunk.records, upto, aside, unfit)
            except UndecodableEvent as error:
                failure = error
                break
            for record, event in in_turns(decoded, EVERY_STEPS):
                if self._writers.is_duplicate(record, writers):
                    outcomes[record.partition, record.offset] = Outcome("duplicate", 0)
                    continue
                if event.kind is Kind.MODEL:
                    model = models.write(batch, record, event)
                    continue
                key = event.key
                before = items.load(key)
                outcome, state = fold(before, event, record.time_us)
                if outcome != "applied":
                    version = version_seen(before, event, record.time_us)
                    outcomes[record.partition, record.offset] = Outcome(outcome, version)
                    if outcome == "void" and event.kind is not Kind.DELETE:
                        continue
                prefixes = ancestors(key[: namespace_end(key)])
                change = _new(Change, (record, event, outcome, before, state, prefixes))
                row = vectors.of(change)
                number = None if row is None else sequence + len(changed)
                history.write(batch, change, number, handles["history"])
                if outcome == "applied":
                    # The other rows of its memory are written once, at the end of the batch.
                    items.add(change)
                    if row is not None and number is not None:
                        vectors.write(batch, number, row, handles["vectors"])
                        changed.append(row)
            upto = [max(reached, offset) for reached, offset in zip(upto, chunk.position, strict=True)]
        counts = self._write(batch, writers)
        end = Position(*upto)
        return Folded(start, end, batch, writers, counts, outcomes, changed, model, aside, failure)

    def commit(self, folded: Folded) -> None:
        """Make visible what :meth:`fold` returned last. Raises ``ViewError``; then nothing is."""
        self._view.commit(folded.batch, folded.end, folded.changed, folded.model, folded.aside)
        self._namespaces.committed(folded.counts)
        self._writers.committed(folded.writers)

    def _write(self, batch: WriteBatch, writers: Mapping[bytes, WriterState]) -> dict[bytes, tuple[int, int]]:
        """Rows written once for all events of the batch; returns how many memories there are where."""
        handles = self._view.db.handles
        items, newest, counts = handles["items"], handles["recency"], self._namespaces
        for change in in_turns(self._items.changes(), EVERY_STEPS):
            self._items.write(batch, change, items)
            recency.write(batch, change, newest)
            counts.add(change)
        self._writers.write(batch, writers)
        return counts.write(batch, handles["namespaces"])
