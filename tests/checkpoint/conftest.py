"""Fixtures of the tests of the checkpointer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from eventstore.checkpoint import EventSaver, enveloping
from tests.checkpoint.kit import SMALL


@pytest.fixture
def open_saver(tmp_path: Path) -> Iterator[Callable[..., EventSaver]]:
    """Savers on one log; each name has a view of its own, as processes have."""
    with ExitStack() as opened:

        def new(name: str = "views", **options: Any) -> EventSaver:
            return opened.enter_context(EventSaver.open(tmp_path / "s", views=tmp_path / name, **options))

        yield new


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a record took very little, so that nearly every event is a large one."""
    monkeypatch.setattr(enveloping, "RECORD_BYTES", SMALL)
