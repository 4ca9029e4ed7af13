"""Files that are either complete or absent, and that can be told from damaged ones.

A file is written under a temporary name, synced and renamed. Its name, size and checksum
go into the manifest, which is the only thing that makes it count.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import xxhash

_TEMPORARY = ".part"


class UnusableFile(Exception):
    """A file of the saved state is missing, damaged or of another generation."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"{name} {what}")


class FileRecord(NamedTuple):
    """A file as the manifest knows it. ``xxh3`` is the 64-bit checksum in hex."""

    name: str
    size: int
    xxh3: str


def write(path: Path, blocks: Iterable[bytes | memoryview]) -> FileRecord:
    """Write the blocks so that a crash leaves the whole file or none.

    Raises:
        OSError: it could not be written; nothing is left behind under the final name.
    """
    checksum = xxhash.xxh3_64()
    size = 0
    temporary = path.with_name(path.name + _TEMPORARY)
    try:
        with temporary.open("wb", buffering=0) as file:
            for block in blocks:
                checksum.update(block)
                size += len(block)
                _write_all(file.fileno(), block)
            os.fsync(file.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    _publish(temporary, path)
    return FileRecord(path.name, size, checksum.hexdigest())


def temporary_for(path: Path) -> Path:
    """Where another writer (FAISS) should put the content of ``path`` before :func:`adopt`."""
    return path.with_name(path.name + _TEMPORARY)


def adopt(path: Path) -> FileRecord:
    """Sync and publish what was written to ``temporary_for(path)``."""
    temporary = temporary_for(path)
    descriptor = os.open(temporary, os.O_RDWR)
    try:
        os.fsync(descriptor)
        size = os.fstat(descriptor).st_size
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped:
            checksum = xxhash.xxh3_64_hexdigest(mapped)
    finally:
        os.close(descriptor)
    _publish(temporary, path)
    return FileRecord(path.name, size, checksum)


def open_verified(directory: Path, record: FileRecord) -> mmap.mmap:
    """Map a file after comparing its size and checksum with its record.

    Raises:
        UnusableFile: it is missing or differs.
    """
    try:
        with (directory / record.name).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != record.size or size == 0:
                raise UnusableFile(record.name, f"has {size} bytes where the manifest says {record.size}")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise UnusableFile(record.name, "is missing") from None
    if xxhash.xxh3_64_hexdigest(mapped) != record.xxh3:
        mapped.close()
        raise UnusableFile(record.name, "does not match its checksum")
    return mapped


def remove(directory: Path, names: Iterable[str]) -> None:
    """Unlink files that no manifest names any more; absent ones are fine."""
    for name in names:
        (directory / name).unlink(missing_ok=True)


def _write_all(descriptor: int, block: bytes | memoryview) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _publish(temporary: Path, path: Path) -> None:
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
