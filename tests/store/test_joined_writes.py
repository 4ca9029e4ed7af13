"""What tasks put at one moment: one call of the model, one append, and to each caller what is its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from eventstore import EventStore, acting_as
from eventstore.errors import EmbeddingFailed, StoreClosed, VersionConflict
from tests.conftest import OpenStore

DIMS = 2


class Model:
    """Notes every call; fails for what it is told not to like."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.refuses: Callable[[str], bool] = lambda text: False
        self.gate: asyncio.Event | None = None

    async def __call__(self, texts: list[str]) -> list[list[float]]:
        self.calls.append(list(texts))
        if self.gate is not None:
            await self.gate.wait()
        else:
            await asyncio.sleep(0)
        if any(self.refuses(text) for text in texts):
            raise ConnectionError("the model is away")
        return [[float(len(text)), 1.0] for text in texts]


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def store(open_store: OpenStore, model: Model) -> EventStore:
    return open_store(index={"dims": DIMS, "embed": model, "fields": ["t"], "model": "joined"})


async def _put_all(store: EventStore, texts: list[str]) -> list[Any]:
    puts = (store.aput(("a",), f"k{at}", {"t": text}) for at, text in enumerate(texts))
    return await asyncio.gather(*puts, return_exceptions=True)


def test_one_call_for_what_tasks_put_at_one_moment(store: EventStore, model: Model) -> None:
    texts = [f"text {at % 20}" for at in range(30)]
    assert asyncio.run(_put_all(store, texts)) == [None] * 30
    assert [sorted(call) for call in model.calls] == [sorted(set(texts))]
    for at, text in enumerate(texts):
        item = store.get(("a",), f"k{at}")
        assert item is not None and item.value == {"t": text}
    model.calls.clear()

    async def one_after_the_other() -> None:
        for text in ("x", "y"):
            await store.aput(("a",), text, {"t": text})

    asyncio.run(one_after_the_other())
    assert model.calls == [["x"], ["y"]]


def test_each_gets_the_vector_of_its_own_text(store: EventStore) -> None:
    texts = ["t" * size for size in (1, 40, 400)]
    asyncio.run(_put_all(store, texts))

    async def nearest(text: str) -> str:
        return (await store.asearch(("a",), query=text, limit=1))[0].key

    for at, text in enumerate(texts):
        assert asyncio.run(nearest(text)) == f"k{at}"


def test_only_who_brought_the_text_is_told_of_its_failure(store: EventStore, model: Model) -> None:
    model.refuses = lambda text: text == "bad"
    done = asyncio.run(_put_all(store, ["good", "bad", "fine"]))
    assert done[0] is None and done[2] is None
    assert isinstance(done[1], EmbeddingFailed) and isinstance(done[1], ConnectionError)
    assert sorted(map(sorted, model.calls)) == [["bad"], ["bad", "fine", "good"], ["fine"], ["good"]]
    assert {item.key for item in store.search(("a",))} == {"k0", "k2"}


def test_who_stops_waiting_takes_nothing_from_the_others(store: EventStore, model: Model) -> None:
    async def main() -> None:
        model.gate = asyncio.Event()
        tasks = [asyncio.ensure_future(store.aput(("a",), key, {"t": key})) for key in ("one", "two")]
        while not model.calls:
            await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        model.gate.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(done[0], asyncio.CancelledError) and done[1] is None

    asyncio.run(main())
    assert {item.key for item in store.search(("a",))} == {"two"}
    assert model.calls == [["one", "two"]]


def test_very_many_texts_are_more_than_one_call(store: EventStore, model: Model) -> None:
    texts = [f"text {at}" for at in range(600)]
    assert asyncio.run(_put_all(store, texts)) == [None] * 600
    assert [len(call) for call in model.calls] == [256, 256, 88]


def test_event_loops_in_several_threads_do_not_meet(store: EventStore, model: Model) -> None:
    failures: list[BaseException] = []

    def run(thread: int) -> None:
        async def main() -> None:
            for step in range(20):
                await asyncio.gather(
                    *(store.aput(("a",), f"{thread}-{step}-{at}", {"t": f"{thread}"}) for at in range(5))
                )

        try:
            asyncio.run(main())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert failures == []
    assert len(store.search(("a",), limit=1_000)) == 400
    assert len(model.calls) == 80 and all(len(call) == 1 for call in model.calls)


def test_what_needs_no_model_does_not_wait_for_one(store: EventStore, model: Model) -> None:
    async def main() -> None:
        model.gate = asyncio.Event()
        slow = asyncio.ensure_future(store.aput(("a",), "slow", {"t": "text"}))
        await asyncio.gather(store.aput(("a",), "plain", {"n": 1}), store.adelete(("a",), "nothing"))
        assert not slow.done()
        assert await store.aget(("a",), "plain") is not None
        model.gate.set()
        await slow

    asyncio.run(main())
    assert {item.key for item in store.search(("a",))} == {"plain", "slow"}


def test_each_write_is_decided_and_named_by_itself(store: EventStore) -> None:
    async def put(number: int) -> None:
        with acting_as(f"actor {number}"):
            await store.aput(("a",), f"k{number % 50}", {"n": number}, expected_version=0)

    async def main() -> list[Any]:
        return await asyncio.gather(*(put(number) for number in range(100)), return_exceptions=True)

    done = asyncio.run(main())
    assert done[:50] == [None] * 50
    assert all(isinstance(each, VersionConflict) and each.current == 1 for each in done[50:])
    for number in range(50):
        rejected, written = store.history(("a",), f"k{number}")
        assert (written.actor, rejected.actor) == (f"actor {number}", f"actor {number + 50}")


def test_a_closed_store_tells_everyone(store: EventStore, model: Model) -> None:
    async def main() -> list[Any]:
        model.gate = asyncio.Event()
        puts = [asyncio.ensure_future(store.aput(("a",), f"k{at}", {"t": "text"})) for at in range(3)]
        while not model.calls:
            await asyncio.sleep(0)
        store.close()
        model.gate.set()
        return await asyncio.gather(*puts, return_exceptions=True)

    assert [type(each) for each in asyncio.run(main())] == [StoreClosed] * 3


def test_a_loop_that_ends_takes_the_waiting_with_it(store: EventStore, model: Model) -> None:
    async def main() -> asyncio.Task[None]:
        model.gate = asyncio.Event()
        put = asyncio.ensure_future(store.aput(("a",), "k", {"t": "text"}))
        while not model.calls:
            await asyncio.sleep(0)
        return put

    assert asyncio.run(main()).cancelled()
    assert store.get(("a",), "k") is None
    store.put(("a",), "other", {"n": 1})
