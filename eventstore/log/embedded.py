"""The embedded log: segment files in a folder, appended to by several processes at once.

One partition. Appends are serialised by a lock within the process and a file lock between
processes; readers take neither and stop at the high-water mark. Grouping the writes of many
callers into one append is left to the committer above.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar
from zlib import crc32

from eventstore.errors import InvalidConfig, InvalidInput, OutcomeUnknown, StoreClosed, StoreForked
from eventstore.log import frames, times
from eventstore.log.base import Batch, Chunk, OnDurable, OnWritten, Record, StoredRecord
from eventstore.log.file_lock import FileLock
from eventstore.log.high_water import HighWater
from eventstore.log.position import Position
from eventstore.log.reader import SegmentReader
from eventstore.log.segments import FIRST_BYTES, INDEX_STEP, Segments, begin_writing, sync_data, write_all
from eventstore.log.tail import End, Tail, damaged, unavailable

_logger = logging.getLogger("eventstore.log")
_MIB = 1024 * 1024
_SMALLEST_SEGMENT = 1024
_LARGEST_BATCH = 1024 * _MIB


class EmbeddedLog:
    """A log in a folder of its own. Safe for several threads; several processes may open it."""

    _disposable: ClassVar[bool] = False
    """Whether appends are not synced and old segments may go; see :mod:`eventstore.log.disposable`."""

    def __init__(self, directory: Path, lock: FileLock, segment_bytes: int, max_batch_bytes: int) -> None:
        """Use :meth:`open`."""
        self._directory = directory
        self._file_lock = lock
        self._segment_bytes = segment_bytes
        self._max_batch_bytes = max_batch_bytes
        self._session = uuid.uuid4().bytes
        self._sequence = 1
        self._append_lock = threading.Lock()
        self._refusal: type[StoreClosed] | None = None
        self._in_doubt = True
        """Whether an append went wrong half-way, so that the end must be looked for."""
        with self._file_lock, contextlib.ExitStack() as undo:
            self._segments = Segments(directory, trimmed=self._disposable)
            self._segments.refresh()
            if not self._segments.bases:
                self._segments.create(0, uuid.uuid4().bytes, 0, min(FIRST_BYTES, segment_bytes))
                self._segments.refresh()
            self._salt = crc32(self._segments.log_id)
            self._mark = HighWater(directory / "high-water", self._segments.log_id)
            undo.callback(self._mark.close)
            self._tail = Tail(self._segments, self._segments.bases[-1], self._salt)
            undo.callback(lambda: self._tail.close())
            self._catch_up(rewrite=not self._mark.is_new)
            undo.pop_all()
        _open_logs.add(self)

    @classmethod
    def open(
        cls, directory: Path, *, segment_bytes: int = 16 * _MIB, max_batch_bytes: int = 512 * _MIB
    ) -> EmbeddedLog:
        """Open the log in ``directory``, made when missing; its parent must exist.

        The last segment is checked and a torn tail is cut; older segments are checked when
        read. Raises ``InvalidConfig``, ``LogUnavailable`` when the folder cannot be written,
        and ``LogDamaged``.
        """
        directory = Path(directory).absolute()
        if segment_bytes < _SMALLEST_SEGMENT:
            raise InvalidConfig(f"segment_bytes is {segment_bytes}; the least is {_SMALLEST_SEGMENT}")
        if not 0 < max_batch_bytes <= _LARGEST_BATCH:
            raise InvalidConfig(f"max_batch_bytes is {max_batch_bytes}; it goes from 1 to {_LARGEST_BATCH}")
        try:
            with contextlib.ExitStack() as undo:
                lock = FileLock(directory / "append.lock")
                undo.callback(lock.close)
                log = cls(directory, lock, segment_bytes, max_batch_bytes)
                undo.pop_all()
                return log
        except OSError as error:
            doing = f"could not open the log in {directory}, which must be readable and writable"
            raise unavailable(error, doing, "") from error

    @property
    def location(self) -> str:
        """The folder."""
        return str(self._directory)

    @property
    def log_id(self) -> str:
        """A UUID, made with the first segment."""
        return str(uuid.UUID(bytes=self._segments.log_id))

    @property
    def partitions(self) -> int:
        """One."""
        return 1

    @property
    def session(self) -> bytes:
        """Names this object among all writers; see ``StoredRecord.session``."""
        return self._session

    @property
    def end_is_local(self) -> bool:
        """Always true: the mark is in memory that the processes share."""
        return True

    @property
    def record_bytes(self) -> int | None:
        """Any that a batch has room for."""
        return None

    def prepare(self, records: Sequence[Record]) -> frames.PreparedBatch:
        """Encode and checksum ``records``. Raises ``LimitExceeded`` above ``max_batch_bytes``."""
        return frames.prepare(records, self._max_batch_bytes)

    def append(
        self,
        batches: Sequence[Batch],
        on_durable: OnDurable | None = None,
        on_written: OnWritten | None = None,
    ) -> list[list[StoredRecord]]:
        """Append ``batches`` with one write and one sync, and return them as they will be read.

        Both callbacks run under the append locks, ``on_written`` while the disk is at work on the
        records, ``on_durable`` when that is done and before the high-water mark moves. Raises
        ``LogFull`` or ``LogUnavailable`` when nothing was appended, ``OutcomeUnknown`` when the
        sync failed, ``LogDamaged``, and ``StoreClosed`` after a close or in a fork.
        """
        self._check()
        ready = [
            batch if isinstance(batch, frames.PreparedBatch) else self.prepare(batch.records)
            for batch in batches
        ]
        with self._append_lock:
            self._check()
            with self._file_lock:
                try:
                    stored = self._write(ready, on_written)
                except OSError as error:
                    raise unavailable(error, f"could not append to the log in {self._directory}") from error
                except KeyboardInterrupt:
                    # Part of it may be in the file, whole or not: what is whole counts from now on.
                    self._catch_up()
                    raise
                try:
                    if on_durable is not None:
                        on_durable(stored)
                finally:
                    self._mark.publish(self._tail.end.offset)
        return stored

    def high_water_mark(self) -> Position:
        """The offset that the next durable record will get."""
        return Position(self.end())

    def ahead_of(self, position: Position) -> bool:
        """Whether the log holds more than a reader at ``position`` has seen."""
        return self.end() > position[0]

    def chunks(self, start: Position, *, whole: bool = True) -> Iterator[Chunk]:
        """Records from ``start`` to the present high-water mark, a chunk for each batch; see :meth:`read`.

        A batch that ``start`` cuts into comes from there on, ``whole`` or not.
        """
        for records in self.read(start[0]):
            yield Chunk(records, Position(records[-1].offset + 1))

    def poll(self, start: Position, seconds: float) -> list[Chunk]:
        """What came after ``start``, after up to ``seconds`` if nothing has."""
        if not self.ahead_of(start):
            time.sleep(seconds)
        return list(self.chunks(start))

    def reader(self, start: Position, *, whole: bool = True) -> SegmentReader:
        """Records from ``start`` on, without an end; see :meth:`chunks`."""
        return SegmentReader(self, start)

    def position_at(self, time_us: int) -> Position:
        """The position after the last record appended at or before a time; walks one segment.

        Raises ``LogDamaged`` and ``LogUnavailable`` as :meth:`read` does.
        """
        return Position(times.position_at(self._segments, self.end(), time_us, self._salt))

    def end(self, partition: int = 0) -> int:
        """The high-water mark, from memory; appends of other processes show at once."""
        if self._refusal is not None or partition:
            self._check(partition)
        try:
            return self._mark.end
        except ValueError:
            self._check()
            raise

    def read(self, start: int, partition: int = 0) -> Iterator[list[StoredRecord]]:
        """Records from ``start`` to the present high-water mark, one list per batch.

        Raises ``LogDamaged`` at the first record that is missing or whose checksum does not
        hold, ``LogUnavailable`` when a file cannot be read, ``StoreClosed`` after a close.
        """
        end = self.end(partition)
        if start < 0:
            raise InvalidInput(f"cannot read from offset {start}; offsets start at 0")
        return self._read(start, end)

    def close(self) -> None:
        """Release the files, once a running append is done. Idempotent."""
        if self._refusal is None:
            self._refusal = StoreClosed
            with self._append_lock:
                self._tail.close()
                self._file_lock.close()
                self._mark.close()

    def abandon(self) -> None:
        """Let go of files shared with the parent process; for the child of a fork only.

        A lock held through a descriptor the child kept would outlive the parent.
        """
        if self._refusal is None:
            self._refusal = StoreForked
            self._file_lock.close()
            self._tail.close()

    def _check(self, partition: int = 0) -> None:
        if self._refusal is StoreForked:
            raise StoreForked(
                f"the log in {self._directory} was opened before this process was forked; open it again here"
            )
        if self._refusal is not None:
            raise StoreClosed(f"the log in {self._directory} was closed; open it again")
        if partition:
            raise InvalidInput(f"the log in {self._directory} has only partition 0, not {partition}")

    def _write(
        self, batches: list[frames.PreparedBatch], on_written: OnWritten | None
    ) -> list[list[StoredRecord]]:
        mark, tail = self._mark, self._tail
        if self._in_doubt or mark.segment != tail.base or mark.end != tail.end.offset or not tail.is_clear():
            tail = self._catch_up()
        _, durable, appended_us = tail.end
        offset, sequence, now = durable, self._sequence, time.time_ns() // 1000
        appended_us = max(now, appended_us)
        synced = tail.base if self._disposable else durable
        stored: list[list[StoredRecord]] = []
        buffers: list[bytes] = []
        size = 0
        for batch in batches:
            stamp = frames.Stamp(offset, synced, appended_us, now, sequence, self._session)
            stored.append(frames.stored(batch.records, stamp))
            if batch.body:
                buffers += (frames.header(batch, stamp, self._salt), batch.body)
                size += frames.HEADER_BYTES + len(batch.body)
                offset += len(batch.records)
                sequence += len(batch.records)
        if buffers:
            if tail.end.position + size > self._segment_bytes and durable > tail.base:
                tail = self._roll(tail)
            self._in_doubt = True
            self._store(tail, buffers, size)
            if not self._disposable:
                if on_written is not None:
                    begin_writing(tail.file.fileno(), tail.end.position, size)
                    on_written(stored)
                self._sync(tail)
            position = tail.end.position
            self._segments.note(tail.base, durable, position)
            self._sequence = sequence
            tail.end = End(position + size, offset, appended_us)
            self._in_doubt = False
        return stored

    def _store(self, tail: Tail, buffers: list[bytes], size: int) -> None:
        tail.reserve(size, self._segment_bytes)
        fd = tail.file.fileno()
        try:
            write_all(fd, buffers, tail.end.position)
        except OSError:
            # The next append looks for the end anyway; this is for readers of the bare file.
            with contextlib.suppress(OSError):
                tail.clear(size)
            raise

    def _sync(self, tail: Tail) -> None:
        try:
            sync_data(tail.file.fileno())
        except OSError as error:
            raise OutcomeUnknown(
                f"could not sync an append to {tail.path}: {error.strerror}. It may or may not be in the "
                "log; read before writing again."
            ) from error

    def _roll(self, tail: Tail) -> Tail:
        self._in_doubt = True
        if self._disposable:
            # Only the last segment may lose something to a power cut.
            sync_data(tail.file.fileno())
        self._mark.announce(tail.end.offset)
        first = min(FIRST_BYTES, self._segment_bytes)
        self._segments.create(tail.end.offset, self._segments.log_id, tail.end.appended_us, first)
        return self._catch_up()

    def _catch_up(self, rewrite: bool = True) -> Tail:
        """Find where the log ends after appends of others, a crash of theirs, or a failure here."""
        mark, tail, in_doubt = self._mark, self._tail, self._in_doubt
        self._in_doubt = True
        if in_doubt:
            tail.reopen()
        if mark.end < tail.end.offset:
            tail.start_over()
        found = tail.advance(mark.end, self._session)
        self._sequence = found.sequence or self._sequence
        self._segments.refresh()
        if self._segments.bases[-1] != tail.base:
            older, tail = tail, Tail(self._segments, self._segments.bases[-1], self._salt)
            self._tail = tail
            older.close()
            found = tail.advance(mark.end, self._session)
        promised = min(mark.end, tail.base) if self._disposable else mark.end
        was_cut = (in_doubt or not tail.is_clear()) and tail.cut(promised)
        offset = tail.end.offset
        if offset > mark.end:
            tail.adopt(found.unsynced if rewrite else tail.end.position)
        elif offset < mark.end and not was_cut:
            text = "%s: ends at offset %d, though offsets up to %d had been acknowledged"
            _logger.warning(text, tail.path, offset, mark.end)
        mark.announce(tail.base)
        mark.publish(offset)
        self._in_doubt = False
        return tail

    def _read(self, start: int, end: int) -> Iterator[list[StoredRecord]]:
        segments = self._segments
        while start < end:
            base = segments.holding(start)
            path = segments.path(base)
            due, position = segments.find(base, start)
            noted = position
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    for frame in frames.walk(fd, position, due, end, self._salt):
                        due += frame.records
                        position += frames.HEADER_BYTES + frame.size
                        if position - noted >= INDEX_STEP:
                            segments.note(base, due, position)
                            noted = position
                        if due > start:
                            if self._refusal is not None:
                                self._check()
                            records = frames.decode(frame)
                            yield records[start - frame.offset :] if start > frame.offset else records
                            start = due
                finally:
                    os.close(fd)
            except FileNotFoundError as error:
                segments.refresh()
                if not segments.begins_after(due):
                    raise damaged(str(path), position, due) from error
                start = segments.bases[0]
                continue
            except OSError as error:
                raise unavailable(error, f"could not read {path}", "") from error
            if start < end:
                segments.refresh()
                if segments.begins_after(due):
                    start = segments.bases[0]
                elif due == base or segments.holding(due) != due:
                    raise damaged(str(path), position, due)
            else:
                segments.note(base, due, position)


_open_logs: weakref.WeakSet[EmbeddedLog] = weakref.WeakSet()


def _abandon_all() -> None:
    for log in list(_open_logs):
        log.abandon()


os.register_at_fork(after_in_child=_abandon_all)
