"""What stands in a view directory: which files are in use, and what a rebuild is making beside them.

A view directory (``views/0``) holds its files itself, or names in ``current`` the folder inside
it that does: a rebuild makes a whole new view in ``rebuilt-1``, and exchanging the views is
writing that one name. ``ready`` names a finished view that whoever owns the directory takes over.
``building`` is locked by whoever makes or takes over a new view. Leases on whole directories
are ``lease``'s part.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from eventstore.errors import ViewError

DATA: Final = ("rocksdb", "vectors")
"""What a view consists of, in the folder that is in use."""
SCRATCH: Final = ".scratch-"
ALONE_SECONDS: Final = 5.0
"""How long taking over a view may keep the next rebuild waiting."""
_NAME: Final = re.compile(r"rebuilt-(\d{1,9})")


def numbered(views: Path) -> list[Path]:
    """The view directories under a folder, in order."""
    if not views.is_dir():
        return []
    found = [path for path in views.iterdir() if path.name.isdecimal() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def current(directory: Path) -> Path:
    """The folder whose files are in use."""
    name = _read(directory / "current")
    if name is None:
        return directory
    (directory / name).mkdir(exist_ok=True)
    return directory / name


def ready(directory: Path) -> Path | None:
    """A finished view that waits to be taken over."""
    name = _read(directory / "ready")
    return None if name is None or not (directory / name / DATA[0]).is_dir() else directory / name


def begun(directory: Path) -> list[Path]:
    """Folders of views that were begun and are not in use, oldest first."""
    used = current(directory)
    return sorted((path for path in _rebuilt(directory) if _number(path) > _number(used)), key=_number)


def beside(directory: Path) -> Path:
    """The folder in which a new view is made: one that was begun, else a new one. Hold the lock."""
    found = begun(directory)
    for older in found[:-1]:
        shutil.rmtree(older, ignore_errors=True)
    if found:
        return found[-1]
    made = directory / f"rebuilt-{_number(current(directory)) + 1}"
    made.mkdir()
    return made


def make_ready(folder: Path) -> None:
    """Let the owner of the directory take over the view in a folder. It is closed, the lock is held."""
    _write(folder.parent / "ready", folder.name)


def make_current(folder: Path) -> None:
    """Have the files of a folder used from now on; one atomic step."""
    _write(folder.parent / "current", folder.name)
    (folder.parent / "ready").unlink(missing_ok=True)


def withdraw(directory: Path) -> None:
    """A finished view is not to be taken over yet. Hold the lock."""
    (directory / "ready").unlink(missing_ok=True)


def remove_unused(directory: Path) -> None:
    """Remove what a finished rebuild left behind. For the directory's owner only."""
    used = current(directory)
    if used == directory:
        return
    for folder in (directory, *_rebuilt(directory)):
        if folder != used and (folder == directory or _number(folder) < _number(used)):
            empty(folder)
            if folder != directory:
                shutil.rmtree(folder, ignore_errors=True)


def size(folder: Path) -> int:
    """Bytes of all files in a folder and below."""
    total = 0
    for path in folder.rglob("*"):
        # RocksDB removes files at any time.
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def empty(folder: Path) -> None:
    """Remove the files of a view."""
    for name in DATA:
        shutil.rmtree(folder / name, ignore_errors=True)
    (folder / "damaged").unlink(missing_ok=True)


@contextmanager
def building(directory: Path, wait: float = 0.0) -> Iterator[bool]:
    """Hold the right to make or take over a new view here; whether it was free within ``wait`` seconds."""
    descriptor = os.open(directory / "building", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + wait
        while not (free := _locked(descriptor)) and time.monotonic() < deadline:
            time.sleep(0.02)
        yield free
    finally:
        os.close(descriptor)


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """:func:`building` for those who cannot go on without. Raises ``ViewError``."""
    with building(directory, ALONE_SECONDS) as free:
        if not free:
            raise ViewError(
                f"a rebuild of the view in {directory} is running already; wait for it, or stop it first"
            )
        yield


@contextmanager
def scratch(views: Path) -> Iterator[Path]:
    """A folder beside the views for as long as it is needed; those that died with their process go, too."""
    views.mkdir(parents=True, exist_ok=True)
    for path in views.glob(f"{SCRATCH}*"):
        with contextlib.suppress(FileNotFoundError), building(path) as free:
            if free:
                shutil.rmtree(path, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=views))
    with building(made):
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _rebuilt(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]


def _number(folder: Path) -> int:
    found = _NAME.fullmatch(folder.name)
    return int(found[1]) if found else 0


def _read(path: Path) -> str | None:
    try:
        name = path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return name if _NAME.fullmatch(name) else None


def _write(path: Path, name: str) -> None:
    temporary = path.with_name(path.name + ".part")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(name + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
