"""Factories by which outside suites open the stores of this project."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import uuid
from functools import cache
from pathlib import Path
from typing import Any

from eventstore import EventStore
from eventstore.cache import EventCache
from tests.cache.handles import ToldCache, node_cache
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


def make_cache() -> ToldCache:
    """An empty cache on an embedded log, on a clock that is told the time."""
    return ToldCache(str(_folder()), {})


def make_kafka_cache() -> ToldCache:
    """An empty cache on a topic of its own."""
    return ToldCache(_topic(), {"views": _folder()})


def make_node_cache() -> tuple[EventCache, dict[str, Any]]:
    """An empty node cache on an embedded log, and the hooks of its suite."""
    return node_cache(str(_folder()), {})


def make_kafka_node_cache() -> tuple[EventCache, dict[str, Any]]:
    """An empty node cache on a topic of its own."""
    return node_cache(_topic(), {"views": _folder()})


def _folder() -> Path:
    """A folder that is gone when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="eventstore-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _topic() -> str:
    return f"kafka://{broker_address()}/cache-{uuid.uuid4().hex[:20]}?partitions=3"


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
