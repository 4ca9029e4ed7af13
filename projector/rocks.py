"""RocksDB as this project uses it: options, column families, and the rules that keep it honest.

rocksdict's iterators end in silence at a damaged block, so every scan here asks for its status
afterwards; its iterate bounds are memory-unsafe, so scans compare prefixes instead. The
database is a view that can be thrown away: its write-ahead log is on but never synced, since
the log it was made from is.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    Snapshot,
)

from eventstore.errors import StoreForked, ViewDamaged, ViewError
from eventstore.turns import EVERY_ROWS, give_way

FAMILIES: Final = ("items", "recency", "namespaces", "history", "vectors")
"""Column families beside the default one, which holds positions, writers, graves and expiries."""

MIB: Final = 1 << 20
WAL_BYTES: Final = 32 * MIB
"""What the next open may have to replay: about what all memory tables together hold."""
SCANNED: Final = ("items", "recency", "namespaces", "default")
"""Families that are scanned and deleted from."""
MOST_DELETIONS: Final = 1_024
LOOK_ROWS: Final = 256
"""Rows written between looks at how many deletions there are."""
"""How many may gather in the memory table of such a family, which keeps them until it is written to
a file: passing over one takes some 40 ns."""
_DELETIONS: Final = "rocksdb.num-deletes-active-mem-table"
OPEN_ATTEMPTS: Final = 20
LOOK_ATTEMPTS: Final = 4
OPEN_PAUSE: Final = 0.05
"""Seconds between attempts to open what this very process has just closed."""
_HELD_HERE: Final = "lock hold by current process"


def _options(cache: Cache, *, write_buffer: int, compress: bool, bloom: bool, deletions: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_write_buffer_size(write_buffer)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_compression_type(DBCompressionType.lz4() if compress else DBCompressionType.none())
    options.set_keep_log_file_num(2)
    options.set_max_open_files(512)
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_format_version(5)
    if bloom:
        table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    if deletions:
        # An updated memory leaves tombstones at the head of the recency index, where a listing
        # starts, and a deleted one where its namespace is scanned; they must be compacted away soon.
        options.add_compact_on_deletion_collector_factory(1024, 512, 0.5)
    return options


class _Threads:
    """Whether RocksDB's threads, which serve a whole process, are in this one.

    A fork leaves them behind, and RocksDB in the child waits for them at its first flush, for ever.
    """

    def __init__(self) -> None:
        self._started = False
        self._left_behind = False
        os.register_at_fork(after_in_child=self._forked)

    def start(self, path: Path) -> None:
        if self._left_behind:
            raise StoreForked(
                f"the view in {path} cannot be opened: this process was forked from one that had opened a "
                "store. Start it with multiprocessing's 'spawn' or 'forkserver', or open stores only "
                "after the fork"
            )
        self._started = True

    def _forked(self) -> None:
        self._left_behind = self._started
        on_exit = getattr(ctypes.CDLL(None), "on_exit", None)
        if self._left_behind and on_exit is not None:
            # RocksDB's own exit handler joins the threads that are not here, and crashes. This one
            # runs before it, when Python has ended in order, and passes the exit status on.
            on_exit(ctypes.CDLL(None)._exit, None)


_threads = _Threads()


class Rocks:
    """An open RocksDB: a default column family, and others by name."""

    def __init__(
        self, path: Path, default: Options, families: Mapping[str, Options], secondary: Path | None = None
    ) -> None:
        """Open or create; with ``secondary``, a scratch folder, only read.

        The files may then be another process's: what they hold at this moment is seen for as long
        as this is open.

        Raises ``ViewDamaged`` when RocksDB cannot make sense of its files, and ``StoreForked`` in
        a process forked from one that has used RocksDB.
        """
        _threads.start(path)
        self._secondary = secondary
        self._names = tuple(families)
        default.set_max_total_wal_size(WAL_BYTES)
        access = AccessType.read_write()
        if secondary is not None:
            access = AccessType.secondary(str(secondary))
            for options in (default, *families.values()):
                # Files that their owner removes meanwhile can be read only while they are open.
                options.set_max_open_files(-1)
                # By default every look at the owner's progress starts 16 threads for each family.
                options.set_max_file_opening_threads(1)
        for attempt in range(OPEN_ATTEMPTS):
            try:
                self.default = Rdict(
                    str(path), options=default, column_families=dict(families), access_type=access
                )
                break
            except Exception as error:
                if attempt + 1 == OPEN_ATTEMPTS or _HELD_HERE not in str(error):
                    raise translate(error, f"opening the view in {path}") from error
            # Closed in this process, but an iterator in the frames of some exception is still alive.
            gc.collect()
            time.sleep(OPEN_PAUSE)
        self.handles = {name: self.default.get_column_family_handle(name) for name in families}
        """What a write batch names families by."""

    @property
    def is_open(self) -> bool:
        """Whether it was not closed yet."""
        return "default" in vars(self)

    def flush(self) -> None:
        """Write memory tables to files, so that the next open has nothing to replay."""
        if self._secondary is not None:
            return
        for name in (*self._names, "default"):
            # One that is missing was given up by a close that an interrupt broke off.
            if name in vars(self):
                vars(self)[name].flush()

    def close(self) -> None:
        """Flush and close. Every iterator and snapshot must be gone. Idempotent, also after an interrupt.

        Raises ``ViewError`` when not all could be written; it is closed all the same.
        """
        if not self.is_open:
            return
        failure = None
        for act in (self.flush, self.default.close):
            try:
                act()
            except Exception as error:
                failure = failure or translate(error, "closing the view")
        # RocksDB stays open while any object of it is alive.
        self.handles.clear()
        del act
        for name in (*self._names, "default"):
            vars(self).pop(name, None)
        if failure is not None:
            raise failure


class Database(Rocks):
    """What a view of memories is kept in."""

    def __init__(self, path: Path, cache_bytes: int, secondary: Path | None = None) -> None:
        """Open or create, as :class:`Rocks` does."""
        cache = Cache(cache_bytes)
        plain = {"compress": True, "bloom": False, "deletions": False}
        families = {
            "items": _options(cache, write_buffer=8 * MIB, compress=True, bloom=True, deletions=True),
            "recency": _options(cache, write_buffer=1 * MIB, compress=True, bloom=False, deletions=True),
            "namespaces": _options(cache, write_buffer=2 * MIB, compress=True, bloom=True, deletions=True),
            "history": _options(cache, write_buffer=8 * MIB, **plain),
            "vectors": _options(cache, write_buffer=8 * MIB, compress=False, bloom=False, deletions=False),
        }
        default = _options(cache, write_buffer=2 * MIB, compress=True, bloom=True, deletions=True)
        super().__init__(path, default, families, secondary)
        self._unlooked = 0
        self.items, self.recency, self.namespaces, self.history, self.vectors = (
            self.default.get_column_family(name) for name in FAMILIES
        )

    def shed_deletions(self, written: int) -> None:
        """Have memory tables written out in which deletions have gathered; does not wait for it.

        Compaction then drops them, so that however much was deleted or updated, a scan meets few.
        ``written`` is how many rows were written since the last call: few need no look.
        """
        self._unlooked += written
        if self._unlooked < LOOK_ROWS:
            return
        self._unlooked = 0
        for name in SCANNED:
            family: Rdict = vars(self)[name]
            if (family.property_int_value(_DELETIONS) or 0) > MOST_DELETIONS:
                # Should it fail, the next write says so.
                with contextlib.suppress(Exception):
                    family.flush(False)


class CheckpointDatabase(Rocks):
    """What a view of checkpoints is kept in: one family, since every row is found by its whole key."""

    def __init__(self, path: Path, cache_bytes: int, secondary: Path | None = None) -> None:
        """Open or create, as :class:`Rocks` does."""
        cache = Cache(cache_bytes)
        options = _options(cache, write_buffer=8 * MIB, compress=True, bloom=True, deletions=True)
        super().__init__(path, options, {}, secondary)


def check_files(path: Path, scratch: Path) -> None:
    """Raise ``ViewDamaged`` where a file that counts is missing or cannot be read.

    A secondary would stand still before it and say nothing. Files are only read; those that their
    owner has just removed are looked for again.
    """
    _threads.start(path)
    options = Options(raw_mode=True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_db_log_dir(str(scratch))
    options.set_max_file_opening_threads(1)
    for attempt in range(LOOK_ATTEMPTS):
        try:
            families = {name: options for name in Rdict.list_cf(str(path)) if name != "default"}
            Rdict(
                str(path), options=options, column_families=families, access_type=AccessType.read_only()
            ).close()
            return
        except Exception as error:
            if attempt + 1 == LOOK_ATTEMPTS:
                raise translate(error, f"looking at the view in {path}") from error
        time.sleep(OPEN_PAUSE)


def translate(error: Exception, doing: str) -> ViewError:
    """RocksDB's untyped errors as ours."""
    text = str(error)
    if text.startswith("Corruption") or "No such file" in text or "does not exist" in text:
        return ViewDamaged(
            f"{doing}: {text}. The log is intact; open the store again and the view is rebuilt from it"
        )
    failed = ViewError(
        f"{doing}: {text}. The log is intact; once the cause is gone, the view catches up with it"
    )
    failed.retriable = True
    return failed


