"""What may take long is never done on the event loop's own thread."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import GetOp, PutOp

from eventstore import EventStore
from eventstore.log.base import Log
from projector.runtime import runtime_of
from tests.costs.counting import Counted, Work

MEMORIES = 1_000
SLOW = ("model calls", "log appends", "syncs", "bytes appended", "view commits", "rows scanned")


@pytest.fixture
def filled(counted: Counted) -> Counted:
    numbers = range(MEMORIES)
    counted.store.batch([PutOp(("u", f"m{n % 10}"), f"k{n}", {"text": f"t{n}", "n": n}) for n in numbers])
    return counted


def on_the_loop(counted: Counted, act: Callable[[], Awaitable[object]]) -> tuple[Counter[str], Work]:
    """What one call did on the loop's thread, and what it did at all."""
    counted.work.clear()

    async def main() -> None:
        await act()

    asyncio.run(main())
    return Counter(counted.work.by_thread.get(threading.get_ident(), {})), counted.work


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("steps", lambda store: store.asearch(("u",), filter={"n": 7})),
        ("steps", lambda store: store.asearch((), limit=1_000)),
        ("steps", lambda store: store.asearch((), limit=10, offset=500)),
        ("steps", lambda store: store.alist_namespaces(suffix=("m3",))),
        ("rows scanned", lambda store: store.asearch(("u",), query="q")),
        ("steps", lambda store: store.asearch(("u",), query="q", filter={"n": 7})),
        ("model calls", lambda store: store.aput(("u", "m"), "new", {"text": "x"})),
        ("log appends", lambda store: store.aput(("u", "m"), "new", {"text": "x"})),
        ("syncs", lambda store: store.adelete(("u", "m1"), "k1")),
        ("view commits", lambda store: store.aput(("u", "m"), "new", {"n": 1}, index=False)),
        ("reads", lambda store: store.abatch([GetOp(("u", "m1"), f"k{each}") for each in range(100)])),
        ("syncs", lambda store: store.arestore(("u", "m1"), "k1", 1)),
        ("steps", lambda store: store.adiff(0, MEMORIES)),
    ],
)
def test_long_work_runs_beside_the_loop(
    filled: Counted, name: str, act: Callable[[EventStore], Awaitable[object]]
) -> None:
    mine, all_of_it = on_the_loop(filled, lambda: act(filled.store))
    assert all_of_it[name] > 0, "the call does not do what this test is about"
    assert not mine.keys() & {*SLOW, "steps"}
    assert mine["reads"] == 0


@pytest.mark.parametrize(
    ("act", "most"),
    [
        (lambda store: store.aget(("u", "m1"), "k1"), {"reads": 1}),
        (lambda store: store.asearch(("u",), limit=10), {"seeks": 1, "steps": 9, "reads": 10}),
        (lambda store: store.asearch(("u",), limit=100), {"seeks": 1, "steps": 99, "reads": 100}),
    ],
)
def test_what_the_loop_does_itself_is_little(
    filled: Counted, act: Callable[[EventStore], Awaitable[object]], most: dict[str, int]
) -> None:
    mine, _ = on_the_loop(filled, lambda: act(filled.store))
    assert mine == most


def test_a_large_batch_is_checked_and_encoded_beside_the_loop(
    filled: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, int] = {}

    def noted(name: str) -> None:
        real = getattr(EventStore, name)

        def call(self: EventStore, *given: Any) -> Any:
            threads[name] = threading.get_ident()
            return real(self, *given)

        monkeypatch.setattr(EventStore, name, call)

    noted("_plan")
    noted("_prepare")
    ops = [PutOp(("u", "m"), f"new{number}", {"n": number}, False) for number in range(1_000)]
    on_the_loop(filled, lambda: filled.store.abatch(ops))
    assert threading.get_ident() not in threads.values() and len(threads) == 2
    on_the_loop(filled, lambda: filled.store.abatch(ops[:3]))
    assert threads["_plan"] == threading.get_ident()
    assert filled.store.get(("u", "m"), "new999") is not None


def test_what_another_process_wrote_is_taken_in_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two stores of one process share everything, so the other one here has views of its own."""
    config = {"follow_interval": 3600.0}
    with (
        EventStore.open(tmp_path / "log", config=config) as reader,
        EventStore.open(tmp_path / "log", views=tmp_path / "others", config=config) as writer,
    ):
        runtime = runtime_of(reader)
        applied: list[int] = []
        apply = runtime._projector._commit

        def noted(*given: Any) -> None:
            applied.append(threading.get_ident())
            apply(*given)

        monkeypatch.setattr(runtime._projector, "_commit", noted)
        log: Log = runtime.log
        for number, ask in enumerate(
            (
                lambda: reader.aget(("u",), "k0"),
                lambda: reader.asearch(("u",), limit=5),
                lambda: reader.aput(("u",), "mine", {"n": 1}),
            )
        ):
            writer.batch([PutOp(("u",), f"k{each}", {"n": number}) for each in range(50)])
            assert log.ahead_of(runtime.applied) or number == 2
            applied.clear()
            asyncio.run(_await(ask))
            assert applied and threading.get_ident() not in applied
        found = reader.get(("u",), "k0")
        assert found is not None and found.value == {"n": 2}


async def _await(ask: Callable[[], Awaitable[object]]) -> None:
    await ask()
