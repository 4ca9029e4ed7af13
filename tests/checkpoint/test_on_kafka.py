"""The checkpointer on a topic: other processes, a broker that goes away, states of any size."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from eventstore import EventStore
from eventstore.checkpoint import EventSaver
from eventstore.errors import EventStoreError, LogUnavailable, OutcomeUnknown, ViewBehind
from tests.checkpoint.kit import config, ids, put, rows, uncollected, values
from tests.checkpoint.test_concurrency import equal_views, processes
from tests.kafka.broker import Broker
from tests.kafka.kit import new_name, took, url, within
from tests.kafka.plugin import NewBroker

PUT_TIMEOUT = 1.0
SLACK = 3.0
"""On a busy machine."""


class Savers:
    """Savers on one topic, each name with a view of its own."""

    def __init__(self, broker: Broker, folder: Path, undo: ExitStack) -> None:
        self.url = url(broker, new_name(), partitions=3, put_timeout=PUT_TIMEOUT, connect_timeout=1)
        self.folder = folder
        self._undo = undo

    def open(self, name: str = "views", **options: Any) -> EventSaver:
        return self._undo.enter_context(EventSaver.open(self.url, views=self.folder / name, **options))


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def savers(kafka_broker: Broker, tmp_path: Path, undo: ExitStack) -> Savers:
    return Savers(kafka_broker, tmp_path, undo)


def test_two_processes_on_one_topic(kafka_broker: Broker, tmp_path: Path) -> None:
    """Puts race prunes and deletes of the other one; nobody ever meets half a checkpoint."""
    where = url(kafka_broker, new_name(), partitions=3)
    for seen in processes(where, tmp_path, 12):
        assert seen["puts"] > 2
        assert seen["overtaken"] == 0
    assert equal_views(where, tmp_path)


def test_what_one_saver_put_another_resumes_from(savers: Savers) -> None:
    """The newest checkpoint of a thread is asked of the topic, not only of the view."""
    one, two = savers.open("one"), savers.open("two")
    for number in range(20):
        first, second = (one, two) if number % 2 else (two, one)
        put(first, "t", f"{number:03d}", {"n": number}, parent=None)
        first.put_writes(config("t", "", f"{number:03d}"), [("n", number)], "task")
        found = second.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"n": number}
        assert found.pending_writes == [("task", "n", number)]
    one.prune(["t"])
    assert ids(two, "t") == ["019"]
    two.delete_thread("t")
    assert one.get_tuple(config("t")) is None
    assert rows(one) == rows(two)


def test_states_of_any_size(savers: Savers) -> None:
    """Larger than a record: one value, a list of messages, several lists at once, many channels."""
    messages = [HumanMessage("y" * 250 + str(number), id=str(number)) for number in range(3_000)]
    states: dict[str, dict[str, Any]] = {
        "scalar": {"x": "s" * 2_500_000},
        "messages": {"messages": messages},
        "numbers": {f"list{number}": list(range(number, 40_000)) for number in range(4)},
        "channels": {f"channel {number}": "v" * 60 for number in range(2_500)} | {"x": "s" * 700_000},
    }
    with savers.open("first") as saver:
        for thread, state in states.items():
            put(saver, thread, "1", state)
            saver.put_writes(config(thread, "", "1"), list(state.items())[:1_200], "task")
            saver.copy_thread(thread, f"{thread}-copy")
            put(saver, thread, "2", state | {"more": 1}, parent="1")
    saver = savers.open("second")
    for thread, state in states.items():
        for each in (thread, f"{thread}-copy"):
            found = saver.get_tuple(config(each, "", "1"))
            assert found is not None
            assert found.checkpoint["channel_values"] == state
            assert dict((channel, value) for _, channel, value in found.pending_writes or ()) == dict(
                list(state.items())[:1_200]
            )
        assert values(saver, thread) == state | {"more": 1}
        saver.prune([thread])
        assert uncollected(saver, [thread]) == []


def test_the_broker_is_gone_during_puts(new_kafka_broker: NewBroker, tmp_path: Path, undo: ExitStack) -> None:
    """Writes end in time and say what is known, reads by id go on, nothing is lost and nothing doubled."""
    broker = new_kafka_broker()
    savers = Savers(broker, tmp_path, undo)
    saver = savers.open()
    acknowledged: list[str] = []
    uncertain: list[str] = []

    def attempt(id: str) -> EventStoreError | None:
        parent = acknowledged[-1] if acknowledged else None
        with took(0, 2 * (PUT_TIMEOUT + 1) + SLACK):
            try:
                put(saver, "t", id, {"n": id, "big": "b" * 3_000}, parent=parent)
            except EventStoreError as error:
                assert isinstance(error, (LogUnavailable, OutcomeUnknown)), repr(error)
                if isinstance(error, OutcomeUnknown):
                    uncertain.append(id)
                return error
        acknowledged.append(id)
        return None

    for end in (broker.stop, broker.kill):
        assert attempt(f"{end.__name__}-before") is None
        ender = threading.Timer(0.1, end)
        ender.start()
        number = 0
        while attempt(f"{end.__name__}-{number:04d}") is None:
            number += 1
        ender.join()
        assert attempt(f"{end.__name__}-gone") is not None
        with took(0, SLACK):
            assert values(saver, "t", "stop-before") == {"n": "stop-before", "big": "b" * 3_000}
        with took(0, 10 + SLACK), pytest.raises((LogUnavailable, ViewBehind)):
            saver.get_tuple(config("t"))
        broker.start()
        assert within(30, lambda: attempt(f"z{len(acknowledged)}-{len(uncertain)}") is None, step=0.1)
    fresh = savers.open("fresh")
    assert within(20, lambda: rows(fresh) == rows(saver), step=0.2)
    there = set(ids(fresh, "t"))
    assert set(acknowledged) <= there <= set(acknowledged) | set(uncertain)
    for id in acknowledged:
        assert values(fresh, "t", id) == {"n": id, "big": "b" * 3_000}


def test_the_store_as_of_a_checkpoint_on_a_topic(kafka_broker: Broker, tmp_path: Path) -> None:
    where = url(kafka_broker, new_name(), partitions=3)
    with EventStore.open(where, views=tmp_path / "views") as store:
        saver = EventSaver.from_store(store)
        for number in range(4):
            store.put(("u", str(number)), "k", {"n": number})
            store.put(("u",), "count", {"n": number})
            version = saver.get_next_version(None, None)
            saver.put(
                config("t"),
                {
                    "v": 4, "id": str(number), "ts": "", "channel_values": {"n": number},
                    "channel_versions": {"n": version}, "versions_seen": {}, "updated_channels": None,
                },
                {},
                {"n": version},
            )  # fmt: skip
        for number in range(4):
            past = store.as_of(config("t", "", str(number)))
            item = past.get(("u",), "count")
            assert item is not None
            assert item.value == {"n": number}
            assert len(past.search(("u",), limit=99)) == number + 2
