"""One write batch of checkpoint rows in the making; nobody sees them yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rocksdict import WriteBatch

from eventstore.checkpoint.events import Event, decode
from eventstore.errors import UndecodableEvent
from eventstore.log.base import Chunk, StoredRecord
from eventstore.log.position import Position
from eventstore.views import Outcome, Quarantined
from projector.checkpoints.fold import Fold
from projector.checkpoints.overlay import Overlay
from projector.checkpoints.view import MaterializedCheckpoints
from projector.fold import WriterState
from projector.folding import Folded
from projector.intake import Decoding, Place, Writers
from projector.rocks import let_go


class _Unfit(Exception):
    """An event that shows only while it is applied that it cannot be decoded."""

    def __init__(self, place: Place, reason: UndecodableEvent) -> None:
        super().__init__()
        self.place = place
        self.reason = reason


class CheckpointFolding:
    """A :class:`projector.folding.Folds` for checkpoints; for one thread at a time."""

    def __init__(self, view: MaterializedCheckpoints, sets_aside: bool) -> None:
        """``sets_aside`` says that an event which cannot be applied does not stop those behind it."""
        self._view = view
        self._decoding = Decoding(decode, sets_aside)
        self._writers = Writers(lambda: view.db.default)

    def fold(
        self, chunks: Iterable[Chunk], start: Position, unfit: Mapping[Place, UndecodableEvent]
    ) -> Folded:
        """The rows of everything in ``chunks`` from ``start`` on.

        ``unfit`` are events that cannot be applied though they can be decoded. Raises ``ViewError``
        when the view cannot be read.
        """
        chunks, known = list(chunks), dict(unfit)
        while True:
            try:
                return self._folded(chunks, start, known)
            except _Unfit as found:
                # Anew, as if it had been known at once: what stops in front of an event applies nothing
                # of its batch, and the rows are that far already.
                known[found.place] = found.reason

    def commit(self, folded: Folded) -> None:
        """Make visible what :meth:`fold` returned last. Raises ``ViewError``; then nothing is."""
        self._view.commit(folded.batch, folded.end, folded.aside)
        self._writers.committed(folded.writers)

    def _folded(
        self, chunks: Sequence[Chunk], start: Position, unfit: Mapping[Place, UndecodableEvent]
    ) -> Folded:
        rows = Overlay(self._view.db.default)
        fold = Fold(rows, self._view.manifests)
        outcomes: dict[Place, Outcome] = {}
        latest: dict[bytes, WriterState] = {}
        aside: list[Quarantined] = []
        failure: UndecodableEvent | None = None
        upto = list(start)
        for chunk in chunks:
            try:
                decoded = self._decoding.fresh(chunk.records, upto, aside, unfit)
            except UndecodableEvent as error:
                failure = error
                break
            for record, event in decoded:
                if self._writers.is_duplicate(record, latest):
                    outcomes[record.partition, record.offset] = Outcome("duplicate", 0)
                elif not self._counts(fold, record, event):
                    outcomes[record.partition, record.offset] = Outcome("rejected", 0)
            upto = [max(reached, offset) for reached, offset in zip(upto, chunk.position, strict=True)]
        batch = WriteBatch(raw_mode=True)
        rows.write(batch)
        self._writers.write(batch, latest)
        end = Position(*upto)
        return Folded(start, end, batch, latest, {}, outcomes, [], None, aside, failure)

    @staticmethod
    def _counts(fold: Fold, record: StoredRecord, event: Event) -> bool:
        try:
            return fold.apply(record, event)
        except UndecodableEvent as error:
            let_go(error)
            raise _Unfit((record.partition, record.offset), error) from None
