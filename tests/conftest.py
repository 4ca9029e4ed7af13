"""Fixtures shared by the whole suite."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from tests.logs import KINDS, Kind, OpenStore, Places

pytest_plugins = ["tests.kafka.plugin", "tests.migration.plugin"]

__all__ = ["OpenStore"]


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    """Commands set up logging for their process; run within a test, they must not do so for the next."""
    loggers = [logging.getLogger(name) for name in ("", "eventstore", "projector")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers = handlers


@pytest.fixture(params=KINDS)
def kind_of_log(request: pytest.FixtureRequest) -> Kind:
    """Each kind in turn; a folder of tests that need files says otherwise in its own conftest."""
    return cast(Kind, request.param)


@pytest.fixture
def places(kind_of_log: Kind, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Places]:
    """Logs of this kind that are the test's own; the stores opened there are closed."""
    broker = request.getfixturevalue("kafka_broker") if kind_of_log == "kafka" else None
    places = Places(kind_of_log, tmp_path, broker)
    yield places
    places.close()


@pytest.fixture
def open_store(places: Places) -> OpenStore:
    """Opens stores on logs of each kind; ``sub`` names one, and all are closed."""
    return places.open
