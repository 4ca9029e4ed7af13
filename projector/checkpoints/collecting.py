"""Removing what no checkpoint and no write of a thread names any more."""

from __future__ import annotations

from eventstore.checkpoint.views import Stored
from projector.checkpoints import tables
from projector.checkpoints.overlay import Overlay


def collect(rows: Overlay, thread: str) -> None:
    """Mark what is named from the thread's rows, and remove the rest.

    Writes whose checkpoint is not there stay if it may still come: if it is newer than any that is.
    """
    named: set[bytes] = set()
    newest: dict[str, str] = {}
    kept = set()
    for key, data in rows.scan(tables.thread_prefix(tables.CHECKPOINT, thread)):
        row = tables.row(tables.where(key), data)
        kept.add(row.at)
        newest[row.at.namespace] = row.at.id
        for value in (row.body, row.metadata, *row.values.values()):
            _note(named, value)
    for key, data in rows.scan(tables.thread_prefix(tables.WRITE, thread)):
        at = tables.where_of_write(key)
        if at not in kept and at.id <= newest.get(at.namespace, ""):
            rows.delete(key)
        else:
            _note(named, tables.write_row(key, data).value)
    prefix = tables.thread_prefix(tables.VALUE, thread)
    lower: set[bytes] = set()
    for key, data in rows.scan(prefix):
        if key[len(prefix) :] not in named:
            rows.delete(key)
            continue
        for family, name in tables.manifest_entries(data)[3]:
            lower.add(family + name)
    prefix = tables.thread_prefix(tables.NODE, thread)
    for key, data in rows.scan(prefix):
        if tables.NODE + key[len(prefix) :] not in lower:
            rows.delete(key)
            continue
        lower.update(tables.PART + name for name in tables.node_digests(data))
    prefix = tables.thread_prefix(tables.PART, thread)
    for key in rows.keys(prefix):
        if tables.PART + key[len(prefix) :] not in lower:
            rows.delete(key)
    # Of an event that never came, or that another process is just appending and will append again.
    for key in rows.keys(tables.thread_prefix(tables.FRAGMENT, thread)):
        rows.delete(key)


def _note(named: set[bytes], value: Stored) -> None:
    if isinstance(value, bytes):
        named.add(value)
