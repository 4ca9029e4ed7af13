"""The oracle of the past: a fresh view that has replayed a log only so far, record by record."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from eventstore import EventStore, Position
from eventstore.log import StoredRecord
from eventstore.log.base import Chunk, Log
from eventstore.views import Runtime
from projector.runner import Projector
from projector.view import MaterializedView
from tests.scenarios.kit import ALL, runtime_of

PREFIXES: tuple[tuple[str, ...], ...] = ((), ("a",), ("a", "b"), ("é",), ("ab", "a\x01"), ("nobody",))


def records_of(store: EventStore) -> list[StoredRecord]:
    """Every record of a store's log, read from its start; in order of time where partitions are several."""
    log = runtime_of(store).log
    records = [record for chunk in log.chunks(Position.start(log.partitions)) for record in chunk.records]
    return sorted(records, key=lambda record: (record.appended_us, record.partition, record.offset))


class ListLog:
    """A log that holds what it was given, in order of arrival."""

    location, log_id, session, end_is_local = "memory", "replayed", bytes(16), True

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.records: list[StoredRecord] = []

    def high_water_mark(self) -> Position:
        end = Position.start(self.partitions)
        for record in self.records:
            end = end.advanced(record.partition, record.offset + 1)
        return end

    def ahead_of(self, position: Position) -> bool:
        return not position.covers(self.high_water_mark())

    def chunks(self, start: Position, *, whole: bool = True) -> Iterator[Chunk]:
        at = start
        for record in list(self.records):
            if record.offset >= start[record.partition]:
                at = at.advanced(record.partition, record.offset + 1)
                yield Chunk([record], at)


class ReplayRuntime:
    """As much of a runtime as reading takes."""

    def __init__(self, partitions: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="eventstore-replay-")
        self.log = ListLog(partitions)
        self.view = MaterializedView(Path(self._folder.name), self.log.log_id, 1 << 20)
        self.projector = Projector(cast(Log, self.log), self.view)
        self.stopped = None

    @property
    def applied(self) -> Position:
        return self.projector.position

    def replay(self, records: Iterable[StoredRecord]) -> None:
        self.log.records += records
        self.projector.catch_up()

    def check(self) -> None:
        pass

    def catch_up(self) -> None:
        pass

    def use_vectors(self, dims: int, distance: Any, model: str, exact: bool) -> None:
        self.view.use_vectors(dims, distance, model, exact)

    def ranks_by(self, ranks: Any) -> bool:
        return self.view.ranks_by(ranks)

    def release(self) -> None:
        self.view.close()
        self._folder.cleanup()


class Replayed:
    """A store on such a view, with a clock that is told the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: int = 1, **options: Any) -> None:
        self.runtime = ReplayRuntime(partitions)
        self.store = EventStore(cast(Runtime, self.runtime), **options)
        self._now_us = 0
        monkeypatch.setattr("eventstore.expiry.now_us", lambda: self._now_us)

    def replay(self, records: Iterable[StoredRecord]) -> None:
        """Apply further records; the time is then that of the last one."""
        records = list(records)
        self.runtime.replay(records)
        self._now_us = records[-1].appended_us

    def close(self) -> None:
        self.store.close()


def seen(found: Any) -> Any:
    """What an answer says, without what Python objects it is made of; scores to the last bit."""
    if isinstance(found, list):
        return [seen(each) for each in found]
    if found is None or isinstance(found, tuple):
        return found
    score = getattr(found, "score", None)
    return (found.namespace, found.key, found.value, found.created_at, found.updated_at, score)


def answers(store: Any, places: Iterable[tuple[tuple[str, ...], str]]) -> dict[str, Any]:
    """Answers of every kind, on pages and under filters."""
    ask = {"refresh_ttl": False}
    found: dict[str, Any] = {f"get {place}": seen(store.get(*place, **ask)) for place in places}
    for prefix in PREFIXES:
        found[f"list {prefix}"] = seen(store.search(prefix, limit=5, **ask))
    found["all"] = seen(store.search((), limit=ALL, **ask))
    found["page"] = seen(store.search(("a",), limit=2, offset=3, **ask))
    found["filter"] = seen(store.search((), filter={"n": {"$gte": 2}}, limit=4, offset=1, **ask))
    found["filter under"] = seen(store.search(("a",), filter={"t": "tea"}, limit=ALL, **ask))
    for query in ("tea", "rain"):
        found[f"rank {query}"] = seen(store.search((), query=query, limit=6, offset=1, **ask))
        found[f"rank under {query}"] = seen(store.search(("a",), query=query, limit=ALL, **ask))
        found[f"rank filter {query}"] = seen(store.search((), query=query, filter={"n": 1}, limit=3, **ask))
    found["namespaces"] = store.list_namespaces(limit=ALL)
    found["namespaces deep"] = store.list_namespaces(max_depth=2, limit=ALL)
    found["namespaces one"] = store.list_namespaces(max_depth=1, limit=2, offset=1)
    found["namespaces prefix"] = store.list_namespaces(prefix=("a",), max_depth=2, limit=ALL)
    found["namespaces suffix"] = store.list_namespaces(suffix=("b",), limit=ALL)
    return found
