"""Logs under the test's folder, closed at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore.log import EmbeddedLog

OpenLog = Callable[..., EmbeddedLog]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def open_log(directory: Path) -> Iterator[OpenLog]:
    opened: list[EmbeddedLog] = []

    def open_(**options: Any) -> EmbeddedLog:
        log = EmbeddedLog.open(directory, **options)
        opened.append(log)
        return log

    yield open_
    for log in opened:
        log.close()
