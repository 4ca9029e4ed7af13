"""The view as it was: reads of a past position, answered from the history family.

What a memory was is its newest history row before the position; its vectors are the ones that
row names, or those that were added to it for the model of record. Ranges are walked from memory to
memory and ranked by brute force, with the scoring of the live index, so an answer is the one that
was given then, scores included. Nothing here is kept: a moment lives for one batch of questions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from eventstore.embedding import same_model
from eventstore.errors import IndexMismatch
from eventstore.keys import ancestors, memory_of, namespace_end
from eventstore.log.position import Position
from eventstore.views import (
    HistoryRow,
    NamespaceCount,
    Occurrence,
    Quarantined,
    Ranking,
    Ranks,
    Row,
    Signature,
    Vector,
    Wanted,
)
from projector.projections import history, models, quarantine, vectors
from projector.projections.history import Standing
from projector.rocks import Database
from projector.vectors import State
from projector.vectors.alive import state_of


class PastMoment:
    """A :class:`eventstore.views.ReadView` at a position that the view has passed."""

    def __init__(
        self, db: Database, position: Position, ranks: Ranks | None, aside: quarantine.Quarantine
    ) -> None:
        """Without ``ranks`` nothing is ranked; ``aside`` is what the view has set aside, by now."""
        self._history = db.history.snapshot()
        self._default = db.default
        self._vectors = db.vectors
        self._position = position
        self._ranks = ranks
        self._aside = aside
        self._walked: dict[bytes, dict[bytes, Standing]] = {}
        self._states: dict[bytes, State] = {}

    def get(self, key: bytes) -> Row | None:
        self._warn(key)
        found = history.standing_at(self._history, key, self._position)
        return None if found is None else _row(found)

    def newest(self, prefix: bytes) -> Iterator[bytes]:
        # They come in key order, and sorting is stable.
        found = sorted(self._standing(prefix).values(), key=lambda each: -each.updated_us)
        return (each.key for each in found)

    def scan(
        self, prefix: bytes, start: bytes | None = None, holding: Sequence[bytes] = (), expected: int = 0
    ) -> Iterator[Row]:
        for each in history.standing(self._history, prefix, self._position):
            if start is None or each.key >= start:
                yield _row(each)

    def count(self, prefix: bytes) -> int:
        return len(self._standing(prefix))

    def namespaces(self, prefix: bytes, max_depth: int | None) -> Iterator[NamespaceCount]:
        direct = Counter(key[: namespace_end(key)] for key in self._standing(prefix))
        subtree: Counter[bytes] = Counter()
        for namespace, count in direct.items():
            for above in ancestors(namespace):
                if above.startswith(prefix):
                    subtree[above] += count
        for namespace, count in sorted(subtree.items()):
            if max_depth is None or namespace.count(0) <= max_depth:
                yield NamespaceCount(namespace, direct[namespace], count)

    def expired(self, until_us: int) -> Iterator[tuple[int, bytes]]:
        found = ((each.expires_us, each.key) for each in self._standing(b"").values())
        yield from sorted(pair for pair in found if 0 < pair[0] <= until_us)

    def rank(
        self,
        query: Vector,
        prefix: bytes,
        k: int,
        only: Collection[bytes] | None = None,
        *,
        exact: bool = False,
    ) -> Ranking:
        if self._ranks is None:
            return Ranking([], True)
        found = self._state(prefix, self._ranks).rank(query, prefix, k, only=only, exact=True)
        return Ranking(found.hits, found.complete)

    def ranked(self) -> Signature | None:
        if self._ranks is None:
            return None
        dims, _, model = self._ranks
        of_record = models.of_record(self._default, self._position[0])
        if of_record is not None and not same_model(of_record, dims, model):
            raise IndexMismatch(
                f"as of {self._position} the vectors on record were made by {of_record.model!r}, the store "
                f"ranks by {model!r}: give as_of(…, index=…) the settings of that model"
            )
        return Signature(model, dims, None if of_record is None else of_record.fields)

    def rows_to_rank(self, prefix: bytes) -> int:
        return 0 if self._ranks is None else self._state(prefix, self._ranks).count(prefix)

    def history(self, key: bytes, before: int | None) -> Iterator[HistoryRow]:
        self._warn(key)
        for row in history.read(self._history, key, before):
            if row.offset < self._position[row.partition]:
                yield row

    def events(self, prefix: bytes, wanted: Wanted) -> Iterator[Occurrence]:
        for each in history.events(self._history, prefix, wanted):
            if each.offset < self._position[each.partition]:
                yield each

    def vectors(self, sequence: int) -> tuple[str, Vector]:
        return vectors.at(self._vectors, sequence)

    def quarantined(self) -> Iterator[Quarantined]:
        for each in quarantine.read(self._default):
            if each.offset < self._position[each.partition]:
                yield each

    def _warn(self, memory: bytes) -> None:
        """As live reads do, where an event that the memory lacks lies before this moment."""
        last = self._aside.memories.get(memory)
        if last is None:
            return
        if last.offset < self._position[last.partition] or any(
            memory_of(each.key) == memory for each in self.quarantined()
        ):
            self._aside.warn(memory)

    def _standing(self, prefix: bytes) -> dict[bytes, Standing]:
        """Memories under a prefix in key order, without their values, which may be many megabytes."""
        known = self._walked.get(prefix)
        if known is None:
            walked = history.standing(self._history, prefix, self._position)
            known = self._walked[prefix] = {each.key: each._replace(packed=b"") for each in walked}
        return known

    def _state(self, prefix: bytes, ranks: Ranks) -> State:
        known = self._states.get(prefix)
        if known is None:
            sequences = [at for each in self._standing(prefix).values() for at in each.vectors]
            index = self.ranked() if sequences else None
            chosen: dict[bytes, Vector] = {}
            for row in vectors.read_some(self._vectors, sequences):
                # Vectors of another model or another index are skipped, as by the live view.
                if index is not None and row.counts_for(index):
                    chosen.setdefault(row.key, row.vectors if row.fits(index) else row.vectors[:0])
            rows = ((key, made) for key, made in chosen.items() if len(made))
            known = self._states[prefix] = state_of(rows, ranks.dims, ranks.metric)
        return known


def _row(found: Standing) -> Row:
    return Row(*found[:6], found.value())
