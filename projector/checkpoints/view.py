"""One materialized view of checkpoints: RocksDB in one directory, written by the projector alone.

Every answer is read to its end before it is given, so that no iterator and no snapshot outlives a
call: a caller who pauses in a listing holds nothing here.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from bisect import insort
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rocksdict import DbClosedError, Rdict, WriteBatch

from eventstore.checkpoint.events import Delete, Drop, Where
from eventstore.checkpoint.views import Manifest, Row, ThreadRow, WriteRow
from eventstore.errors import EventStoreError, StoreClosed, ViewBehind, ViewDamaged, ViewError
from eventstore.keys import encode_labels
from eventstore.log.position import Position
from eventstore.views import Quarantined
from projector.checkpoints import tables
from projector.checkpoints.fold import Fold
from projector.checkpoints.manifests import Manifests
from projector.checkpoints.overlay import Overlay
from projector.meta import POSITION, check_made_from, position_in
from projector.projections.quarantine import Quarantine
from projector.rocks import CheckpointDatabase, check, get, let_go, scan, scan_keys, translate

log = logging.getLogger("projector.checkpoints")

FORMAT: Final = b"checkpoints/1"
CLOSE_SECONDS: Final = 5.0


class MaterializedCheckpoints:
    """A :class:`eventstore.checkpoint.views.CheckpointView` on one directory. One process at a time."""

    def __init__(self, directory: Path, log_id: str, cache_bytes: int) -> None:
        """Open or create. Raises ``ViewDamaged``, or ``LogMismatch`` for a view of another log."""
        self.directory = directory
        self.manifests = Manifests()
        self._reading = 0
        self._idle = threading.Condition()
        self._closed = self._anew = False
        self.db = CheckpointDatabase(directory / "rocksdb", cache_bytes)
        try:
            if not check_made_from(self.db, directory, log_id, FORMAT):
                self.db.default.put(b"m:format", FORMAT)
                self.db.default.put(b"m:log", log_id.encode())
            self.quarantine = Quarantine(self.db.default)
        except BaseException:
            self.db.close()
            raise

    # ------------------------------------------------------------------ reading

    def row(self, at: Where) -> Row | None:
        with self._read() as rows:
            data = get(rows, tables.checkpoint_key(at))
            return None if data is None else tables.row(at, data)

    def event(self, at: Where) -> tuple[int, int] | None:
        with self._read() as rows:
            data = get(rows, tables.checkpoint_key(at))
            return None if data is None else tables.event_of(data)

    def page(
        self, thread: str | None, namespace: str | None, below: Where | str | None, limit: int
    ) -> Sequence[Where]:
        with self._read() as rows:
            if thread is not None and namespace is not None:
                return _newest_in(rows, tables.namespace_prefix(thread, namespace), below, limit)
            if thread is None:
                return _newest(rows, below, limit)
            return _newest_of(rows, thread, below, limit)

    def writes(self, at: Where) -> list[WriteRow]:
        with self._read() as rows:
            found = [tables.write_row(key, data) for key, data in scan(rows, tables.write_prefix(at))]
        found.sort(key=lambda write: (write.path, write.task, write.number))
        return found

    def manifest(self, thread: str, value: bytes) -> Manifest | None:
        with self._read() as rows:
            return self.manifests.get(thread, value, lambda key: get(rows, key))

    def parts(self, thread: str, digests: Sequence[bytes]) -> list[bytes | None]:
        prefix = tables.thread_prefix(tables.PART, thread)
        with self._read() as rows:
            if len(digests) == 1:
                return [get(rows, prefix + digests[0])]
            try:
                return list(rows.get([prefix + name for name in digests]) or ())
            except Exception as error:
                raise translate(error, "reading a checkpoint") from error

    def has_part(self, thread: str, digest: bytes) -> bool:
        with self._read() as rows:
            return get(rows, tables.thread_prefix(tables.PART, thread) + digest) is not None

    def run(self, run: str) -> Sequence[Where]:
        prefix = tables.run_prefix(run)
        with self._read() as rows:
            return [tables.where(key, prefix) for key in scan_keys(rows, prefix)]

    def of_thread(self, thread: str) -> Sequence[Row]:
        with self._read() as rows:
            prefix = tables.thread_prefix(tables.CHECKPOINT, thread)
            return [tables.row(tables.where(key), data) for key, data in scan(rows, prefix)]

    def has_thread(self, thread: str) -> bool:
        with self._read() as rows:
            families = (tables.CHECKPOINT, tables.WRITE)
            return any(any(scan_keys(rows, tables.thread_prefix(family, thread))) for family in families)

    def threads(self) -> Sequence[ThreadRow]:
        with self._read() as rows:
            return [tables.thread_row(key, data) for key, data in scan(rows, tables.THREAD)]

    def size(self, thread: str) -> int:
        with self._read() as rows:
            return sum(
                len(data)
                for family in tables.WITH_BYTES
                for _, data in scan(rows, tables.thread_prefix(family, thread))
            )

    def freed(self, event: Drop | Delete) -> int:
        with self._read() as rows:
            after = Overlay(rows)
            Fold(after, self.manifests).remove(event)
            return after.shrunk()

    def position(self, partitions: int) -> Position:
        """Where this view stands. Raises ``LogMismatch`` for a log of another number of partitions."""
        return position_in(self.db, self.directory, partitions)

    @property
    def is_open(self) -> bool:
        """Whether it can be written."""
        return self.db.is_open

    # ------------------------------------------------------------------ writing

    def commit(self, batch: WriteBatch, position: Position, aside: Sequence[Quarantined]) -> None:
        """Make one batch visible; ``aside`` is set aside. Raises ``ViewError``; then nothing is."""
        batch.put(POSITION, str(position).encode())
        if aside:
            self.quarantine.write(batch, aside)
        try:
            self.db.default.write(batch)
        except Exception as error:
            raise translate(error, "writing the view of checkpoints") from error
        self.quarantine.add(aside)

    # ------------------------------------------------------------------ life cycle

    def mark_damaged(self) -> None:
        """Have the next open rebuild this view."""
        with contextlib.suppress(OSError):
            (self.directory / "damaged").touch()

    def close(self, timeout: float = CLOSE_SECONDS, *, anew: bool = False) -> None:
        """Wait ``timeout`` seconds at most for readers; close. Idempotent.

        ``anew`` says that another view is about to take its place.
        """
        with self._idle:
            if not self._closed:
                self._closed, self._anew = True, anew
            self._idle.wait_for(lambda: not self._reading, timeout)
        try:
            self.db.close()
        except ViewError as error:
            if isinstance(error, ViewDamaged):
                self.mark_damaged()
            log.warning("the view in %s was not saved whole: %s", self.directory, error)

    @contextmanager
    def _read(self) -> Iterator[Rdict]:
        with self._idle:
            if self._closed:
                raise self._refusal()
            self._reading += 1
        try:
            yield self.db.default
        except ViewDamaged as error:
            let_go(error)
            self.mark_damaged()
            raise
        except DbClosedError:
            raise self._refusal() from None
        finally:
            with self._idle:
                self._reading -= 1
                if not self._reading:
                    self._idle.notify_all()

    def _refusal(self) -> EventStoreError:
        if self._anew:
            return ViewBehind("the view of checkpoints is being opened anew after a failure; try again")
        return StoreClosed("the saver is closed; open it again to use it")


def _newest_in(rows: Rdict, prefix: bytes, below: Where | str | None, limit: int) -> list[Where]:
    """Checkpoints of one namespace, newest first, without the hidden ones."""
    found: list[Where] = []
    last = below.id if isinstance(below, Where) else below
    for key in _backwards(rows, prefix, None if last is None else prefix + encode_labels((last,))):
        at = tables.where(key)
        if get(rows, tables.id_key(at)) is not None:
            found.append(at)
            if len(found) >= limit:
                break
    return found


def _newest_of(rows: Rdict, thread: str, below: Where | str | None, limit: int) -> list[Where]:
    """Checkpoints of all namespaces of a thread, newest first, without the hidden ones."""
    it = rows.iter()

    def last(namespace: str, end: bytes) -> tuple[str, str] | None:
        prefix = tables.namespace_prefix(thread, namespace)
        it.seek_for_prev(prefix + end)
        if not it.valid() or not (key := it.key()).startswith(prefix):
            return None
        return tables.where(key).id, namespace

    newest = []
    for namespace in _namespaces(it, thread):
        end = b"\xff"
        if below is not None:
            own = isinstance(below, Where) and namespace < below.namespace
            id = below.id if isinstance(below, Where) else below
            end = encode_labels((id,)) + end if own else encode_labels((id,))[:-1]
        newest.append(last(namespace, end))
    waiting = sorted(filter(None, newest))
    found: list[Where] = []
    while waiting and len(found) < limit:
        id, namespace = waiting.pop()
        at = Where(thread, namespace, id)
        if get(rows, tables.id_key(at)) is not None:
            found.append(at)
        following = last(namespace, encode_labels((id,))[:-1])
        if following is not None:
            insort(waiting, following)
    check(it)
    return found


def _namespaces(it: Any, thread: str) -> list[str]:
    """Those of a thread that have checkpoints; what is in them is passed over."""
    prefix = tables.thread_prefix(tables.CHECKPOINT, thread)
    found: list[str] = []
    it.seek(prefix)
    while it.valid() and (key := it.key()).startswith(prefix):
        found.append(tables.where(key).namespace)
        it.seek(tables.namespace_prefix(thread, found[-1]) + b"\xff")
    return found


def _newest(rows: Rdict, below: Where | str | None, limit: int) -> list[Where]:
    """Checkpoints of all threads, newest first."""
    start = None
    if below is not None:
        start = tables.ID + encode_labels((below,)) if isinstance(below, str) else tables.id_key(below)
    found: list[Where] = []
    for key in _backwards(rows, tables.ID, start):
        found.append(tables.where_by_id(key))
        if len(found) >= limit:
            break
    return found


def _backwards(rows: Rdict, prefix: bytes, below: bytes | None) -> Iterator[bytes]:
    """Keys under a prefix, last first; those below a key, if one is given."""
    it = rows.iter()
    if below is None:
        it.seek_for_prev(prefix + b"\xff")
    else:
        it.seek_for_prev(below)
        if it.valid() and it.key() == below:
            it.prev()
    while it.valid():
        key = it.key()
        if not key.startswith(prefix):
            break
        yield key
        it.prev()
    check(it)
