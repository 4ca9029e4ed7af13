"""Closed savers, forked children, stores that savers are beside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore import EventStore
from eventstore.checkpoint import EventSaver
from eventstore.errors import (
    StoreClosed,
    StoreForked,
)
from tests.checkpoint.kit import (
    checkpoint,
    config,
    ids,
    put,
    values,
)
from tests.scenarios.kit import in_child

CALLS: dict[str, Callable[[EventSaver], object]] = {
    "get_tuple": lambda saver: saver.get_tuple(config("t")),
    "get_tuple by id": lambda saver: saver.get_tuple(config("t", "", "1")),
    "list": lambda saver: list(saver.list(config("t"))),
    "put": lambda saver: put(saver, "t", "2", {"n": 2}),
    "put_writes": lambda saver: saver.put_writes(config("t", "", "1"), [("a", 1)], "task"),
    "delete_thread": lambda saver: saver.delete_thread("t"),
    "delete_for_runs": lambda saver: saver.delete_for_runs(["r"]),
    "copy_thread": lambda saver: saver.copy_thread("t", "u"),
    "prune": lambda saver: saver.prune(["t"]),
    "history": lambda saver: saver.get_delta_channel_history(config=config("t"), channels=["n"]),
    "setup": lambda saver: saver.setup(),
    "aget_tuple": lambda saver: asyncio.run(saver.aget_tuple(config("t"))),
    "aput_writes": lambda saver: asyncio.run(saver.aput_writes(config("t", "", "1"), [("a", 1)], "task")),
}


@pytest.mark.parametrize("end", ["saver.close()", "store.close()", "both"])
def test_a_closed_saver_says_so(tmp_path: Path, end: str) -> None:
    store = EventStore.open(tmp_path / "s")
    saver = EventSaver.from_store(store)
    put(saver, "t", "1", {"n": 1})
    listing = saver.list(config("t"))
    if end != "store.close()":
        saver.close()
        saver.close()
    if end != "saver.close()":
        store.close()
    for call in CALLS.values():
        with pytest.raises(StoreClosed):
            call(saver)
    with pytest.raises(StoreClosed):
        next(listing)
    if end == "saver.close()":
        again = EventSaver.from_store(store)
        assert values(again, "t") == {"n": 1}
        store.put(("a",), "k", {"n": 1})
    store.close()
    saver.close()


def test_savers_on_one_place_end_by_themselves(tmp_path: Path) -> None:
    """The store goes on when its saver is closed, a saver of its own when the store is, and so on."""
    store = EventStore.open(tmp_path / "s")
    beside, own = EventSaver.from_store(store), EventSaver.open(tmp_path / "s")
    put(beside, "t", "1", {"n": 1})
    assert values(own, "t") == {"n": 1}
    beside.close()
    put(own, "t", "2", {"n": 2})
    store.close()
    assert values(own, "t") == {"n": 2}
    own.close()
    with EventSaver.open(tmp_path / "s") as saver:
        assert ids(saver, "t") == ["2", "1"]


def test_a_forked_child_is_told(tmp_path: Path) -> None:
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"n": 1})

        def child() -> None:
            for name, call in CALLS.items():
                if not name.startswith("a"):
                    with pytest.raises(StoreForked):
                        call(saver)
            saver.close()

        assert in_child(child) == 0
        put(saver, "t", "2", {"n": 2})
        assert ids(saver, "t") == ["2", "1"]


def test_beside_a_store_that_is_attached(tmp_path: Path) -> None:
    """Memories are another process's view there; checkpoints have one of this process's own."""
    with EventStore.open(tmp_path / "s") as keeper:
        with EventStore.open(tmp_path / "s", config={"attach": True}) as store:
            saver = EventSaver.from_store(store)
            store.put(("a",), "k", {"n": 1})
            version = saver.get_next_version(None, None)
            store.put(("a",), "k", {"n": 2})
            saver.put(config("t"), checkpoint("1", {"n": 1}, {"n": version}), {}, {"n": version})
            assert values(saver, "t") == {"n": 1}
            past = store.as_of(config("t")).get(("a",), "k")
            assert past is not None
            assert past.value == {"n": 1}
            other = EventSaver.from_store(keeper)
            assert values(other, "t") == {"n": 1}
            put(other, "t", "2", {"n": 2}, parent="1")
            assert values(saver, "t") == {"n": 2}
        with pytest.raises(StoreClosed):
            saver.get_tuple(config("t"))
