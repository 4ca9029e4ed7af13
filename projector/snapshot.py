"""Snapshots: a consistent copy of a view at a position, and starting from one.

A snapshot saves time, never truth: it is files of a view, a manifest with the log it belongs to,
and a checksum of each file. One that cannot be trusted is left aside with a warning, and the view
is made from the log.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict
from rocksdict import Checkpoint

from eventstore import EventStore
from eventstore.config import StoreConfig
from eventstore.connection import parse
from eventstore.errors import LogMismatch, ViewError
from projector import directories
from projector.frozen import check_belongs, of_directory
from projector.lease import Lease
from projector.places import open_log, require, views_of
from projector.runtime import OpenRuntime, runtime_of

log = logging.getLogger("projector.snapshot")

FORMAT: Final = 1
MANIFEST: Final = "snapshot.json"
COPY_ROWS: Final = 5_000
_BLOCK: Final = 1 << 20


class SnapshotFile(BaseModel):
    """A file of a snapshot."""

    model_config = ConfigDict(frozen=True)

    name: str
    size: int
    xxh3: str
    """64-bit checksum, in hex."""


class Snapshot(BaseModel):
    """What stands in a snapshot's manifest."""

    model_config = ConfigDict(frozen=True)

    format: int
    log_id: str
    position: str
    taken_at: float
    """Seconds since the epoch."""
    files: list[SnapshotFile]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


class UnusableSnapshot(ViewError):
    """A snapshot that is of another format, damaged, or not of this log. The log has all it has."""


def take(store: EventStore | OpenRuntime, folder: str | Path) -> Snapshot:
    """Copy the view of an open store, which goes on serving, into a folder; one there is replaced.

    Raises ``InvalidConfig`` for a folder that holds something else, ``ViewError`` where it cannot
    be written.
    """
    runtime = store if isinstance(store, OpenRuntime) else runtime_of(store)
    runtime.check()
    runtime.catch_up()
    view = runtime.materialized

    def copy(to: Path) -> tuple[str, str]:
        with view.read():
            if view.index is not None:
                view.index.checkpoint()
            with runtime.hold():
                Checkpoint(view.db.default).create_checkpoint(str(to / directories.DATA[0]))
                position = str(runtime.applied)
            _copy_vectors(view.directory, to)
        return runtime.log.log_id, position

    return _write(Path(folder), copy)


def take_at(conn_string: str | Path, folder: str | Path, *, views: str | Path | None = None) -> Snapshot:
    """Copy the furthest view kept for a store, which another process may have open.

    Raises ``ViewError`` when there is no view that can be read, and as :func:`take` does.
    """
    place = parse(conn_string)
    require(place)
    homes = directories.numbered(views_of(place, views))
    if not homes:
        raise ViewError("there is no view to copy; open the store once, and one is made from the log")

    def copy(to: Path) -> tuple[str, str]:
        with of_directory(max(homes, key=_reached)) as frozen:
            _copy_rows(frozen, to / directories.DATA[0])
            return frozen.log_id, str(frozen.position or "0")

    return _write(Path(folder), copy)


def start_from(
    folder: str | Path, conn_string: str | Path, *, views: str | Path | None = None
) -> Snapshot | None:
    """Put a snapshot in the place of a free view; the next open catches up from there.

    A snapshot that cannot be used is left aside with a warning, and ``None`` is returned: the view
    is made from the log as ever. Raises ``InvalidConfig`` where there is no store.
    """
    place = parse(conn_string)
    require(place)
    source = open_log(place, StoreConfig())
    lease = Lease.take(views_of(place, views))
    try:
        with directories.alone(lease.directory):
            directories.withdraw(lease.directory)
            made = directories.beside(lease.directory)
            directories.empty(made)
            try:
                found = read(Path(folder))
                _restore(Path(folder), found, made)
                with of_folder(made) as frozen:
                    check_belongs(frozen, source.log_id, source.high_water_mark())
            except (UnusableSnapshot, LogMismatch, ViewError) as error:
                shutil.rmtree(made, ignore_errors=True)
                log.warning("the snapshot in %s is not used, the view is made from the log: %s", folder, error)
                return None
            directories.make_current(made)
            directories.remove_unused(lease.directory)
            return found
    finally:
        lease.release()
        source.close()
