"""S02, S39, S46: how a store ends, and programs that end without closing theirs."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from pathlib import Path

import pytest

from eventstore import EventStore
from eventstore.errors import StoreClosed
from tests.conftest import OpenStore
from tests.scenarios.kit import (
    ALL,
    TinyEmbedder,
    index_of,
    keys_of,
    log_end,
    log_keys,
    python,
    run_async,
    runtime_of,
    together,
    view_number,
)

SCRIPT = """
import sys, threading, time
from eventstore import EventStore
store = EventStore.open(sys.argv[1])
written = []
def write(first):
    number = first
    while True:
        store.put(("thread",), str(number), {"n": number})
        written.append(number)
        number += 1
if sys.argv[3] == "threads":
    for first in (0, 1_000_000):
        threading.Thread(target=write, args=(first,), daemon=True).start()
for number in range(200):
    store.put(("main",), str(number), {"n": number})
print(len(written), flush=True)
if sys.argv[2] == "exit":
    sys.exit(3)
if sys.argv[2] == "exception":
    raise RuntimeError("unhandled")
"""


@pytest.mark.parametrize("threads", ["threads", "alone"])
@pytest.mark.parametrize(("ending", "code"), [("falls off", 0), ("exit", 3), ("exception", 1)])
def test_a_program_that_never_closes_its_store_loses_nothing(
    tmp_path: Path, ending: str, code: int, threads: str
) -> None:
    path = tmp_path / "store"
    started = time.monotonic()
    ended = python(SCRIPT, path, ending, threads, timeout=30)
    assert time.monotonic() - started < 20
    assert ended.returncode == code, ended.stderr
    assert ("unhandled" in ended.stderr) == (ending == "exception")
    assert "Fatal" not in ended.stderr
    with EventStore.open(path, views=tmp_path / "other") as store:
        assert len(keys_of(store, "main")) == 200
        assert len(keys_of(store, "thread")) >= int(ended.stdout)


def test_closing_twice_and_using_a_closed_store(open_store: OpenStore) -> None:
    store = open_store(index=index_of(TinyEmbedder()), ttl={"default_ttl": 5})
    store.put(("a",), "k", {"t": "tea"})
    store.close()
    store.close()
    calls = [
        lambda: store.get(("a",), "k"),
        lambda: store.put(("a",), "k", {"t": "rain"}),
        lambda: store.put(("a",), "k", {"t": "rain"}, expected_version=1),
        lambda: store.delete(("a",), "k"),
        lambda: store.search(("a",)),
        lambda: store.search(("a",), query="tea"),
        lambda: store.list_namespaces(),
        lambda: store.history(("a",), "k"),
        lambda: store.sweep_ttl(),
        lambda: store.start_ttl_sweeper(),
        lambda: store.setup(),
        lambda: store.batch([]),
        lambda: store.__enter__(),
        lambda: run_async(store.aget(("a",), "k")),
        lambda: run_async(store.aput(("a",), "k", {"t": "rain"})),
        lambda: run_async(store.asearch(("a",), query="tea")),
    ]
    for call in calls:
        with pytest.raises(StoreClosed):
            call()


def test_stores_on_one_place_share_a_runtime_until_the_last_one_closes(open_store: OpenStore) -> None:
    first, second = open_store(), open_store()
    assert runtime_of(first) is runtime_of(second)
    first.put(("a",), "k", {"n": 1}, ttl=0.001)
    time.sleep(0.01)
    first.get(("a",), "k")  # so that closing has a refresh to write, and takes its time
    together(*[first.close] * 8)
    item = second.get(("a",), "k")
    assert item is not None and item.value == {"n": 1}
    second.put(("a",), "l", {"n": 2})
    with pytest.raises(StoreClosed):
        first.get(("a",), "k")
    second.close()
    third = open_store()
    assert keys_of(third) == {"k", "l"}
    assert view_number(third) == "0"


def test_closing_with_searches_and_writes_in_flight(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(index=index_of(TinyEmbedder()))
    for number in range(300):
        store.put(("a", str(number % 7)), str(number), {"n": number, "t": f"text {number % 50}"})
    acknowledged: list[str] = []
    stopped: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                store.search((), query="text 7", filter={"n": {"$gte": 5}}, limit=5)
                store.list_namespaces(suffix=("3",))
                store.search(("a",), limit=ALL)
                store.history(("a", "1"), "1")
        except BaseException as error:
            stopped.append(error)

    def write(first: int) -> None:
        try:
            for number in range(first, first + 10**6):
                store.put(("w",), str(number), {"n": number, "t": "tea"})
                acknowledged.append(str(number))
        except BaseException as error:
            stopped.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    threads += [threading.Thread(target=write, args=(first,)) for first in (0, 10**6)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    started = time.monotonic()
    store.close()
    assert time.monotonic() - started < 8
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    for error in stopped:
        if type(error) is not StoreClosed:
            raise error
    again = open_store()
    assert view_number(again) == "0", "the lease was not given up"
    assert keys_of(again, "w") >= set(acknowledged)


def test_closing_while_fifty_puts_run(open_store: OpenStore, tmp_path: Path) -> None:
    """S46: each call ends or raises, nothing is left pending, and what was acknowledged is there."""
    store = open_store(index=index_of(TinyEmbedder()))

    async def main() -> list[BaseException | str]:
        async def put(number: int) -> str:
            await store.aput(("a",), str(number), {"n": number, "t": "tea"})
            return str(number)

        tasks = [asyncio.create_task(put(number)) for number in range(50)]
        await asyncio.sleep(0.001)
        await asyncio.to_thread(store.close)
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ended = run_async(main())
        gc.collect()
    acknowledged = {each for each in ended if isinstance(each, str)}
    assert all(isinstance(each, str | StoreClosed) for each in ended)
    again = open_store()
    assert keys_of(again) >= acknowledged
    assert log_end(tmp_path / "store") == len(keys_of(again))


def test_a_loop_that_ends_with_puts_in_flight_leaves_the_store_usable(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()

    async def main() -> None:
        for number in range(20):
            _tasks.append(asyncio.create_task(store.aput(("a",), str(number), {"n": number})))
        await asyncio.sleep(0)

    _tasks: list[asyncio.Task[None]] = []
    run_async(main())
    assert all(task.done() for task in _tasks)
    store.put(("a",), "last", {"n": 99})
    assert "last" in keys_of(store)
    assert len(log_keys(tmp_path / "store")) == len(keys_of(store))


def test_refreshes_are_in_the_log_when_the_store_is_closed(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    began = time.monotonic()
    store.put(("a",), "k", {"n": 1}, ttl=0.05)
    time.sleep(1.5)
    store.get(("a",), "k")
    assert log_end(tmp_path / "store") == 1
    store.close()
    assert log_end(tmp_path / "store") == 2
    again = open_store(views=tmp_path / "other")
    time.sleep(max(0.0, began + 3.2 - time.monotonic()))
    assert again.sweep_ttl() == 0
    assert keys_of(again) == {"k"}


def test_a_temporary_store_leaves_nothing_behind() -> None:
    store = EventStore.open("memory:")
    folder = Path(runtime_of(store).log.location).parent
    store.put(("a",), "k", {"n": 1})
    assert folder.exists()
    store.close()
    assert not folder.exists()


def test_an_async_with_block_really_closes(tmp_path: Path) -> None:
    async def main() -> EventStore:
        async with EventStore.from_conn_string(tmp_path / "store") as store:
            await store.aput(("a",), "k", {"n": 1})
        return store

    store = run_async(main())
    with pytest.raises(StoreClosed):
        store.get(("a",), "k")
