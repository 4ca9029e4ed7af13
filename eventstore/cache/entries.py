"""The cache's view: entries in memory, the least recently used dropped beyond a size.

It is the fold of the cache's log, and is made again from the log at every start, which is quick:
the log holds a day at the most. What was dropped for lack of room is a miss, as in any cache.
Callers hold one lock around every call but :meth:`Entries.get`.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from eventstore.cache.events import CacheEvent, Depends, Kind, Space
from eventstore.log.base import StoredRecord

ENTRY_BYTES: Final = 600
"""What an entry takes besides its value, about."""


class Entry(NamedTuple):
    """A value and its times, µs since the epoch (UTC) by the log's clock."""

    digest: bytes
    space: Space
    value: bytes
    form: str
    group: bytes
    stored_us: int
    expires_us: int
    depends: Depends | None


class Entries:
    """Entries by digest, oldest use first."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._dependents: dict[bytes, set[bytes]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """What all entries take, about, in bytes."""
        return self._bytes

    def get(self, digest: bytes) -> Entry | None:
        """The entry, expired or not; counts as a use. Needs no lock."""
        entry = self._entries.get(digest)
        if entry is not None:
            # Another thread may have dropped it just now.
            with contextlib.suppress(KeyError):
                self._entries.move_to_end(digest)
        return entry

    def apply(self, event: CacheEvent, record: StoredRecord) -> Entry | None:
        """Fold one event; the entry that is now there because of it."""
        if event.kind is Kind.CLEAR:
            self._clear(event.digest, all_groups=event.space is Space.NODE)
            return None
        self.drop(event.digest)
        if event.kind is Kind.DELETE:
            return None
        entry = Entry(
            event.digest,
            event.space,
            event.value,
            event.form,
            event.group,
            record.appended_us,
            record.appended_us + event.ttl_us,
            event.depends,
        )
        self._entries[event.digest] = entry
        self._bytes += _size(entry)
        for each in entry.depends.on if entry.depends else ():
            self._dependents.setdefault(each, set()).add(entry.digest)
        while self._bytes > self._most_bytes:
            self.drop(next(iter(self._entries)))
        return self._entries.get(event.digest)

    def drop(self, digest: bytes) -> None:
        """Forget an entry, if it is there."""
        entry = self._entries.pop(digest, None)
        if entry is None:
            return
        self._bytes -= _size(entry)
        for each in entry.depends.on if entry.depends else ():
            left = self._dependents[each]
            left.discard(digest)
            if not left:
                del self._dependents[each]

    def drop_all(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._dependents.clear()
        self._bytes = 0

    def sweep(self, now_us: int) -> None:
        """Forget what has expired."""
        for digest in [entry.digest for entry in self._entries.values() if entry.expires_us <= now_us]:
            self.drop(digest)

    # ------------------------------------------------------------------ what depends on memories

    @property
    def any_depend(self) -> bool:
        """Whether any entry depends on a memory."""
        return bool(self._dependents)

    def dependent(self) -> Iterator[Entry]:
        """The entries that depend on memories."""
        for digest in {digest for digests in self._dependents.values() for digest in digests}:
            yield self._entries[digest]

    def depending_on(self, name: bytes) -> list[Entry]:
        """The entries that name this memory, or this prefix."""
        digests = self._dependents.get(name)
        return [self._entries[digest] for digest in digests] if digests else []

    # ------------------------------------------------------------------ inside

    def _clear(self, group: bytes, *, all_groups: bool) -> None:
        for digest in [
            entry.digest
            for entry in self._entries.values()
            if entry.space is Space.NODE and (all_groups or entry.group == group)
        ]:
            self.drop(digest)


def _size(entry: Entry) -> int:
    named = sum(map(len, entry.depends.on)) if entry.depends else 0
    return ENTRY_BYTES + len(entry.value) + named
