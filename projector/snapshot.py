"""Snapshots: a consistent copy of a view at a position, and starting from one.

A snapshot saves time, never truth: it is files of a view, a manifest with the log it belongs to,
and a checksum of each file. One that cannot be trusted is left aside with a warning, and the view
is made from the log.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import xxhash
from pydantic import BaseModel, ConfigDict
from rocksdict import Checkpoint, WriteBatch

from eventstore import EventStore
from eventstore.config import StoreConfig
from eventstore.connection import parse
from eventstore.errors import InvalidConfig, LogMismatch, ViewDamaged, ViewError
from eventstore.log.position import Position
from projector import directories
from projector.frozen import CACHE_BYTES, Frozen, check_belongs, of_directory, of_folder
from projector.lease import Lease
from projector.places import open_log, require, views_of
from projector.rocks import FAMILIES, Database, scan, translate
from projector.runtime import OpenRuntime, runtime_of
from projector.vectors.saved import saved_state

log = logging.getLogger("projector.snapshot")

FORMAT: Final = 1
MANIFEST: Final = "snapshot.json"
COPY_ROWS: Final = 5_000
COPY_ATTEMPTS: Final = 3
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


def take(store: EventStore | OpenRuntime, folder: str | Path) -> Snapshot:
    """Copy the view of an open store, which goes on serving, into a folder; a snapshot there is replaced.

    Raises ``InvalidConfig`` for a folder that holds something else, ``ViewError`` where it cannot
    be written.
    """
    runtime = store if isinstance(store, OpenRuntime) else runtime_of(store)
    runtime.check()
    runtime.catch_up()
    view = runtime.materialized

    def copy(to: Path) -> None:
        with view.read():
            if view.index is not None:
                view.index.checkpoint()
            # Saved vectors must never be ahead of the rows they were made from.
            _copy_vectors(view.directory / directories.DATA[1], to / directories.DATA[1])
            try:
                Checkpoint(view.db.default).create_checkpoint(str(to / directories.DATA[0]))
            except Exception as error:
                raise translate(error, "copying the view") from error

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

    def copy(to: Path) -> None:
        home = max(homes, key=_reached)
        _copy_vectors(directories.current(home) / directories.DATA[1], to / directories.DATA[1])
        with of_directory(home) as frozen:
            _copy_rows(frozen, to / directories.DATA[0])

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
    try:
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
                except (LogMismatch, ViewError) as error:
                    shutil.rmtree(made, ignore_errors=True)
                    log.warning(
                        "the snapshot in %s is not used, views are made from the log: %s", folder, error
                    )
                    return None
                directories.make_current(made)
            directories.remove_unused(lease.directory)
            return found
        finally:
            lease.release()
    finally:
        source.close()


def read(folder: Path) -> Snapshot:
    """The manifest of a snapshot whose files are all there and unchanged. Raises ``ViewDamaged``."""
    try:
        outer = json.loads((folder / MANIFEST).read_bytes())
        body = outer["snapshot"]
        if body["format"] != FORMAT:
            raise ViewDamaged(f"it has format {body['format']}, this release reads {FORMAT}")
        if outer["xxh3"] != _checksum(body):
            raise ViewDamaged("its manifest does not match its checksum")
        found = Snapshot(**body)
    except OSError as error:
        raise ViewDamaged(f"its manifest cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ViewDamaged("its manifest is damaged") from error
    for file in found.files:
        path = folder / file.name
        if not path.is_file() or path.stat().st_size != file.size or _hash(path) != file.xxh3:
            raise ViewDamaged(f"{file.name} is missing, cut or does not match its checksum")
    return found


def _write(folder: Path, copy: Callable[[Path], None]) -> Snapshot:
    folder = folder.expanduser().absolute()
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST).exists():
        raise InvalidConfig(f"{folder} holds something that is no snapshot; give a new or empty folder")
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir(parents=True)
        copy(part)
        with of_folder(part) as frozen:
            log_id, position = frozen.log_id, str(frozen.position or Position.start(1))
        made = Snapshot(
            format=FORMAT, log_id=log_id, position=position, taken_at=time.time(), files=_files(part)
        )
        body = made.model_dump(mode="json")
        with (part / MANIFEST).open("w", encoding="utf-8") as file:
            json.dump({"snapshot": body, "xxh3": _checksum(body)}, file)
            file.flush()
            os.fsync(file.fileno())
        _replace(part, folder)
    except OSError as error:
        raise ViewError(f"the snapshot in {folder} could not be written: {error.strerror}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return made


def _replace(part: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _restore(folder: Path, found: Snapshot, made: Path) -> None:
    for file in found.files:
        target = made / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        # Copied, not linked: RocksDB goes on writing to some of them.
        shutil.copyfile(folder / file.name, target)


def _copy_vectors(source: Path, target: Path) -> None:
    """The saved index, if there is one; its files never change, but its owner may exchange them."""
    for _ in range(COPY_ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        if not source.is_dir():
            return
        with contextlib.suppress(FileNotFoundError):
            shutil.copytree(source, target)
            if saved_state(target) is not None:
                return
    # Without it the index is made from the rows.
    shutil.rmtree(target, ignore_errors=True)


def _copy_rows(frozen: Frozen, target: Path) -> None:
    """All families of a view that another process is writing to, as they stand."""
    db = Database(target, CACHE_BYTES)
    try:
        for name in ("default", *FAMILIES):
            handle = db.default.get_column_family_handle(name)
            batch = WriteBatch(raw_mode=True)
            for count, (key, data) in enumerate(scan(frozen.families[name], b""), 1):
                batch.put(key, data, handle)
                if count % COPY_ROWS == 0:
                    db.default.write(batch)
                    batch = WriteBatch(raw_mode=True)
            db.default.write(batch)
            del handle
    except Exception as error:
        raise translate(error, "copying the view") from error
    finally:
        db.close()


def _reached(home: Path) -> int:
    """How far the view in a directory got, for choosing one; -1 when it cannot be read."""
    try:
        with of_directory(home) as frozen:
            return sum(frozen.position or ())
    except ViewError:
        return -1


def _files(folder: Path) -> list[SnapshotFile]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ("LOCK", "LOG"))
    return [
        SnapshotFile(name=str(path.relative_to(folder)), size=path.stat().st_size, xxh3=_hash(path))
        for path in paths
    ]


def _hash(path: Path) -> str:
    made = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            made.update(block)
    digest: str = made.hexdigest()
    return digest


def _checksum(body: dict[str, object]) -> str:
    made: str = xxhash.xxh3_64_hexdigest(json.dumps(body, sort_keys=True).encode())
    return made
