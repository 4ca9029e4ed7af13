"""What the tests of the checkpointer share: checkpoints by hand, threads put by hand, and whole views."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple

from eventstore.checkpoint import EventSaver
from eventstore.checkpoint.enveloping import Opener
from eventstore.checkpoint.events import Event, Fragment
from eventstore.log import EmbeddedLog, Record, StoredRecord
from projector.checkpoints import tables
from projector.checkpoints.runtime import OpenCheckpoints
from projector.rocks import scan

SMALL = 600
"""Bytes of a record where a test has them small."""


def config(thread: str, namespace: str = "", id: str | None = None) -> RunnableConfig:
    named = {"thread_id": thread, "checkpoint_ns": namespace}
    if id is not None:
        named["checkpoint_id"] = id
    return cast(RunnableConfig, {"configurable": named})


def checkpoint(id: str, values: Mapping[str, Any], versions: Mapping[str, Any] | None = None) -> Checkpoint:
    """A checkpoint whose channels are of the version that its id gives, where none is said."""
    return {
        "v": 4,
        "id": id,
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": dict(values),
        "channel_versions": dict(versions if versions is not None else dict.fromkeys(values, id)),
        "versions_seen": {},
        "updated_channels": None,
    }


def put(
    saver: EventSaver,
    thread: str,
    id: str,
    values: Mapping[str, Any],
    *,
    parent: str | None = None,
    namespace: str = "",
    metadata: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
) -> RunnableConfig:
    """Put a checkpoint all of whose channels are new."""
    made = checkpoint(id, values, versions)
    given = cast(Any, {"source": "loop", "step": 1, "parents": {}} | dict(metadata or {}))
    return saver.put(config(thread, namespace, parent), made, given, made["channel_versions"])


def values(saver: EventSaver, thread: str, id: str | None = None, namespace: str = "") -> Any:
    """The values of a checkpoint, or of the newest; ``None`` where there is none."""
    found = saver.get_tuple(config(thread, namespace, id))
    return None if found is None else found.checkpoint["channel_values"]


def ids(saver: EventSaver, thread: str) -> list[str]:
    return [each.checkpoint["id"] for each in saver.list(config(thread))]


def everything(saver: EventSaver) -> list[CheckpointTuple]:
    return list(saver.list(None))


def grown(chance: random.Random, items: list[str]) -> list[str]:
    """The same list as an agent would leave it behind a turn: longer, mostly."""
    items = list(items)
    what = chance.random()
    if what < 0.7 or not items:
        items += [text(chance) for _ in range(chance.randrange(1, 4))]
    elif what < 0.8:
        items[chance.randrange(len(items))] = text(chance)
    elif what < 0.9:
        del items[: chance.randrange(len(items))]
    else:
        items.pop()
    return items


def text(chance: random.Random, most: int = 400) -> str:
    return "".join(chance.choices("abcdefgh ", k=chance.randrange(most)))


# ------------------------------------------------------------------ the view


def runtime_of(saver: EventSaver) -> OpenCheckpoints:
    runtime = saver._engine.runtime
    assert isinstance(runtime, OpenCheckpoints)
    return runtime


def rows(saver: EventSaver) -> dict[bytes, bytes]:
    """Every row of the view: two views of one log must agree on all of them."""
    runtime = runtime_of(saver)
    runtime.catch_up()
    return dict(scan(runtime._view.db.default, b""))


def uncollected(saver: EventSaver, threads: Iterable[str]) -> list[bytes]:
    """Fragments, and values, nodes and parts that nothing of some threads names; what is named is there."""
    found = rows(saver)
    threads = list(threads)
    fragments = tuple(tables.thread_prefix(tables.FRAGMENT, thread) for thread in threads)
    left = [key for key in found if key.startswith(fragments)]
    for thread in threads:

        def under(family: bytes, thread: str = thread) -> dict[bytes, bytes]:
            prefix = tables.thread_prefix(family, thread)
            return {key[len(prefix) :]: data for key, data in found.items() if key.startswith(prefix)}

        def swept(family: bytes, named: set[bytes], under: Any = under, thread: str = thread) -> list[bytes]:
            there: dict[bytes, bytes] = under(family)
            assert named <= there.keys()
            left.extend(tables.thread_prefix(family, thread) + name for name in there.keys() - named)
            return [there[name] for name in named]

        stored: list[Any] = []
        for key, data in found.items():
            if key.startswith(tables.thread_prefix(tables.CHECKPOINT, thread)):
                row = tables.row(tables.where(key), data)
                stored += [row.body, row.metadata, *row.values.values()]
            elif key.startswith(tables.thread_prefix(tables.WRITE, thread)):
                stored.append(tables.write_row(key, data).value)
        manifests = swept(tables.VALUE, {each for each in stored if isinstance(each, bytes)})
        entries = [entry for data in manifests for entry in tables.manifest_entries(data)[3]]
        nodes = swept(tables.NODE, {name for family, name in entries if family == tables.NODE})
        parts = {name for family, name in entries if family == tables.PART}
        swept(tables.PART, parts.union(*map(tables.node_digests, nodes)))
    return left


def rebuilt(folder: Path, **options: Any) -> EventSaver:
    """A saver whose view has nothing but the log to come from. No other may be open there."""
    shutil.rmtree(folder / "views")
    return EventSaver.open(folder, **options)


def log_bytes(folder: Path) -> int:
    """Bytes of the checkpoints' log, without what is allocated ahead."""
    return sum(len(path.read_bytes().rstrip(b"\0")) for path in (folder / "checkpoints").glob("*.seg"))


def events(folder: Path) -> list[Event]:
    """What the log of checkpoints holds, read by an outsider."""
    opener = Opener()
    found = map(opener.event, records(folder))
    return [event for event in found if not isinstance(event, Fragment)]


def records(folder: Path) -> list[StoredRecord]:
    """The log of checkpoints, record by record."""
    log = EmbeddedLog.open(folder / "checkpoints")
    try:
        return [record for group in log.read(0) for record in group]
    finally:
        log.close()


def type_of(record: StoredRecord | Record) -> bytes:
    return dict(record.headers)["type"]


@contextmanager
def writer(folder: Path) -> Iterator[Callable[..., None]]:
    """Appends records batch by batch, as no saver would part them; one writer's all."""
    log = EmbeddedLog.open(folder / "checkpoints")
    try:

        def append(*given: Record) -> None:
            (result,) = log.append([log.prepare(given)], lambda lists: None)
            assert isinstance(result, list)

        yield append
    finally:
        log.close()
