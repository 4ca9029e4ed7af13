"""Factories by which outside suites open the stores of this project."""

from __future__ import annotations

import atexit
import hashlib
import importlib
import os
import shutil
import sys
import tempfile
import uuid
from functools import cache
from pathlib import Path
from typing import Any

# An outside suite may have only this folder on its path.
sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from eventstore import EventStore  # noqa: E402

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


def make_cache() -> Any:
    """An empty cache on an embedded log, on a clock that is told the time."""
    return _handles().ToldCache(str(_folder()), {})


def make_kafka_cache() -> Any:
    """An empty cache on a topic of its own."""
    return _handles().ToldCache(_topic(), {"views": _folder()})


def make_node_cache() -> Any:
    """An empty node cache on an embedded log, and the hooks of its suite."""
    return _handles().node_cache(str(_folder()), {})


def make_kafka_node_cache() -> Any:
    """An empty node cache on a topic of its own."""
    return _handles().node_cache(_topic(), {"views": _folder()})


def _folder() -> Path:
    """A folder that is gone when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="eventstore-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _topic() -> str:
    return f"kafka://{broker_address()}/cache-{uuid.uuid4().hex[:20]}?partitions=3"


def _handles() -> Any:
    # Loaded when asked for: a store needs neither the cache's handles nor a broker.
    return importlib.import_module("tests.cache.handles")


@cache
def broker_address() -> str:
    """The broker named in the environment, else one started for this process and its children."""
    brokers = importlib.import_module("tests.kafka.broker")
    given = os.environ.get(ADDRESS)
    if given:
        return str(brokers.GivenBroker(given).start().address)
    broker = _first_available(brokers.BrokerUnavailable)
    atexit.register(broker.close)
    os.environ[ADDRESS] = broker.address
    return str(broker.address)


def _first_available(unavailable: type[Exception]) -> Any:
    missing: list[str] = []
    for module, kind in (("docker_broker", "DockerBroker"), ("jar_broker", "JarBroker")):
        try:
            return getattr(importlib.import_module(f"tests.kafka.{module}"), kind)().start()
        except (unavailable, ModuleNotFoundError) as error:
            missing.append(str(error))
    raise unavailable("; ".join(missing))
