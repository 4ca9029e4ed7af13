"""Where the cache's log is: beside the log of memories, in a folder or a topic of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from eventstore.errors import InvalidConfig, LogDamaged
from eventstore.log.base import Log
from eventstore.log.disposable import DisposableLog
from eventstore.log.embedded import EmbeddedLog

FOLDER: Final = "cache"
SEGMENT_BYTES: Final = 8 * 1024 * 1024


@runtime_checkable
class Trimmed(Protocol):
    """A log whose own files are looked after here."""

    def trim(self, before_us: int, most_bytes: int) -> int:
        """Remove the oldest part."""

    def sync(self) -> None:
        """Make durable what was appended."""


@runtime_checkable
class HasCache(Protocol):
    """A log that knows where the cache's log is."""

    def open_cache(self) -> Log:
        """Open it; made when missing."""


def open_beside(items: Log) -> Log:
    """The cache's log that belongs to a log of memories, made when missing.

    Raises ``InvalidConfig``, ``LogUnavailable``, and ``LogDamaged`` when its files do not hold.
    """
    if isinstance(items, EmbeddedLog):
        folder = Path(items.location).with_name(FOLDER)
        try:
            return DisposableLog.open(folder, segment_bytes=SEGMENT_BYTES)
        except LogDamaged as error:
            raise LogDamaged(
                f"the cache in {folder} is damaged. It holds nothing that cannot be loaded again: "
                "remove this folder while no process uses it"
            ) from error
    if isinstance(items, HasCache):
        return items.open_cache()
    raise InvalidConfig(f"a {type(items).__name__} has no place for a cache")
