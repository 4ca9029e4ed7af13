"""Ctrl-C at random moments of writes and reads: afterwards the store is as its log says, and goes on."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from eventstore import EventStore
from eventstore.errors import OutcomeUnknown, ViewBehind
from tests.scenarios.kit import TinyEmbedder, index_of, keys_of, listed, ranked, rows

LONGEST = 0.0012
"""Seconds; most writes take less, so that interrupts fall everywhere."""


@contextmanager
def interrupts() -> Iterator[Callable[[Callable[[], object], float], bool]]:
    """Gives a function that calls another, and interrupts it as Ctrl-C would after some time."""
    armed = False

    def strike(_: int, __: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            signal.raise_signal(signal.SIGINT)

    def call(act: Callable[[], object], after: float) -> bool:
        nonlocal armed
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, after)
            act()
            armed = False
        except KeyboardInterrupt:
            return True
        except OutcomeUnknown:
            pass
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False

    before = signal.signal(signal.SIGALRM, strike)
    try:
        yield call
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # files it left to the collector
@pytest.mark.timeout(method="thread")
def test_an_interrupt_in_a_write_leaves_the_store_as_its_log_says(tmp_path: Path) -> None:
    chance = random.Random(3)
    path = tmp_path / "store"
    store = EventStore.open(path, index=index_of(TinyEmbedder()))
    interrupted = 0
    until = time.monotonic() + 5
    with interrupts() as call:
        for number in range(1500):
            value = {"n": number, "t": f"text {number % 5}"}
            key = f"key {number % 7}"
            interrupted += call(lambda: store.put(("a",), key, value), chance.random() * LONGEST)  # noqa: B023
            if number % 10 == 0:
                # The next write must work, whatever was left of the one before.
                store.put(("b",), "after", {"n": number, "t": "text"})
                item = store.get(("b",), "after")
                assert item is not None and item.value["n"] == number
            if time.monotonic() > until:
                break
    assert interrupted > 20
    # What an interrupt left in doubt, the next write decides.
    store.put(("b",), "after", {"n": -1, "t": "text"})
    live = rows(store), listed(store), ranked(store, ["text 1", "text"])
    store.close()
    shutil.rmtree(path / "views")
    with EventStore.open(path, index=index_of(TinyEmbedder())) as rebuilt:
        assert (rows(rebuilt), listed(rebuilt), ranked(rebuilt, ["text 1", "text"])) == live
        versions = [version.version for version in rebuilt.history(("b",), "after")]
        assert versions == list(range(len(versions), 0, -1))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.timeout(method="thread")
def test_an_interrupted_writer_leaves_no_other_waiting(tmp_path: Path) -> None:
    """A batch queued behind the one that Ctrl-C fell into is written, or refused; never forgotten."""
    chance = random.Random(4)
    path = tmp_path / "store"
    with EventStore.open(path) as store:
        acknowledged: list[str] = []
        stop = threading.Event()

        def others(first: int) -> None:
            number = first
            while not stop.is_set():
                try:
                    store.put(("others",), str(number), {"n": number})
                    acknowledged.append(str(number))
                except ViewBehind:
                    acknowledged.append(str(number))  # It is in the log.
                except OutcomeUnknown:
                    pass
                number += 1

        threads = [threading.Thread(target=others, args=(first,), daemon=True) for first in (0, 10**6)]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 3
        with interrupts() as call:
            while time.monotonic() < until:
                call(lambda: store.put(("main",), "k", {}), chance.random() * 2 * LONGEST)
                call(lambda: store.search(("others",), limit=20), chance.random() * LONGEST)
        stop.set()
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive(), "a writer waits for ever"
        # What an interrupt left in doubt, the next write decides.
        store.put(("main",), "last", {})
        assert keys_of(store, "others") >= set(acknowledged)
        live = rows(store)
    with EventStore.open(path, views=tmp_path / "fresh") as rebuilt:
        assert rows(rebuilt) == live


def test_what_a_commit_broke_off_is_read_from_the_view_itself(tmp_path: Path) -> None:
    """Ctrl-C between the view's batch and what the projector keeps of it must not apply events twice."""
    with EventStore.open(tmp_path / "store", index=index_of(TinyEmbedder())) as store:
        store.put(("a",), "k", {"n": 1, "t": "tea"})
        view = store._runtime.view
        commit = view.commit  # type: ignore[attr-defined]

        def interrupted(*arguments: object) -> None:
            commit(*arguments)
            raise KeyboardInterrupt

        view.commit = interrupted  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt):
            store.put(("a",), "k", {"n": 2, "t": "rain"})
        store.put(("a",), "l", {"n": 3, "t": "tea"})
        assert [version.version for version in store.history(("a",), "k")] == [2, 1]
        item = store.get(("a",), "k")
        assert item is not None and item.value["n"] == 2
        assert [hit.key for hit in store.search(("a",), query="rain", limit=1)] == ["k"]
        live = rows(store)
    with EventStore.open(tmp_path / "store", views=tmp_path / "fresh") as rebuilt:
        assert rows(rebuilt) == live
