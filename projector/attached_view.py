"""The view that another process keeps, read from beside it.

A moment pins the database it reads, and a database is only moved on while nobody reads it: who
wants to start reading then waits for some milliseconds. Where readers do not leave soon, another
database is opened and read from then on, and the old one is closed behind them. So a reader never
sees half a step, and no reader, however long, keeps a write from becoming visible.

The FAISS index is this process's own, fed from the vectors family up to what each moment shows.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from rocksdict import DbClosedError

from eventstore.embedding import check_same_model, differs
from eventstore.errors import IndexMismatch, StoreClosed, ViewBehind, ViewError
from eventstore.log.position import Position
from eventstore.views import Metric, Ranks, Row, Signature
from projector import directories
from projector.indexing import feed
from projector.meta import check_made_from, position_in
from projector.moment import Moment
from projector.past import PastMoment
from projector.projections import items, models, vectors
from projector.projections.quarantine import Quarantine
from projector.rocks import Database, get, let_go, translate
from projector.secondary import Secondary, identity
from projector.vectors import State, VectorIndex

log = logging.getLogger("projector.attached")

M = TypeVar("M")

HOLD_SECONDS: Final = 0.01
"""How long new readers wait for those at work to leave, so that the database can be moved on."""
MOST_OPEN: Final = 4
"""Databases open at a time; with so many long readers, reads stand still until one leaves."""
CLOSE_SECONDS: Final = 5.0
FEED_ROWS: Final = 4_096


class Replica:
    """One open database, and what of it is shown."""

    def __init__(self, folder: Path, cache_bytes: int, scratch: Path) -> None:
        self.folder = folder
        self.secondary = Secondary(folder / directories.DATA[0], cache_bytes, scratch, Database)
        self.db = self.secondary.db
        self.readers = 0
        self.vectors: State | None = None
        self.ranked: Signature | None = None
        """What the vectors were made by."""


class AttachedMoment(Moment):
    """A moment of a replica, which stands still while it is read."""

    def __init__(self, replica: Replica, quarantine: Quarantine) -> None:
        self._quarantine = quarantine
        db = self._db = replica.db
        self._items, self._recency, self._namespaces = db.items, db.recency, db.namespaces
        self._default, self._history, self._vector_rows = db.default, db.history, db.vectors
        self._vectors, self._ranked = replica.vectors, replica.ranked

    def get(self, key: bytes) -> Row | None:
        self._quarantine.warn(key)
        data = get(self._db.items, key)
        return None if data is None else items.row(key, data)


class OwnIndex:
    """The FAISS index of one database, fed by the sequences of its vectors."""

    def __init__(
        self,
        scratch: Path,
        lock: threading.Lock,
        log_id: str,
        dims: int,
        metric: Metric,
        model: str,
        exact: bool,
        fields: tuple[str, ...] | None,
    ) -> None:
        self.settings = dims, metric, model, exact
        self.of = Signature(model, dims, fields)
        self._scratch, self._log_id, self._lock = scratch, log_id, lock
        self._folder = Path(tempfile.mkdtemp(prefix="vectors-", dir=scratch))
        self._index = VectorIndex.open(
            self._folder, identity=f"{log_id}|{model}", dims=dims, metric=metric, exact=exact, lock=lock
        )

    def feed(self, replica: Replica) -> State:
        """Take in what the replica shows, and give that state."""
        pending: list[tuple[int, vectors.VectorRow]] = []
        for row in vectors.read(replica.db.vectors, self._index.applied + 1):
            pending.append(row)
            if len(pending) >= FEED_ROWS:
                with self._lock:
                    feed(self._index, self.of, pending)
                pending.clear()
        with self._lock:
            feed(self._index, self.of, pending)
            return self._index.state()

    def serves(self, ranks: Ranks, recorded: Signature | None) -> bool:
        """Whether it is of these settings, and of the vectors of record."""
        same = self.settings[:2] == ranks[:2] and not differs(self.of.model, ranks.model)
        return same and (recorded is None or recorded.fields == self.of.fields)

    def anew(self) -> OwnIndex:
        """An empty one with the same settings, for another database."""
        return OwnIndex(self._scratch, self._lock, self._log_id, *self.settings, self.of.fields)

    def close(self) -> None:
        """Stop it and remove its files; states stay usable."""
        self._index.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class AttachedView:
    """A :class:`eventstore.views.View` of a view directory that another process has."""

    def __init__(self, home: Path, log_id: str, partitions: int, cache_bytes: int, scratch: Path) -> None:
        """Open what is there; files of its own go to ``scratch``.

        Raises ``ViewError``, or ``LogMismatch`` for a view of another log.
        """
        self.home = home
        self._scratch = scratch
        self._log_id = log_id
        self._partitions = partitions
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._moving = threading.Lock()
        self._nested = threading.local()
        self._holding = False
        self._closed = False
        self._ranks: OwnIndex | None = None
        self._broken: ViewError | None = None
        self._retired: list[Replica] = []
        self.reopened = 0
        """How often a database had to be opened anew."""
        self._current = self._open(directories.current(home))
        self.position = position_in(self._current.db, home, partitions)
        """Everything before it is visible."""
        self.quarantine = Quarantine(self._current.db.default)

    # ------------------------------------------------------------------ reading

    def get(self, key: bytes) -> Row | None:
        while True:
            replica = self._current
            try:
                data = replica.db.items.get(key)
            except (DbClosedError, AttributeError):
                if self._closed:
                    raise StoreClosed("the store is closed; open it again to use it") from None
                if replica is self._current:
                    raise
                continue
            except Exception as error:
                raise translate(error, "reading a memory") from error
            if key in self.quarantine.memories:
                self.quarantine.warn(key)
            return None if data is None else items.row(key, data)

    def read(self) -> AbstractContextManager[AttachedMoment]:
        return self._pinned(lambda replica: AttachedMoment(replica, self.quarantine))

    def past(self, position: Position, ranks: Ranks | None = None) -> AbstractContextManager[PastMoment]:
        return self._pinned(lambda replica: PastMoment(replica.db, position, ranks, self.quarantine))

    def signature(self) -> Signature | None:
        with self.pinned() as replica:
            return models.of_record(replica.db.default)

    @contextmanager
    def pinned(self) -> Iterator[Replica]:
        """The database, which stands still for as long as it is needed."""
        depth = getattr(self._nested, "depth", 0)
        with self._idle:
            # Who reads already is waited for, so must not wait.
            while self._holding and not depth:
                self._idle.wait()
            if self._closed:
                raise StoreClosed("the store is closed; open it again to use it")
            if self._broken is not None:
                raise self._broken
            replica = self._current
            replica.readers += 1
        self._nested.depth = depth + 1
        try:
            yield replica
        finally:
            self._nested.depth = depth
            with self._idle:
                replica.readers -= 1
                done = not replica.readers and replica in self._retired
                if done:
                    self._retired.remove(replica)
                self._idle.notify_all()
            if done:
                replica.secondary.close()

    @contextmanager
    def _pinned(self, take: Callable[[Replica], M]) -> Iterator[M]:
        with self.pinned() as replica:
            moment = take(replica)
            try:
                yield moment
            except ViewError as error:
                let_go(error)
                raise
            finally:
                # Whoever still holds the moment must not keep the database open.
                vars(moment).clear()

    # ------------------------------------------------------------------ moving on

    def refresh(self) -> bool:
        """Show what the other process has made visible since; whether that is anything.

        Raises ``ViewError`` when its files cannot be read; what was shown is shown still.
        """
        with self._moving:
            if self._closed:
                return False
            replica, folder = self._current, directories.current(self.home)
            if folder != replica.folder or identity(replica.secondary.path) != replica.secondary.identity:
                self._replace(folder)
                return True
            if self._broken is None and not replica.secondary.is_behind():
                return False
            before = self.position
            with self._alone(replica) as alone:
                if alone and self._broken is None and replica.secondary.catch_up():
                    self._show(replica, self._ranks)
                elif alone or len(self._retired) < MOST_OPEN - 1:
                    self._open_anew(folder, dirty=alone)
            return self.position != before

    def move_to(self, home: Path) -> None:
        """Read another view directory of the same log from now on. Raises ``ViewError``."""
        with self._moving:
            self._replace(directories.current(home))
            self.home = home

    def use_vectors(self, dims: int, distance: Metric, model: str, exact: bool) -> None:
        """Make rankings possible. Raises ``IndexMismatch`` if the vectors on record differ.

        An index whose model or fields are no longer of record makes room.
        """
        recorded = self.signature()
        check_same_model(recorded, dims, model)
        with self._moving:
            old = self._ranks
            if old is not None:
                if old.serves(Ranks(dims, distance, model), recorded):
                    return
                if recorded is None or old.serves(Ranks(*old.settings[:2], recorded.model), recorded):
                    raise IndexMismatch(
                        f"this store is open in this process with {old.settings[:3]}; "
                        f"it cannot be used with {(dims, distance, model)} at the same time"
                    )
            fields = None if recorded is None else recorded.fields
            ranks = OwnIndex(self._scratch, self._lock, self._log_id, dims, distance, model, exact, fields)
            try:
                state = ranks.feed(self._current)
            except BaseException:
                ranks.close()
                raise
            with self._lock:
                self._ranks, self._current.vectors = ranks, state
                self._current.ranked = ranks.of
            if old is not None:
                old.close()

    def ranks_by(self, ranks: Ranks) -> bool:
        """Whether the index is of these settings, and of the vectors of record."""
        return self._ranks is not None and self._ranks.serves(ranks, self.signature())

    def replicas(self) -> list[Replica]:
        """Every open database."""
        return [self._current, *self._retired]

    def close(self) -> None:
        """Wait some seconds at most for readers, and close. Idempotent."""
        with self._moving:
            with self._idle:
                if self._closed:
                    return
                self._closed = True
                everything = [self._current, *self._retired]
                self._retired = []
                self._idle.wait_for(lambda: not any(each.readers for each in everything), CLOSE_SECONDS)
            for each in everything:
                each.secondary.close()
            if self._ranks is not None:
                self._ranks.close()

    def _open(self, folder: Path) -> Replica:
        replica = Replica(folder, self._cache_bytes, self._scratch)
        try:
            check_made_from(replica.db, folder, self._log_id)
        except BaseException:
            replica.secondary.close()
            raise
        return replica

    def _open_anew(self, folder: Path, *, dirty: bool) -> None:
        """Go on with another database of the same files; ``dirty``: the one in use shows half a step."""
        if dirty:
            self._broken = ViewBehind("the attached view is being opened anew; try again")
        self.reopened += 1
        fresh = self._open(folder)
        self._exchange(fresh, self._ranks)

    def _replace(self, folder: Path) -> None:
        """Go on with another database. Raises ``ViewBehind`` while it is not as far as what is shown."""
        fresh = self._open(folder)
        position = position_in(fresh.db, folder, self._partitions)
        if not position.covers(self.position):
            fresh.secondary.close()
            raise ViewBehind(f"the view in {folder} was made anew and stands at {position}, not yet here")
        old = self._ranks
        self._exchange(fresh, None if old is None else old.anew())
        if old is not None:
            old.close()
        log.info("attached to the view in %s", folder)

    def _exchange(self, fresh: Replica, ranks: OwnIndex | None) -> None:
        old = self._current
        try:
            self._show(fresh, ranks)
        except BaseException:
            fresh.secondary.close()
            if ranks is not None and ranks is not self._ranks:
                ranks.close()
            raise
        with self._lock:
            done = not old.readers
            if not done:
                self._retired.append(old)
        if done:
            old.secondary.close()

    def _show(self, replica: Replica, ranks: OwnIndex | None) -> None:
        position = position_in(replica.db, self.home, self._partitions)
        self.quarantine.load(replica.db.default)
        state = None if ranks is None else ranks.feed(replica)
        with self._lock:
            replica.vectors, replica.ranked = state, None if ranks is None else ranks.of
            self._current, self._ranks, self._broken = replica, ranks, None
            self.position = position

    @contextmanager
    def _alone(self, replica: Replica) -> Iterator[bool]:
        """Hold off new readers; whether those at work have left. If not, nobody is held off."""
        with self._idle:
            self._holding = True
            alone = self._idle.wait_for(lambda: not replica.readers, HOLD_SECONDS)
            if not alone:
                self._let_in()
        try:
            yield alone
        finally:
            with self._idle:
                self._let_in()

    def _let_in(self) -> None:
        self._holding = False
        self._idle.notify_all()
