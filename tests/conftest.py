"""Fixtures shared by the whole suite."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore import EventStore

pytest_plugins = ["tests.kafka.plugin"]

OpenStore = Callable[..., EventStore]


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    """Commands set up logging for their process; run within a test, they must not do so for the next."""
    loggers = [logging.getLogger(name) for name in ("", "eventstore", "projector")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers = handlers


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[OpenStore]:
    """Opens stores on embedded logs under the test's folder; ``sub`` names one, and all are closed."""
    opened: list[EventStore] = []

    def open_(
        index: dict[str, Any] | None = None,
        ttl: dict[str, Any] | None = None,
        sub: str = "store",
        **options: Any,
    ) -> EventStore:
        store = EventStore.open(tmp_path / sub, index=index, ttl=ttl, **options)
        opened.append(store)
        return store

    yield open_
    for store in opened:
        store.close()