def let_go(error: BaseException | None) -> None:
    """Clear what an error's frames hold: an iterator or snapshot in one keeps RocksDB open."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def get(family: Rdict, key: bytes) -> bytes | None:
    """The value at a key. Raises ``ViewDamaged``, or ``ViewError`` for what may pass."""
    try:
        found: bytes | None = family.get(key)
    except Exception as error:
        raise translate(error, "reading the view") from error
    return found


def scan(
    source: Rdict | Snapshot,
    prefix: bytes,
    start: bytes | None = None,
    holding: Sequence[bytes] = (),
    expected: int = 0,
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values under a prefix, from ``start`` on, of rows that have all of ``holding`` in their value.

    ``expected`` is how many rows are likely there: where few hold what is wanted, it makes the scan
    faster, and is never believed. Raises ``ViewDamaged`` rather than end early.
    """
    it = source.iter()
    it.seek(prefix if start is None else start)
    if holding:
        yield from _skim(it, prefix, holding, expected)
    inside = True
    while inside:
        for _ in range(EVERY_ROWS):
            inside = it.valid() and (key := it.key()).startswith(prefix)
            if not inside:
                break
            value = it.value()
            for needle in holding:
                if value.find(needle) < 0:  # faster than ``in``, which first asks whether it is a number
                    break
            else:
                yield key, value
            it.next()
        else:
            give_way()
    check(it)


def _skim(it: RdictIter, prefix: bytes, holding: Sequence[bytes], rows: int) -> Iterator[tuple[bytes, bytes]]:
    """What of the next rows holds what is wanted, and only of these the keys are looked at.

    Ends early where there are no more; it may also go on behind the prefix, for nothing.
    """
    for number in range(1, rows + 1):
        value = it.value()
        if value is None:
            return
        for needle in holding:
            if value.find(needle) < 0:
                break
        else:
            key = it.key()
            if not key.startswith(prefix):
                return
            yield key, value
        it.next()
        if number % EVERY_ROWS == 0:
            give_way()


def scan_keys(source: Rdict | Snapshot, prefix: bytes) -> Iterator[bytes]:
    """Keys under a prefix; values are not fetched."""
    it = source.iter()
    it.seek(prefix)
    inside = True
    while inside:
        for _ in range(EVERY_ROWS):
            inside = it.valid() and (key := it.key()).startswith(prefix)
            if not inside:
                break
            yield key
            it.next()
        else:
            give_way()
    check(it)


def check(it: RdictIter) -> None:
    """Raise what made an iterator stop, if it was not the end of the data."""
    try:
        it.status()
    except Exception as error:
        raise translate(error, "reading the view") from error
