"""Caches under the test's folder, closed at its end."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventstore import EventStore
from eventstore.cache import Cache
from tests.cache.handles import Clock, told_cache

OpenCache = Callable[..., Cache]


class Place(NamedTuple):
    """A store that several processes may open."""

    conn: str
    views: Path


class Counting:
    """A loader that counts its calls and returns what it is told, or fails with it, after so many seconds."""

    def __init__(self, value: Any = None, pause: float = 0.0) -> None:
        self.value = value
        self.pause = pause
        self.calls = 0

    async def __call__(self) -> Any:
        self.calls += 1
        await asyncio.sleep(self.pause)
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    with EventStore.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def cache(store: EventStore) -> Cache:
    return Cache.from_store(store)


@pytest.fixture
def open_told(store: EventStore, clock: Clock) -> Iterator[OpenCache]:
    """Caches on the told clock, which share nothing but the log."""
    opened: list[Cache] = []

    def open_(**options: Any) -> Cache:
        opened.append(told_cache(store, clock, **options))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.fixture(params=["embedded", "kafka"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A store on each kind of log."""
    if request.param == "embedded":
        return Place(str(tmp_path / "store"), tmp_path / "views")
    broker = request.getfixturevalue("kafka_broker")
    return Place(f"kafka://{broker.address}/c-{uuid.uuid4().hex[:12]}?partitions=3", tmp_path / "views")
