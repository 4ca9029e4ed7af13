"""Which events of an atomic batch cannot be applied, though they can be decoded: found by trying.

A projection that fails on an event is a defect of this release, and may show only together with what
was folded before. So nothing is asked of the projections: a part of the batch is folded, on top of
what is known to go well, and dropped again; where that fails, its halves are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore.errors import EventStoreError, UnappliedEvent, UndecodableEvent
from eventstore.log.base import Chunk, StoredRecord
from eventstore.log.position import Position
from projector.folding import Folds
from projector.intake import Place
from projector.rocks import let_go

NOT_OF_AN_EVENT: Final = (EventStoreError, MemoryError, RecursionError)
"""What may be raised while an event is folded and says nothing about it: another try may go well."""


def find_unfit(
    folding: Folds, records: Sequence[StoredRecord], start: Position, *, all_of_them: bool
) -> dict[Place, UndecodableEvent]:
    """The events that folding fails on, or only the first, with what each fails with.

    Raises ``ViewError`` when the view cannot be read.
    """
    found: dict[Place, UndecodableEvent] = {}

    def fitting(good: list[StoredRecord], some: Sequence[StoredRecord]) -> list[StoredRecord]:
        """Those of some records that can be folded behind the good ones."""
        if found and not all_of_them:
            return []
        error = _attempt(folding, [*good, *some], start)
        if error is None:
            return list(some)
        if len(some) == 1:
            found[some[0].partition, some[0].offset] = _unapplied(some[0], error)
            return []
        middle = len(some) // 2
        kept = fitting(good, some[:middle])
        return kept + fitting(good + kept, some[middle:])

    fitting([], records)
    return found


def _attempt(folding: Folds, records: list[StoredRecord], start: Position) -> Exception | None:
    try:
        folding.fold([Chunk(records, start)], start, {})
    except NOT_OF_AN_EVENT:
        raise
    except Exception as error:
        let_go(error)
        return error
    return None


def _unapplied(record: StoredRecord, error: Exception) -> UnappliedEvent:
    """What is said of it: where it failed and with what kind of error, whose text may hold a memory's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" in {trace.tb_frame.f_globals.get('__name__')}, line {trace.tb_lineno}"
    failed = UnappliedEvent(
        f"partition {record.partition}, offset {record.offset}: "
        f"a projection fails on the event ({type(error).__name__}{where})"
    )
    failed.__cause__ = error
    return failed
