"""All families of a view as they stood at one moment, to be read at leisure.

An open view gives snapshots taken together; the files of any view directory, another process's
included, are read as a RocksDB secondary, which stands still unless told to move.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from rocksdict import Rdict, Snapshot

from eventstore.errors import LogMismatch, ViewDamaged
from eventstore.log.position import Position
from eventstore.views import Signature
from projector import directories
from projector.indexing import indexed
from projector.meta import FORMAT, POSITION
from projector.rocks import FAMILIES, Database, check, check_files
from projector.secondary import D, Open, Secondary
from projector.vectors import State
from projector.vectors.saved import saved_state
from projector.view import MaterializedView

Source = Rdict | Snapshot
"""What one family is read from."""
CACHE_BYTES = 32 * 1024 * 1024


class Frozen(NamedTuple):
    """One moment of a whole view."""

    directory: Path
    families: dict[str, Source]
    """By name; the default family, with positions, writers, graves and expiries, is ``default``."""
    position: Position | None
    """Where it stands; ``None`` while nothing was applied."""
    log_id: str
    vectors: State | None
    """The FAISS index at that moment, or as it was last saved; ``None`` when there is none."""
    ranked: Signature | None
    """What it is an index of."""


class Standing(Protocol):
    """Where a view stands, whatever it is of."""

    @property
    def directory(self) -> Path: ...

    @property
    def position(self) -> Position | None: ...

    @property
    def log_id(self) -> str: ...


def value(source: Rdict | Snapshot, key: bytes) -> bytes | None:
    """The value at a key. Raises ``ViewDamaged`` rather than miss one."""
    it = source.iter()
    it.seek(key)
    found: bytes | None = it.value() if it.valid() and it.key() == key else None
    check(it)
    return found


def of_view(view: MaterializedView) -> Frozen:
    """The view as it is now. Hold it open with ``view.read()`` meanwhile."""
    with view.lock:
        db = view.db
        sources = {name: getattr(db, name).snapshot() for name in ("default", *FAMILIES)}
        index = None if view.index is None else view.index.state()
        ranked = view.ranked()
    return _frozen(view.directory, sources, index, ranked)


@contextmanager
def of_directory(home: Path) -> Iterator[Frozen]:
    """The view in a view directory, whoever has it. Raises ``ViewDamaged``."""
    with of_folder(directories.current(home)) as found:
        yield found


@contextmanager
def of_folder(folder: Path) -> Iterator[Frozen]:
    """The view whose files are in a folder. Raises ``ViewDamaged``."""
    # Read first, so that it never holds more than the rows do.
    saved = saved_state(folder / directories.DATA[1])
    with database(folder, Database) as db:
        sources: dict[str, Source] = {name: getattr(db, name) for name in ("default", *FAMILIES)}
        index, owner = saved or (None, None)
        try:
            yield _frozen(folder, sources, index, None if owner is None else indexed(owner))
        finally:
            sources.clear()


@contextmanager
def database(folder: Path, kind: Open[D]) -> Iterator[D]:
    """The database of the view whose files are in a folder, standing still. Raises ``ViewDamaged``."""
    if (folder / "damaged").exists():
        raise ViewDamaged(f"the view in {folder} was found damaged; it is rebuilt at the next open")
    if not (folder / directories.DATA[0] / "CURRENT").is_file():
        raise ViewDamaged(f"there is no view in {folder}; it is built at the next open")
    scratch = Path(tempfile.mkdtemp(prefix="eventstore-reading-"))
    try:
        check_files(folder / directories.DATA[0], scratch)
        opened = Secondary(folder / directories.DATA[0], CACHE_BYTES, scratch, kind)
        try:
            yield opened.db
        finally:
            opened.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _frozen(
    directory: Path, sources: dict[str, Source], index: State | None, ranked: Signature | None
) -> Frozen:
    log_id, position = made_from(directory, sources["default"], FORMAT)
    return Frozen(directory, sources, position, log_id, index, ranked)


def made_from(directory: Path, source: Source, form_read: bytes) -> tuple[str, Position | None]:
    """The id of the log that a view was made from, and where it stands. Raises ``ViewDamaged``."""
    form = value(source, b"m:format")
    if form is not None and form != form_read:
        raise ViewDamaged(f"the view in {directory} has format {form!r}, this release reads {form_read!r}")
    at = value(source, POSITION)
    log_id = value(source, b"m:log") or b""
    return log_id.decode(), None if at is None else Position.of(at.decode())


def check_belongs(found: Standing, log_id: str, end: Position) -> None:
    """Raise ``LogMismatch`` for a view of another log, or of more of this log than exists."""
    if found.log_id not in ("", log_id):
        raise LogMismatch(
            f"the view in {found.directory} was built from log {found.log_id}, but found log {log_id}"
        )
    if found.position is not None and not (len(found.position) == len(end) and end.covers(found.position)):
        raise LogMismatch(
            f"the view in {found.directory} stands at {found.position}, but the log ends at {end}"
        )
