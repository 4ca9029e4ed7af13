"""One materialized view: RocksDB and the FAISS index of one directory, read as one moment.

Writes come from the projector alone, in one RocksDB batch with the position. Readers never
wait for a flush of the disk; they share with the writer only the short lock under which the
batch and the vectors of one commit become visible together.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from rocksdict import DbClosedError, WriteBatch

from eventstore.embedding import check_same_model, differs, same_model
from eventstore.errors import (
    EventStoreError,
    IndexMismatch,
    StoreClosed,
    ViewBehind,
    ViewDamaged,
    ViewError,
)
from eventstore.log.position import Position
from eventstore.views import Metric, Quarantined, Ranks, Row, Signature
from projector.collector import HeldCollector
from projector.indexing import edition, feed, indexed
from projector.meta import FORMAT, POSITION, check_made_from, position_in
from projector.moment import Moment
from projector.past import PastMoment
from projector.projections import items, models, quarantine, vectors
from projector.rocks import Database, let_go, translate
from projector.vectors import VectorIndex, manifest

log = logging.getLogger("projector.view")

M = TypeVar("M")

CLOSE_SECONDS: Final = 5.0
SAVED_ROWS: Final = 256
_FEED_ROWS: Final = 4_096


class MaterializedView:
    """A :class:`eventstore.views.View` on one directory. One process at a time (its lease)."""

    def __init__(self, directory: Path, log_id: str, cache_bytes: int) -> None:
        """Open or create. Raises ``ViewDamaged``, or ``LogMismatch`` for a view of another log."""
        self.directory = directory
        self.lock = threading.Lock()
        self.index: VectorIndex | None = None
        self._ranks = Ranks(0, "cosine", "")
        self._fields: tuple[str, ...] | None = None
        self._log_id = log_id
        self._reading = 0
        self._idle = threading.Condition(self.lock)
        # Entered through the lock: a condition's own __enter__ can be left by Ctrl-C with the lock taken.
        self._closed = self._anew = False
        self._closing = threading.Lock()
        self._successor: MaterializedView | None = None
        self.db = Database(directory / "rocksdb", cache_bytes)
        try:
            self._signature = self._check(log_id)
            self.sequence = vectors.end(self.db.vectors)
            """What the next row of vectors is stored under."""
            self.quarantine = quarantine.Quarantine(self.db.default)
        except BaseException:
            self.db.close()
            raise

    # ------------------------------------------------------------------ reading

    def get(self, key: bytes) -> Row | None:
        try:
            data = self.db.items.get(key)
        except (DbClosedError, AttributeError):
            if self._successor is not None:
                return self._successor.get(key)
            raise self._refusal() from None
        except Exception as error:
            failed = translate(error, "reading a memory")
            if isinstance(failed, ViewDamaged):
                self.mark_damaged()
            raise failed from error
        if key in self.quarantine.memories:
            self.quarantine.warn(key)
        return None if data is None else items.row(key, data)

    def read(self) -> AbstractContextManager[Moment]:
        return self._pinned(MaterializedView._moment)

    def past(self, position: Position, ranks: Ranks | None = None) -> AbstractContextManager[PastMoment]:
        return self._pinned(lambda view: PastMoment(view.db, position, ranks, view.quarantine))

    def _moment(self) -> Moment:
        state = None if self.index is None else self.index.state()
        return Moment(self.db, state, self.ranked(), self.quarantine)

    @contextmanager
    def _pinned(self, take: Callable[[MaterializedView], M]) -> Iterator[M]:
        with self.lock:
            successor = self._successor
            if successor is None:
                if self._closed:
                    raise self._refusal()
                moment = take(self)
                self._reading += 1
        if successor is not None:
            with successor._pinned(take) as moment:
                yield moment
            return
        try:
            yield moment
        except ViewDamaged as error:
            let_go(error)
            self.mark_damaged()
            raise
        except DbClosedError:
            raise self._refusal() from None
        finally:
            # Whoever still holds the moment, in an error's frames say, must not keep RocksDB open.
            vars(moment).clear()
            with self.lock:
                self._reading -= 1
                if not self._reading:
                    self._idle.notify_all()

    def signature(self) -> Signature | None:
        return self._signature

    def ranked(self) -> Signature | None:
        """What the open index is of; ``None`` while there is none."""
        return None if self.index is None else Signature(self._ranks.model, self._ranks.dims, self._fields)

    @property
    def is_open(self) -> bool:
        """Whether it can be written."""
        return self.db.is_open

    def position(self, partitions: int) -> Position:
        """Where this view stands. Raises ``LogMismatch`` for a log of another number of partitions."""
        return position_in(self.db, self.directory, partitions)

    # ------------------------------------------------------------------ writing

    def commit(
        self,
        batch: WriteBatch,
        position: Position,
        changed: Sequence[vectors.VectorRow],
        model: Signature | None = None,
        aside: Sequence[Quarantined] = (),
    ) -> None:
        """Make one batch visible, vectors included. Raises ``ViewError``; then nothing is visible.

        ``model`` is what the batch puts on record in place of the model of before, ``aside`` is set aside.
        """
        batch.put(POSITION, str(position).encode())
        if aside:
            self.quarantine.write(batch, aside)
        first, rows = self.sequence, batch.len()
        signature = self._signature
        for row in changed:
            if signature is None and row.fields is None and len(row.vectors):
                signature = Signature(row.model, row.vectors.shape[1])
                batch.put(models.FIRST, json.dumps(signature).encode())
        with self.lock:
            try:
                self.db.default.write(batch)
            except Exception as error:
                raise translate(error, "writing the view") from error
            self._signature = model or signature
            self.quarantine.add(aside)
            self.sequence = first + len(changed)
            if self.index is not None and changed:
                self._apply(self.index, [*enumerate(changed, first)])
        self.db.shed_deletions(rows)

    def ranks_by(self, ranks: Ranks) -> bool:
        """Whether the open index is of these settings, and of the vectors of record."""
        recorded = self._signature
        return (
            self.index is not None
            and self._ranks[:2] == ranks[:2]
            and not differs(self._ranks.model, ranks.model)
            and (recorded is None or recorded.fields == self._fields)
        )

    def use_vectors(self, dims: int, distance: Metric, model: str, exact: bool) -> None:
        """Open the FAISS index, or check that the open one was made for the same settings.

        One whose model or fields are no longer of record makes room.
        """
        self._refuse_other(dims, model)
        if self.ranks_by(Ranks(dims, distance, model)):
            return
        recorded = self._signature
        if self.index is not None:
            if recorded is None or (
                same_model(recorded, self._ranks.dims, self._ranks.model) and recorded.fields == self._fields
            ):
                raise IndexMismatch(
                    f"this store is open in this process with {(*self._ranks,)}; "
                    f"it cannot be used with {(dims, distance, model)} at the same time"
                )
            with self.lock:
                old, self.index = self.index, None
            old.close()
        fields = None if recorded is None else recorded.fields
        self._remove_former_index(model, fields)
        index = VectorIndex.open(
            self.directory / "vectors",
            identity=f"{self._log_id}|{model}",
            edition=edition(fields),
            dims=dims,
            metric=distance,
            exact=exact,
            lock=self.lock,
            position=self.sequence - 1,
        )
        self._ranks, self._fields = Ranks(dims, distance, model), fields
        # Fed in steps under the lock; the projector is held off by its caller meanwhile.
        pending: list[tuple[int, vectors.VectorRow]] = []
        try:
            with HeldCollector() as collector:
                for row in vectors.read(self.db.vectors, index.covered + 1):
                    pending.append(row)
                    if len(pending) >= _FEED_ROWS:
                        collector.hold()
                        self._feed(index, pending)
                        collector.let_collect()
        except ViewDamaged as error:
            index.close()
            let_go(error)
            self.mark_damaged()
            raise
        self._feed(index, pending)
        with self.lock:
            self.index = index

    def _feed(self, index: VectorIndex, pending: list[tuple[int, vectors.VectorRow]]) -> None:
        with self.lock:
            self._apply(index, pending)
        pending.clear()

    def _apply(self, index: VectorIndex, rows: Sequence[tuple[int, vectors.VectorRow]]) -> None:
        feed(index, Signature(self._ranks.model, self._ranks.dims, self._fields), rows)

    def _remove_former_index(self, model: str, fields: tuple[str, ...] | None) -> None:
        """Make room where the model or the fields were changed since the index was saved."""
        folder = self.directory / "vectors"
        owner = manifest.owner(folder)
        if owner is not None and fields is not None:
            former = indexed(owner)
            if former.fields != fields or differs(former.model, model):
                log.info("the index in %s is made anew for %s", folder, model)
                shutil.rmtree(folder, ignore_errors=True)

    def _refuse_other(self, dims: int, model: str) -> None:
        on_record = self._signature
        check_same_model(on_record, dims, model)
        if on_record is not None and on_record.model != model:
            log.warning(
                "the vectors on record were made by %s, the embedder is now %s; name the model with "
                "index['model'] to have this checked",
                on_record.model,
                model,
            )

    # ------------------------------------------------------------------ life cycle

    def mark_damaged(self) -> None:
        """Have the next open rebuild this view."""
        # Where not even this can be written, the damage will be met again.
        with contextlib.suppress(OSError):
            (self.directory / "damaged").touch()

    def hand_over(self, successor: MaterializedView) -> None:
        """Send readers to another view from now on; those at work here go on, until this one is closed."""
        with self.lock:
            self._successor = successor

    def close(self, timeout: float = CLOSE_SECONDS, *, anew: bool = False) -> None:
        """Wait ``timeout`` seconds at most for readers; save the index; close. Idempotent.

        ``anew`` says that another view is about to take its place.
        """
        # Every step may be repeated: an interrupt in one of them must not leave RocksDB open for good.
        with self._closing:
            with self.lock:
                if not self._closed:
                    self._closed, self._anew = True, anew
                self._idle.wait_for(lambda: not self._reading, timeout)
                index = self.index
            if index is not None:
                if self._successor is None and index.stats().delta_rows >= SAVED_ROWS:
                    # Fewer are fed again at the next open in less time than a file of them takes.
                    with contextlib.suppress(ViewError, StoreClosed):
                        index.checkpoint()
                index.close()
                self.index = None
            try:
                self.db.close()
            except ViewError as error:
                if isinstance(error, ViewDamaged):
                    self.mark_damaged()
                log.warning("the view in %s was not saved whole: %s", self.directory, error)

    def _refusal(self) -> EventStoreError:
        if self._anew:
            return ViewBehind("the view is being opened anew after a failure; try again")
        return StoreClosed("the store is closed; open it again to use it")

    def _check(self, log_id: str) -> Signature | None:
        meta = self.db.default
        if not check_made_from(self.db, self.directory, log_id):
            meta.put(b"m:format", FORMAT)
            meta.put(b"m:log", log_id.encode())
        return models.of_record(meta)
