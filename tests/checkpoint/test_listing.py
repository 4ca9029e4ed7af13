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
