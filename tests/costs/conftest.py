"""Work is counted, so that what became more work is seen without a clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eventstore import EventStore
from tests.costs.counting import Counted, Work, counted_work

DIMS = 8


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Counts from now on: what is synced, embedded, ranked, and written to segments."""
    return counted_work(monkeypatch)


@pytest.fixture
def counted(work: Work, tmp_path: Path) -> Iterator[Counted]:
    """A store in a folder, all whose work is counted."""
    index = {"dims": DIMS, "embed": work.embed, "fields": ["text"]}
    with EventStore.open(tmp_path / "store", index=index, config={"follow_interval": 3600.0}) as store:
        yield Counted(store, work)
