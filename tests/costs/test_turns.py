"""Long work for a coroutine lets the event loop have the interpreter."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from langgraph.store.base import GetOp, PutOp

import eventstore.turns
from eventstore import EventStore
from eventstore.turns import EVERY_ROWS, EVERY_STEPS, beside, for_loops, give_way, in_turns
from tests.costs.counting import Counted

MEMORIES = 4 * EVERY_ROWS


@pytest.fixture
def given_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The thread of each time that the interpreter was offered; a turn is over as soon as it begins."""
    offered: list[int] = []
    sleep = time.sleep

    def noted(seconds: float) -> None:
        if seconds == eventstore.turns.PAUSE_SECONDS:
            offered.append(threading.get_ident())
        else:
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", noted)
    monkeypatch.setattr(eventstore.turns, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(eventstore.turns, "WRITER_SECONDS", -1.0)
    return offered


def test_nothing_is_lost_on_the_way(given_way: list[int]) -> None:
    async def main() -> list[int]:
        return await beside(lambda: list(in_turns(range(10), 3)))

    assert asyncio.run(main()) == list(range(10))
    assert len(given_way) == 3 and threading.get_ident() not in given_way


def test_what_is_raised_beside_the_loop_is_raised_here_and_ends_the_turns(given_way: list[int]) -> None:
    def fails() -> None:
        raise ValueError("x")

    async def main() -> None:
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            with pytest.raises(ValueError, match="x"):
                await beside(fails)
            await asyncio.to_thread(give_way)  # in the same thread

    asyncio.run(main())
    assert given_way == []


LONG: list[tuple[Callable[[EventStore], Awaitable[object]], int]] = [
    (lambda store: store.asearch(("u",), filter={"n": -1}), MEMORIES // EVERY_ROWS),
    (lambda store: store.asearch(("u",), limit=MEMORIES), MEMORIES // EVERY_ROWS - 1),
    (lambda store: store.alist_namespaces(suffix=("x",)), MEMORIES // EVERY_ROWS),
    (lambda store: store.as_of(MEMORIES).asearch(("u",), limit=5), MEMORIES // EVERY_STEPS),
    (lambda store: store.adiff(0, MEMORIES), 2 * (MEMORIES // EVERY_STEPS)),  # also where nothing stood
    (lambda store: store.abatch([GetOp(("u", "n1"), "k1")] * 200), 2 * (200 // EVERY_STEPS)),
    (
        lambda store: store.abatch([PutOp(("v",), f"k{n}", {"n": n}, False) for n in range(200)]),
        2 * (200 // EVERY_STEPS),
    ),
]


@pytest.mark.parametrize(("act", "least"), LONG)
def test_long_work_gives_way_to_the_loop(
    counted: Counted, given_way: list[int], act: Callable[[EventStore], Awaitable[object]], least: int
) -> None:
    fill(counted)

    async def main() -> None:
        await act(counted.store)

    asyncio.run(main())
    assert len(given_way) >= least
    assert threading.get_ident() not in given_way


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.search(("u",), filter={"n": -1}),
        lambda store: store.batch([GetOp(("u", "n1"), "k1")] * 200),
        lambda store: store.list_namespaces(suffix=("x",)),
    ],
)
def test_where_there_is_no_loop_nobody_is_given_way_to(
    counted: Counted, given_way: list[int], act: Callable[[EventStore], object]
) -> None:
    fill(counted)
    act(counted.store)
    assert given_way == []


def fill(counted: Counted) -> None:
    ops = [PutOp(("u", f"n{number}"), f"k{number}", {"n": number}, False) for number in range(MEMORIES)]
    counted.store.batch(ops)


def test_of_several_at_long_work_one_goes_on_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventstore.turns, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(eventstore.turns, "WAIT_SECONDS", 60.0)
    going_on: set[int] = set()
    most = 0

    def work() -> None:
        nonlocal most
        give_way()  # from here on it is in line
        for _ in range(50):
            going_on.add(threading.get_ident())
            most = max(most, len(going_on))
            time.sleep(0.0001)
            going_on.discard(threading.get_ident())
            give_way()

    async def main() -> None:
        await asyncio.gather(*(beside(work) for _ in range(4)))

    asyncio.run(main())
    assert most == 1


def test_whoever_goes_on_may_wait_for_one_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eventstore.turns, "TURN_SECONDS", -1.0)
    held, both = threading.Lock(), threading.Barrier(2)

    def holds() -> None:
        with held:
            both.wait(10)
            give_way()

    def waits() -> None:
        give_way()
        both.wait(10)
        with held:
            pass

    async def main() -> None:
        await asyncio.wait_for(asyncio.gather(beside(waits), beside(holds)), 10)
        await asyncio.wait_for(beside(give_way), 10)  # and the line is free again

    asyncio.run(main())


def test_a_writer_that_many_wait_for_gives_way_and_does_not_stand_in_line(given_way: list[int]) -> None:
    with for_loops():
        give_way()
        done: list[bool] = []

        def commits() -> None:
            with for_loops(in_line=False):
                give_way()
                done.append(True)

        writer = threading.Thread(target=commits)
        writer.start()
        writer.join(10)
    assert done == [True] and len(given_way) == 2
