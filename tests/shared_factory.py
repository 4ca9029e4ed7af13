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
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

# An outside suite may have only this folder on its path.
sys.path[:0] = [str(Path(__file__).resolve().parent.parent)]

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer  # noqa: E402

from eventstore import EventStore  # noqa: E402
from eventstore.checkpoint import EventSaver  # noqa: E402

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


@contextmanager
def make_saver(location: str) -> Iterator[EventSaver]:
    """A saver on an embedded log; the same place opens the same data.

    With LangGraph's own serializer, since the suites ask for classes of theirs.
    """
    with EventSaver.open(Path(location) / "store", serde=JsonPlusSerializer()) as saver:
        yield saver


@contextmanager
def make_kafka_saver(location: str) -> Iterator[EventSaver]:
    """A saver on a topic of its own for a place, on a real broker; views are under the place."""
    topic = "saver-" + hashlib.sha256(location.encode()).hexdigest()[:20]
    address = f"kafka://{broker_address()}/{topic}?partitions=3"
    with EventSaver.open(address, views=Path(location) / "views", serde=JsonPlusSerializer()) as saver:
        yield saver


@asynccontextmanager
async def make_async_saver(location: str) -> AsyncIterator[EventSaver]:
    """The same as :func:`make_saver`, for its async face."""
    with make_saver(location) as saver:
        yield saver


@asynccontextmanager
async def make_async_kafka_saver(location: str) -> AsyncIterator[EventSaver]:
    """The same as :func:`make_kafka_saver`, for its async face."""
    with make_kafka_saver(location) as saver:
        yield saver


for _factory in (make_saver, make_async_saver, make_kafka_saver, make_async_kafka_saver):
    vars(_factory)["traits"] = ("durable", "multi_process")


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
