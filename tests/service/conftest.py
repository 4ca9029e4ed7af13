"""Fixtures of the projector as a service: logs of both kinds, projectors, attached stores."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore import EventStore
from tests.kafka.broker import Broker
from tests.service.kit import Place, Projector

Run = Callable[..., Projector]
Open = Callable[..., EventStore]


@pytest.fixture
def embedded(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "store"), tmp_path / "views")


@pytest.fixture(params=["embedded", "kafka"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "embedded":
        return Place(str(tmp_path / "store"), tmp_path / "views")
    broker: Broker = request.getfixturevalue("kafka_broker")
    topic = f"service-{uuid.uuid4().hex[:12]}"
    return Place(f"kafka://{broker.address}/{topic}?partitions=3", tmp_path / "views")


@pytest.fixture
def run() -> Iterator[Run]:
    """Starts a ``projector run`` on a place; what still runs at the end is killed."""
    running: list[Projector] = []

    def start(place: Place, *options: str, **more: Any) -> Projector:
        running.append(Projector(place, *options, **more))
        return running[-1]

    yield start
    for each in running:
        each.close()


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens stores on a place: attached, or with views of their own where ``views`` says."""
    stores: list[EventStore] = []

    def open_(place: Place, views: Path | None = None, **more: Any) -> EventStore:
        config = {"attach": views is None, "wait_timeout": 10.0, **more.pop("config", {})}
        store = EventStore.open(place.log, views=views or place.views, config=config, **more)
        stores.append(store)
        return store

    yield open_
    for store in stores:
        store.close()
