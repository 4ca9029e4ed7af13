"""Acts on whole threads: thinning out, removing what runs did, copying."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from langgraph.checkpoint.serde.base import SerializerProtocol

from eventstore.checkpoint import composing
from eventstore.checkpoint.composing import Composed
from eventstore.checkpoint.contents import Earlier, Missing
from eventstore.checkpoint.engine import Engine
from eventstore.checkpoint.events import Described, Drop, Event, Packed, Put, Where, Write, Writes
from eventstore.checkpoint.sealing import Seal
from eventstore.checkpoint.threads import Kept, Metadata, thinned, without
from eventstore.checkpoint.views import CheckpointView, WriteRow

__all__ = ["Kept", "copy_thread", "delete_for_runs", "thin_out"]


def thin_out(
    engine: Engine, thread: str, kept: Kept, serde: SerializerProtocol, *, dry_run: bool = False
) -> Drop | None:
    """Thin a thread out; what goes, ``None`` for nothing. With ``dry_run`` it is only said."""
    engine.refresh()
    view, metadata = engine.runtime.checkpoints, _metadata(engine, serde)
    drop = engine.decided(thread, lambda: thinned(thread, view.of_thread(thread), kept, metadata))
    if drop is not None and not dry_run:
        engine.append([drop])
    return drop


def delete_for_runs(engine: Engine, runs: Iterable[str], serde: SerializerProtocol) -> None:
    """Remove the checkpoints that runs put; an event for each thread that has some."""
    engine.refresh()
    view = engine.runtime.checkpoints
    by_thread: dict[str, set[Where]] = {}
    for run in runs:
        for at in view.run(run):
            by_thread.setdefault(at.thread, set()).add(at)
    for thread, going in by_thread.items():
        drop = engine.decided(thread, partial(_without, view, thread, going, _metadata(engine, serde)))
        if drop is not None:
            engine.append([drop])


def copy_thread(engine: Engine, source: str, to: str) -> None:
    """Copy a thread, all at once: its checkpoints, hidden ones too, with their values and writes."""
    engine.refresh()
    if source != to and engine.runtime.checkpoints.of_thread(source):
        engine.write(to, lambda seal, whole: _copied(engine, source, to, seal, whole))


def _copied(engine: Engine, source: str, to: str, seal: Seal, whole: bool) -> Composed:
    view, contents, reading = engine.runtime.checkpoints, engine.contents, engine.reading
    description = contents.describe(to, seal, whole=whole)
    latest: dict[tuple[str, str], Earlier] = {}
    in_event: dict[tuple[str, str], Earlier] = {}
    """What the event in the making has, which no other value of it can continue."""
    events: list[Event] = []

    def value(packed: Packed, at: Where, channel: str) -> Described:
        made, split = description.described(packed, latest.get((at.namespace, channel)))
        if split is not None:
            in_event[at.namespace, channel] = Earlier(split.name(), split.digests, split)
        return made

    def add(event: Event) -> None:
        events.append(event)
        latest.update(in_event)
        in_event.clear()

    rows = sorted(view.of_thread(source), key=lambda row: row.event)
    for row in rows:
        at = row.at._replace(thread=to)
        body, metadata = (
            reading.packed(row, row.body, b"body"),
            reading.packed(row, row.metadata, b"metadata"),
        )
        values = tuple(
            (channel, value(reading.packed(row, stored), at, channel))
            for channel, stored in row.values.items()
        )
        add(
            Put(
                at,
                row.parent,
                None,
                composing.field(description, seal, body, at, b"body"),
                composing.field(description, seal, metadata, at, b"metadata"),
                (),
                values,
                description.take_parts(),
                row.run,
                row.memories,
                seal.closes,
            )
        )
        by_task: dict[tuple[str, str], list[WriteRow]] = {}
        for write in view.writes(row.at):
            by_task.setdefault((write.task, write.path), []).append(write)
        for (task, path), found in by_task.items():
            made = tuple(
                Write(each.number, each.channel, value(reading.packed(row, each.value), at, ""))
                for each in found
            )
            add(Writes(at, task, path, made, description.take_parts(), seal.closes))
    if not all(map(reading.is_current, rows)):
        raise Missing  # and so may their writes, which were read apart
    hidden = tuple((row.at.namespace, row.at.id) for row in rows if row.hidden)
    if hidden:
        add(Drop(Where(to), (), hidden))
    return Composed(events, description.splits)


def _without(view: CheckpointView, thread: str, going: set[Where], metadata: Metadata) -> Drop | None:
    return without(thread, view.of_thread(thread), going, metadata)


def _metadata(engine: Engine, serde: SerializerProtocol) -> Metadata:
    return lambda row: engine.reading.metadata(row, serde)
