"""Factories by which outside suites open the stores of this project."""

from __future__ import annotations

import atexit
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any

from eventstore import EventStore
from tests.kafka.broker import Broker, BrokerUnavailable, GivenBroker
from tests.kafka.docker_broker import DockerBroker
from tests.kafka.jar_broker import JarBroker

ADDRESS = "EVENTSTORE_TEST_KAFKA"


def make_store(
    tmp_path: Path, index: dict[str, Any] | None = None, ttl: dict[str, Any] | None = None
) -> EventStore:
    """A store on an embedded log under ``tmp_path``; the same path opens the same data."""
    return EventStore.open(tmp_path / "store", index=index, ttl=ttl)


def make_kafka_store(
    tmp_path: Path, index: dict[str, Any] | None = None, ttl: dict[str, Any] | None = None
) -> EventStore:
    """A store on a topic of its own for ``tmp_path``, on a real broker; views are under the path."""
    topic = "shared-" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:20]
    return EventStore.open(
        f"kafka://{broker_address()}/{topic}?partitions=3", views=tmp_path / "views", index=index, ttl=ttl
    )


@cache
def broker_address() -> str:
    """The broker named in the environment, else one started for this process and its children."""
    given = os.environ.get(ADDRESS)
    if given:
        return GivenBroker(given).start().address
    broker = _first_available()
    atexit.register(broker.close)
    os.environ[ADDRESS] = broker.address
    return broker.address


def _first_available() -> Broker:
    missing: list[str] = []
    for kind in (DockerBroker, JarBroker):
        try:
            return kind().start()
        except BrokerUnavailable as unavailable:
            missing.append(str(unavailable))
    raise BrokerUnavailable("; ".join(missing))
