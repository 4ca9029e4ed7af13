"""Fixtures of the tests of the store on Kafka."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.kafka.kit import NewPlace, Place, our_threads, within


@pytest.fixture
def new_place(tmp_path: Path) -> Iterator[NewPlace]:
    """Makes topics, and stores on them that are closed at the end; none may leave a thread behind."""
    before = our_threads()
    made: list[Place] = []

    def new(broker: Broker, **options: object) -> Place:
        place = Place(broker, tmp_path, **options)
        made.append(place)
        return place

    yield new
    for place in made:
        place.close()
    gc.collect()
    assert within(4, lambda: our_threads() <= before), our_threads() - before


@pytest.fixture
def place(kafka_broker: Broker, new_place: NewPlace) -> Place:
    """A topic of three partitions on the broker that all share."""
    return new_place(kafka_broker, partitions=3)
