"""Listings and prunes do what they are asked for, and no more; nobody waits for them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore.checkpoint import EventSaver
from projector.checkpoints import overlay, tables
from projector.rocks import scan
from tests.checkpoint.kit import (
    config,
    ids,
    put,
)


def test_a_paused_listing_holds_nobody_up(tmp_path: Path) -> None:
    with EventSaver.open(tmp_path / "s") as saver:
        for number in range(200):
            put(saver, "t", f"{number:03d}", {"n": number})
        listing = saver.list(config("t"))
        assert next(listing).checkpoint["id"] == "199"
        saver.prune(["t"])
        put(saver, "t", "200", {"n": 200})
        assert [each.checkpoint["id"] for each in listing] == []
        assert ids(saver, "t") == ["200", "199"]


@pytest.mark.parametrize("given", [config("t"), {"configurable": {"thread_id": "t"}}, None])
def test_the_newest_of_many_is_found_without_a_look_at_the_others(
    tmp_path: Path, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EventSaver.open(tmp_path / "s") as saver:
        for number in range(150):
            put(saver, "t", f"{number:03d}", {"n": number}, namespace="inner" if number % 3 else "")
        looked: list[bytes] = []
        for name in ("where", "where_by_id"):
            monkeypatch.setattr(tables, name, counted(getattr(tables, name), looked))
        listed = [each.checkpoint["id"] for each in saver.list(given, limit=3)]
        assert listed == (["147", "144", "141"] if given == config("t") else ["149", "148", "147"])
        assert len(looked) < 12


def test_a_hidden_checkpoint_is_not_the_newest(tmp_path: Path) -> None:
    """Removed by its run, though one that another clock gave a lower id is rebuilt from its writes."""
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"d": ["seed"]})
        put(saver, "t", "9", {"n": 9}, parent="1", metadata={"run_id": "r"})
        saver.put_writes(config("t", "", "9"), [("d", "nine")], "task")
        delta = {"counters_since_delta_snapshot": {"d": [1, 1]}}
        put(saver, "t", "5", {"n": 5}, parent="9", metadata=delta)
        saver.delete_for_runs(["r"])
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["id"] == "5"
        assert saver.get_tuple(config("t", "", "9")) is None
        everywhere: Any = {"configurable": {"thread_id": "t"}}
        for given in (config("t"), everywhere, None):
            assert [each.checkpoint["id"] for each in saver.list(given)] == ["5", "1"]
            assert [each.checkpoint["id"] for each in saver.list(given, limit=1)] == ["5"]
            below = saver.list(given, before=config("t", "", "9"))
            assert [each.checkpoint["id"] for each in below] == ["5", "1"]
        history = saver.get_delta_channel_history(config=config("t"), channels=["d"])
        assert history == {"d": {"writes": [("task", "d", "nine")], "seed": ["seed"]}}


def counted(act: Callable[..., Any], seen: list[bytes]) -> Callable[..., Any]:
    def acted(key: bytes, *more: Any) -> Any:
        seen.append(key)
        return act(key, *more)

    return acted


def test_a_prune_reads_no_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may be larger than memory; which parts go is decided by their names."""
    with EventSaver.open(tmp_path / "s") as saver:
        for number in range(20):
            put(saver, "t", f"{number:03d}", {"x": random.Random(number).randbytes(300_000)})
        fetched: list[int] = []

        def scanned(source: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
            for key, value in scan(source, prefix):
                fetched.append(len(value))
                yield key, value

        monkeypatch.setattr(overlay, "scan", scanned)
        saver.prune(["t"])
        assert ids(saver, "t") == ["019"]
        saver.delete_thread("t")
        assert 0 < sum(fetched) < 100_000
