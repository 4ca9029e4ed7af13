"""Rows as they will be once the batch that is being made is written.

RocksDB does not show a batch to itself, and an event must see what the ones before it in the same
batch have done.
"""

from __future__ import annotations

from collections.abc import Iterator

from rocksdict import Rdict, WriteBatch

from projector.rocks import get, scan, scan_keys


class Overlay:
    """A database with changes on top of it. For one thread at a time."""

    def __init__(self, source: Rdict) -> None:
        self._source = source
        self._changes: dict[bytes, bytes | None] = {}

    def get(self, key: bytes) -> bytes | None:
        """The value at a key."""
        if key in self._changes:
            return self._changes[key]
        return get(self._source, key)

    def put(self, key: bytes, value: bytes) -> None:
        """Set a value."""
        self._changes[key] = value

    def delete(self, key: bytes) -> None:
        """Remove a key, if it is there."""
        self._changes[key] = None

    def take(self, key: bytes) -> bytes | None:
        """The value at a key, which goes; what came with this very batch leaves no trace in it."""
        value = self.get(key)
        if get(self._source, key) is None:
            self._changes.pop(key, None)
        else:
            self._changes[key] = None
        return value

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values under a prefix, in order, as they are when this is called."""
        changed = {key: value for key, value in self._changes.items() if key.startswith(prefix)}
        found = {key: value for key, value in scan(self._source, prefix) if key not in changed}
        found |= {key: value for key, value in changed.items() if value is not None}
        yield from sorted(found.items())

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """Keys under a prefix, in order, as they are when this is called; values are not fetched."""
        changed = {key: value for key, value in self._changes.items() if key.startswith(prefix)}
        found = [key for key in scan_keys(self._source, prefix) if key not in changed]
        found += [key for key, value in changed.items() if value is not None]
        yield from sorted(found)

    def write(self, batch: WriteBatch) -> None:
        """Put the changes into a batch, and begin anew."""
        for key, value in self._changes.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._changes.clear()

    def shrunk(self) -> int:
        """Bytes of values that there are less with the changes."""
        before = sum(len(get(self._source, key) or b"") for key in self._changes)
        return before - sum(len(value or b"") for value in self._changes.values())

    def clear(self) -> None:
        """Forget the changes."""
        self._changes.clear()
