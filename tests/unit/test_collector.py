"""The garbage collector while many events are folded: held off, and on again whatever happens."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import PutOp

from eventstore import EventStore
from projector import runner
from projector.collector import HeldCollector
from projector.runner import Projector


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


def test_it_is_on_again_after_an_error() -> None:
    with pytest.raises(KeyError), HeldCollector() as collector:
        collector.hold()
        assert not gc.isenabled()
        collector.let_collect()
        raise KeyError
    assert gc.isenabled()


def test_one_that_is_off_stays_off() -> None:
    gc.disable()
    with HeldCollector() as collector:
        collector.hold()
        collector.let_collect()
    assert not gc.isenabled()


@pytest.mark.parametrize("events", [50, 2_500])
def test_catching_up_holds_it_off_for_many_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: int
) -> None:
    with EventStore.open(tmp_path / "s") as store:
        ops = [PutOp(("a",), f"k{number}", {"n": number}) for number in range(events)]
        for first in range(0, events, 50):
            store.batch(ops[first : first + 50])
    seen: list[bool] = []
    commit = Projector._commit

    def watched(self: Projector, *given: Any) -> None:
        seen.append(gc.isenabled())
        commit(self, *given)

    monkeypatch.setattr(Projector, "_commit", watched)
    with EventStore.open(tmp_path / "s", views=tmp_path / "other") as again:
        item = again.get(("a",), "k7")
        assert item is not None
    assert seen and all(on is (events < runner.MANY_RECORDS) for on in seen)
    assert gc.isenabled()
