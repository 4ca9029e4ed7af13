"""Another process's RocksDB, read and caught up with, and never left half-way.

RocksDB replays its owner's write-ahead log into memory and takes finished files from its manifest,
and these two need not fit. Events that were flushed before they were read here leave a family
with an old memory table in front of a newer file, so that families disagree; a log that is
removed between two steps leaves a gap. Both can be told from the sizes of the files before and
after: where it may have happened, :meth:`Secondary.catch_up` says so, and the database is opened
anew, which starts from an empty memory table.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from eventstore.errors import ViewBehind, ViewError
from projector.rocks import Rocks

ATTEMPTS: Final = 20
PAUSE_SECONDS: Final = 0.005
_IDENTITY: Final = "IDENTITY"


class Files(NamedTuple):
    """What the owner had written at one moment."""

    manifest: tuple[tuple[str, int, int], ...]
    """Name, size and time of what says which files count; time only where content is replaced."""
    logs: dict[int, int]
    """Size of each write-ahead log by its number; the highest is being written."""

    @property
    def newest(self) -> int:
        """The log that is being written; 0 while there is none."""
        return max(self.logs, default=0)


D = TypeVar("D", bound=Rocks)
Open = Callable[[Path, int, Path | None], D]
"""Opens a database in a folder with so many bytes of cache; with a scratch folder, only to be read."""


class Secondary(Generic[D]):
    """One RocksDB of another process. For one thread at a time, apart from reads of :attr:`db`."""

    def __init__(self, path: Path, cache_bytes: int, scratch: Path, kind: Open[D]) -> None:
        """Open what is there, with files of its own in a folder in ``scratch``.

        Raises ``ViewDamaged``, ``ViewBehind`` when its owner is too busy.
        """
        self.path = path
        self.identity = identity(path)
        """Names this very database; one that is removed and made again has another."""
        self._read = Files((), {})
        """What is sure to have been read."""
        self._scratch = Path(tempfile.mkdtemp(prefix="rocksdb-", dir=scratch))
        try:
            self.db = self._open(cache_bytes, kind)
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def is_behind(self) -> bool:
        """Whether the owner has written since; costs some tens of µs and asks only the file system."""
        return look(self.path) != self._read

    def catch_up(self) -> bool:
        """Read what the owner has written since. ``False``: families may disagree now; open it anew.

        Nobody may read several families together meanwhile.
        """
        for _ in range(ATTEMPTS):
            before = look(self.path)
            try:
                self.db.default.try_catch_up_with_primary()
            except Exception:
                return False
            after = look(self.path)
            if after.manifest != self._read.manifest and not _was_read(self._read, after):
                return False
            if before.newest not in after.logs:
                return False
            logs = {at: size for at, size in before.logs.items() if at in after.logs}
            self._read = Files(after.manifest, logs)
            if after.manifest == before.manifest and len(logs) == len(before.logs):
                return True
        return False

    def close(self) -> None:
        """Close it and remove its scratch folder. No iterator of it may be in use."""
        with contextlib.suppress(ViewError):
            self.db.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _open(self, cache_bytes: int, kind: Open[D]) -> D:
        for attempt in range(ATTEMPTS):
            before = look(self.path)
            db = kind(self.path, cache_bytes, self._scratch)
            after = look(self.path)
            if before.manifest == after.manifest and before.logs.keys() <= after.logs.keys():
                self._read = before
                return db
            db.close()
            time.sleep(PAUSE_SECONDS * (attempt + 1))
        raise ViewBehind(f"the view in {self.path} is being rewritten all the time; try again")


def look(path: Path) -> Files:
    """What stands in the folder of a RocksDB. A folder that is gone holds nothing."""
    manifest: list[tuple[str, int, int]] = []
    logs: dict[int, int] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            # Its owner removes files at any time.
            with contextlib.suppress(FileNotFoundError):
                if name.endswith(".log"):
                    logs[int(name[:-4])] = os.stat(entry.path).st_size
                elif name.startswith("MANIFEST-"):
                    manifest.append((name, os.stat(entry.path).st_size, 0))
                elif name == "CURRENT":
                    found = os.stat(entry.path)
                    manifest.append((name, found.st_size, found.st_mtime_ns))
    return Files(tuple(sorted(manifest)), logs)


def identity(path: Path) -> str | None:
    """The id RocksDB gave a database when it was made; ``None`` where there is none."""
    try:
        return (path / _IDENTITY).read_text(encoding="utf-8").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None


def _was_read(read: Files, now: Files) -> bool:
    """Whether everything the owner may have flushed by now had been read from its logs before.

    A log that is not written to any more never grows again; one that is gone was flushed.
    """
    if read.newest not in now.logs:
        return False
    return all(read.logs.get(at) == size for at, size in now.logs.items() if at < now.newest)
