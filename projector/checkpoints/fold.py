"""The fold of checkpoints: what an event does to the rows. No clock, no I/O but the rows themselves.

An event that names a value, part, parent or fragment that is not there is rejected as a whole, by
every reader alike: a prune or a delete came between, and its writer sends it again in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

from eventstore.checkpoint import enveloping
from eventstore.checkpoint.events import (
    Assembled,
    Copy,
    Delete,
    Described,
    Drop,
    Event,
    Fragment,
    Large,
    Packed,
    Part,
    Parts,
    Put,
    Where,
    Writes,
)
from eventstore.checkpoint.splitting import digest, value_digest
from eventstore.checkpoint.views import Manifest, Row, Stored, ThreadRow
from eventstore.log.base import StoredRecord
from projector.checkpoints import tables
from projector.checkpoints.collecting import collect
from projector.checkpoints.manifests import Manifests
from projector.checkpoints.overlay import Overlay


class _Absent(Exception):
    """The event names something that is not there."""


class Fold:
    """Applies events to the rows of one batch. For one thread at a time."""

    def __init__(self, rows: Overlay, manifests: Manifests) -> None:
        self._rows = rows
        self._manifests = manifests

    def apply(self, record: StoredRecord, event: Event) -> bool:
        """What an event does; whether it counts. One that does not leaves no row.

        Raises ``UndecodableEvent`` for a large one whose fragments come to no event; then the rows are
        not to be used.
        """
        match event:
            case Put():
                return self._put(record, event)
            case Writes():
                return self._write(event)
            case Parts():
                self._parts(event.at.thread, event.parts, _names(event.parts))
            case Drop() | Delete():
                self.remove(event)
            case Fragment():
                key = tables.fragment_key(event.at.thread, record.session, record.sequence)
                self._rows.put(key, event.data)
            case Large():
                whole = enveloping.opened(record, event, partial(self._fragment, event.at.thread, record))
                return whole is not None and self.apply(record, whole)
        return True

    def remove(self, event: Drop | Delete) -> None:
        """What an event does that takes something away."""
        if isinstance(event, Drop):
            self._drop(event)
        else:
            self._delete(event.at.thread)

    def _put(self, record: StoredRecord, event: Put) -> bool:
        rows, at = self._rows, event.at
        values: dict[str, Stored] = {}
        if event.base is not None and event.parent is not None:
            base = self._row(at._replace(id=event.parent))
            if base is None or base.event != event.base:
                return False
            values.update(base.values)
        given = [event.body, event.metadata, *(value for _, value in event.values)]
        names = _names(event.parts)
        try:
            body, metadata, *made = self._values(given, event, names)
        except _Absent:
            return False
        for channel in event.removed:
            values.pop(channel, None)
        for (channel, _), value in zip(event.values, made, strict=True):
            values[channel] = value
        self._parts(at.thread, event.parts, names)
        before = self._row(at)
        if before is not None and before.run is not None:
            rows.delete(tables.run_key(before.run, at))
        row = Row(
            at,
            event.parent,
            (record.partition, record.offset),
            record.appended_us,
            False,
            event.sealed,
            body,
            metadata,
            event.run,
            event.memories,
            values,
        )
        rows.put(tables.checkpoint_key(at), tables.pack_row(row))
        rows.put(tables.id_key(at), b"")
        if event.run is not None:
            rows.put(tables.run_key(event.run, at), b"")
        self._count(at.thread, 1 if before is None or before.hidden else 0, record.appended_us)
        return True

    def _write(self, event: Writes) -> bool:
        rows = self._rows
        # The first write with a number counts; of the special ones, with negative numbers, the last.
        due = [
            write
            for write in event.writes
            if write.number < 0 or rows.get(tables.write_key(event.at, event.task, write.number)) is None
        ]
        names = _names(event.parts)
        try:
            made = self._values([write.value for write in due], event, names)
        except _Absent:
            return False
        self._parts(event.at.thread, event.parts, names)
        for write, value in zip(due, made, strict=True):
            key = tables.write_key(event.at, event.task, write.number)
            rows.put(key, tables.pack_write(event.path, write.channel, value))
        return True

    def _drop(self, event: Drop) -> None:
        thread = event.at.thread
        hidden = {Where(thread, namespace, id) for namespace, id in event.hidden} | self._late(event)
        gone = 0
        for namespace, id in chain(event.dropped, event.hidden):
            at = Where(thread, namespace, id)
            row = self._row(at)
            if row is None:
                continue
            gone += not row.hidden
            self._rows.delete(tables.id_key(at))
            if row.run is not None:
                self._rows.delete(tables.run_key(row.run, at))
            if at in hidden:
                self._rows.put(
                    tables.checkpoint_key(at), tables.pack_row(row._replace(hidden=True, run=None))
                )
                continue
            self._rows.delete(tables.checkpoint_key(at))
            for key in self._rows.keys(tables.write_prefix(at)):
                self._rows.delete(key)
        self._count(thread, -gone, None)
        collect(self._rows, thread)

    def _late(self, event: Drop) -> set[Where]:
        """Ancestors of checkpoints that were put while it was decided what goes.

        Which of them such a checkpoint is rebuilt from is not known here, so all stay until the next prune.
        """
        if not event.dropped:
            return set()
        thread = event.at.thread
        going = {Where(thread, namespace, id) for namespace, id in chain(event.dropped, event.hidden)}
        found: set[Where] = set()
        for key, data in self._rows.scan(tables.thread_prefix(tables.CHECKPOINT, thread)):
            row: Row | None = tables.row(tables.where(key), data)
            if row is None or row.event[1] <= event.known or row.at in going or row.hidden:
                continue
            while row is not None and row.parent is not None:
                at = row.at._replace(id=row.parent)
                if at in found:
                    break
                found.add(at)
                row = self._row(at)
        return found

    def _delete(self, thread: str) -> None:
        rows = self._rows
        for key, data in rows.scan(tables.thread_prefix(tables.CHECKPOINT, thread)):
            row = tables.row(tables.where(key), data)
            rows.delete(tables.id_key(row.at))
            if row.run is not None:
                rows.delete(tables.run_key(row.run, row.at))
        for family in (tables.THREAD, *tables.WITH_BYTES):
            for key in rows.keys(tables.thread_prefix(family, thread)):
                rows.delete(key)

    def _fragment(self, thread: str, record: StoredRecord, sequence: int) -> bytes | None:
        """A fragment of a record's event, which goes."""
        return self._rows.take(tables.fragment_key(thread, record.session, sequence))

    # ------------------------------------------------------------------ values

    def _values(
        self, values: Sequence[Described], event: Put | Writes, names: Sequence[bytes]
    ) -> list[Stored]:
        """Values as rows name them; their rows are written. Raises :class:`_Absent` before any is."""
        thread = event.at.thread
        made = [value if isinstance(value, Packed) else self._made(thread, value, names) for value in values]
        stored: list[Stored] = []
        for value in made:
            if isinstance(value, Packed):
                stored.append(value)
                continue
            tag, head, digests = value
            name = value_digest(tag, head, digests)
            key = tables.thread_prefix(tables.VALUE, thread) + name
            if self._rows.get(key) is None:
                data, nodes = tables.pack_manifest(Manifest(tag, head, event.sealed, digests))
                prefix = tables.thread_prefix(tables.NODE, thread)
                for node, joined in nodes.items():
                    if self._rows.get(prefix + node) is None:
                        self._rows.put(prefix + node, joined)
                self._rows.put(key, data)
            self._manifests.keep(thread, name, Manifest(tag, head, event.sealed, digests))
            stored.append(name)
        return stored

    def _made(
        self, thread: str, value: Assembled, names: Sequence[bytes]
    ) -> tuple[str, bytes, tuple[bytes, ...]]:
        digests: list[bytes] = []
        earlier: Sequence[bytes] = ()
        if value.after is not None:
            # What is kept in memory may have been collected since.
            if self._rows.get(tables.thread_prefix(tables.VALUE, thread) + value.after) is None:
                raise _Absent
            found = self._manifests.get(thread, value.after, self._rows.get)
            if found is None:
                raise _Absent
            earlier = found.digests
        own = set(names)
        for piece in value.pieces:
            if isinstance(piece, Copy):
                digests += earlier[piece.first : piece.first + piece.parts]
            elif isinstance(piece, int):
                digests.append(names[piece])
            elif (
                piece in own or self._rows.get(tables.thread_prefix(tables.PART, thread) + piece) is not None
            ):
                digests.append(piece)
            else:
                raise _Absent
        return value.tag, value.head, tuple(digests)

    def _parts(self, thread: str, parts: Sequence[Part], names: Sequence[bytes]) -> None:
        prefix = tables.thread_prefix(tables.PART, thread)
        for name, part in zip(names, parts, strict=True):
            self._rows.put(prefix + name, part.data)

    # ------------------------------------------------------------------ rows

    def _row(self, at: Where) -> Row | None:
        data = self._rows.get(tables.checkpoint_key(at))
        return None if data is None else tables.row(at, data)

    def _count(self, thread: str, more: int, appended_us: int | None) -> None:
        key = tables.thread_prefix(tables.THREAD, thread)
        data = self._rows.get(key)
        before = ThreadRow(thread, appended_us or 0, 0, 0) if data is None else tables.thread_row(key, data)
        count = before.checkpoints + more
        if count <= 0:
            self._rows.delete(key)
            return
        updated = before.updated_us if appended_us is None else appended_us
        self._rows.put(key, tables.pack_thread(before._replace(checkpoints=count, updated_us=updated)))


def _names(parts: Sequence[Part]) -> list[bytes]:
    return [part.digest or digest(part.data) for part in parts]
