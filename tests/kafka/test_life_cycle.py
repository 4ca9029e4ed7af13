"""Opening, closing and forking: nothing is left behind, nothing hangs."""

from __future__ import annotations

import pytest
from langgraph.store.base import PutOp

from eventstore.errors import StoreClosed, StoreForked
from tests.kafka.broker import Broker
from tests.kafka.kit import NewPlace, Place, our_threads, took, url, within
from tests.scenarios.kit import in_child, python


def test_closing_leaves_no_thread(place: Place) -> None:
    before = our_threads()
    for _ in range(3):
        store = place.open()
        store.put(("u",), "k", {"n": 1})
        store.batch([PutOp(("u",), "a", {"n": 1}), PutOp(("v",), "b", {"n": 1})])
        assert our_threads() > before
        with took(0, 4):
            store.close()
        store.close()
        assert within(2, lambda: our_threads() <= before), our_threads() - before
    with pytest.raises(StoreClosed):
        store.put(("u",), "k", {"n": 1})


def test_stores_of_one_place_share_its_connections(place: Place) -> None:
    one = place.open()
    assert within(5, lambda: "kafka-io-eventstore-reader" in our_threads())
    threads = our_threads()
    two = place.open()
    assert our_threads() == threads
    one.close()
    two.put(("u",), "k", {"n": 1})


def test_a_forked_child_is_told_at_once(place: Place) -> None:
    store = place.open()
    store.put(("u",), "k", {"n": 1})
    store.batch([PutOp(("u",), "a", {"n": 1}), PutOp(("v",), "b", {"n": 1})])

    def use() -> None:
        for call in (
            lambda: store.get(("u",), "k"),
            lambda: store.put(("u",), "k", {"n": 2}),
            lambda: store.search(("u",)),
            store.status,
        ):
            with took(0, 1), pytest.raises(StoreForked):
                call()
        with took(0, 2):
            store.close()

    assert in_child(use, timeout=20) == 0
    store.put(("u",), "k", {"n": 3})
    assert store.get(("u",), "k").value == {"n": 3}


SCRIPT = """
import os, sys, warnings
warnings.filterwarnings("ignore", "(read|open)_text is deprecated")
from eventstore import EventStore
store = EventStore.open(sys.argv[1], views=sys.argv[2])
for n in range(20):
    store.put(("u",), f"k{n}", {"n": n})
if sys.argv[3] == "fork":
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        store.put(("u",), "after", {"n": 1})
elif sys.argv[3] == "raise":
    raise SystemExit(0)
"""


@pytest.mark.parametrize("end", ["fall", "raise", "fork"])
def test_a_program_that_never_closes_ends(kafka_broker: Broker, new_place: NewPlace, end: str) -> None:
    """Scenario S02, and a forked child that ends as any program does."""
    place = new_place(kafka_broker)
    with took(0, 20):
        done = python(SCRIPT, url(kafka_broker, place.topic), place.folder / "script", end)
    assert done.returncode == 0, done.stderr
    assert len(place.open().search((), limit=100)) == (21 if end == "fork" else 20)
