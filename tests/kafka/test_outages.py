"""The broker goes away: reads go on, writes end in time and say what is known, nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from kafka import KafkaProducer
from langgraph.store.base import PutOp

from eventstore import EventStore
from eventstore.errors import EventStoreError, LogUnavailable, OutcomeUnknown
from tests.kafka.broker import Broker
from tests.kafka.kit import NewPlace, keys_in, our_threads, state, took, within
from tests.kafka.plugin import NOT_OURS, NewBroker
from tests.scenarios.kit import together

PUT_TIMEOUT = 1.0
SLACK = 2.0
"""On a busy machine."""


@pytest.fixture(scope="module")
def pausable(kafka_broker: Broker) -> Iterator[Broker]:
    """A broker that is frozen at times, but never restarted."""
    if not kafka_broker.stoppable:
        pytest.skip(NOT_OURS)
    broker = type(kafka_broker)().start()
    yield broker
    broker.close()


def put(store: EventStore, key: str) -> EventStoreError | None:
    """Put a memory in time; the error if there was one."""
    with took(0, PUT_TIMEOUT + 1 + SLACK):
        try:
            store.put(("u",), key, {"k": key})
        except EventStoreError as error:
            return error
    return None


def first_put(store: EventStore, key: str, seconds: float) -> None:
    """Writes go through again within so many seconds, without anything being done for it."""
    assert within(seconds, lambda: put(store, key) is None, step=0.1)


@contextmanager
def paused(broker: Broker, seconds: float | None = None) -> Iterator[None]:
    """The broker is frozen within the block, or for so many seconds from its beginning."""
    broker.pause()
    time.sleep(0.1)  # threads of it that are at work stop a little later
    timer = threading.Timer(seconds, broker.resume) if seconds is not None else None
    if timer is not None:
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.join()
        broker.resume()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_the_broker_is_gone_during_puts(new_kafka_broker: NewBroker, new_place: NewPlace, end: str) -> None:
    """Scenario S01."""
    broker = new_kafka_broker()
    place = new_place(broker, put_timeout=PUT_TIMEOUT, partitions=3)
    store, other = place.open(), place.open("other")
    acknowledged = {f"before{n}" for n in range(100)}
    for key in sorted(acknowledged):
        store.put(("u",), key, {"k": key})
    batch(store, "before")
    before = state(store)

    getattr(broker, end)()
    uncertain: set[str] = set()
    refused: set[str] = set()

    def write(thread: int) -> None:
        for n in range(5):
            key = f"during{thread}-{n}"
            # Calls stand in line behind the one whose outcome is awaited.
            with took(0, 2 * PUT_TIMEOUT + SLACK):
                try:
                    store.put(("u",), key, {"k": key})
                    acknowledged.add(key)
                except OutcomeUnknown as error:
                    assert "may be in the log" in str(error)
                    uncertain.add(key)
                except LogUnavailable as error:
                    assert error.retriable and "nothing was appended" in str(error)
                    refused.add(key)

    together(*(lambda thread=thread: write(thread) for thread in range(4)))
    with took(0, 2 * PUT_TIMEOUT + SLACK), pytest.raises(LogUnavailable, match="nothing was appended"):
        batch(store, "during")
    assert len(acknowledged) == 100 and uncertain and refused
    assert state(store) == before

    # Nobody has to be told that it is back: writer and reader go on by themselves.
    broker.start()
    first_put(store, "after", 20)
    batch(store, "after")
    acknowledged.add("after")
    found = keys_in(store, "u")
    assert acknowledged <= found <= acknowledged | uncertain
    other.wait_for(store.position, timeout=10)
    fresh = place.open("fresh")
    assert state(fresh) == state(store) == state(other)
    assert all(len(fresh.history(("u",), key)) == 1 for key in found)
    assert {item.key for item in store.search(("user1",), limit=10)} == {"before", "after"}
    store.close()
    assert state(place.open()) == state(fresh)


def batch(store: EventStore, key: str) -> None:
    store.batch([PutOp((f"user{n}",), key, {"n": n}) for n in range(6)])


def test_a_short_pause_is_waited_for(pausable: Broker, new_place: NewPlace) -> None:
    broker = pausable
    store = new_place(broker, put_timeout=PUT_TIMEOUT).open()
    store.put(("u",), "k0", {"k": "k0"})
    with paused(broker, 0.5), took(0.4, PUT_TIMEOUT + SLACK):
        store.put(("u",), "k1", {"k": "k1"})
    with paused(broker, 0.5), took(0.4, PUT_TIMEOUT + SLACK):
        store.batch([PutOp(("u",), "k2", {"k": "k2"}), PutOp(("v",), "k2", {"k": "k2"})])
    assert keys_in(store, "u") == {"k0", "k1", "k2"}


def test_a_long_pause(pausable: Broker, new_place: NewPlace) -> None:
    broker = pausable
    place = new_place(broker, put_timeout=PUT_TIMEOUT)
    store, other = place.open(), place.open("other")
    store.put(("u",), "k0", {"k": "k0"})
    with paused(broker):
        with took(PUT_TIMEOUT - 0.1, PUT_TIMEOUT + SLACK), pytest.raises(OutcomeUnknown):
            store.put(("u",), "k1", {"k": "k1"})
        with took(0.3, 1 + SLACK), pytest.raises(LogUnavailable, match="nothing was appended"):
            store.put(("u",), "k2", {"k": "k2"})
        assert store.get(("u",), "k0") is not None
    # The write in doubt lands once, before all later ones.
    first_put(store, "k3", 10)
    assert keys_in(store, "u") == {"k0", "k1", "k3"}
    other.wait_for(store.position, timeout=10)
    assert state(other) == state(store) == state(place.open("fresh"))
    assert [version.kind for version in other.history(("u",), "k1")] == ["put"]


def test_a_long_pause_within_a_batch(pausable: Broker, new_place: NewPlace) -> None:
    broker = pausable
    place = new_place(broker, put_timeout=PUT_TIMEOUT, partitions=3)
    store, other = place.open(), place.open("other")
    both = [PutOp((f"user{n}",), "first", {"n": n}) for n in range(6)]
    store.batch(both)
    with (
        paused(broker),
        took(PUT_TIMEOUT - 0.5, PUT_TIMEOUT + SLACK),
        pytest.raises((OutcomeUnknown, LogUnavailable)) as raised,
    ):
        store.batch([PutOp((f"user{n}",), "second", {"n": n}) for n in range(6)])
    # Whatever was left open is ended by the next write, so that no reader waits for its time-out.
    with took(0, 5):
        first_put(store, "k", 5)
    other.wait_for(store.position, timeout=5)
    found = [item.key for item in store.search((), limit=100) if item.key == "second"]
    assert len(found) in ([0] if isinstance(raised.value, LogUnavailable) else [0, 6])
    store.batch([PutOp((f"user{n}",), "third", {"n": n}) for n in range(6)])
    other.wait_for(store.position, timeout=5)
    assert state(other) == state(store) == state(place.open("fresh"))


def test_a_broker_that_is_slow_to_start(new_kafka_broker: NewBroker, new_place: NewPlace) -> None:
    broker = new_kafka_broker(running=False)
    done = threading.Event()

    def start() -> None:
        time.sleep(1)
        broker.start()
        done.wait(60)  # the broker ends with the thread that started it

    starting = threading.Thread(target=start)
    starting.start()
    try:
        store = new_place(broker, connect_timeout=30).open()
        store.put(("u",), "k", {"n": 1})
        assert store.get(("u",), "k") is not None
    finally:
        done.set()
        starting.join()


def test_no_broker_at_all(new_kafka_broker: NewBroker, new_place: NewPlace) -> None:
    broker = new_kafka_broker(running=False)
    place = new_place(broker, connect_timeout=1)
    before = our_threads()
    for _ in range(2):
        with took(0.9, 1 + SLACK), pytest.raises(LogUnavailable, match="did not answer") as raised:
            place.open()
        assert raised.value.retriable and broker.address in str(raised.value)
    assert our_threads() == before


def test_reads_of_the_latest_state_say_that_it_cannot_be_known(pausable: Broker, new_place: NewPlace) -> None:
    broker = pausable
    store = new_place(broker, connect_timeout=1).open(config={"read_consistency": "latest"})
    store.put(("u",), "k", {"n": 1})
    with paused(broker), took(0, 1 + SLACK), pytest.raises(LogUnavailable):
        store.get(("u",), "k")
    assert within(10, lambda: answers(store))


def test_status_says_that_the_broker_does_not_answer(pausable: Broker, new_place: NewPlace) -> None:
    store = new_place(pausable, connect_timeout=1).open()
    store.put(("u",), "k", {"n": 1})
    with paused(pausable), took(0, 1 + SLACK):
        status = store.status()
    assert str(status.trouble).startswith("LogUnavailable: ") and pausable.address in str(status.trouble)
    assert (status.end, status.lag, status.applied, status.memories) == (None, None, "1", 1)
    assert within(10, lambda: store.status().trouble is None)
    assert store.status().end == "1"


def answers(store: EventStore) -> bool:
    try:
        return store.get(("u",), "k") is not None
    except LogUnavailable:
        return False


def test_closing_ends_while_the_broker_is_frozen(pausable: Broker, new_place: NewPlace) -> None:
    closes_without(pausable, new_place, paused(pausable))


def test_closing_ends_without_the_broker(new_kafka_broker: NewBroker, new_place: NewPlace) -> None:
    broker = new_kafka_broker()
    closes_without(broker, new_place, killed(broker))


def closes_without(broker: Broker, new_place: NewPlace, gone: AbstractContextManager[None]) -> None:
    before = our_threads()
    calm = new_place(broker, put_timeout=0.5)
    quiet, doubtful = calm.open(), new_place(broker, put_timeout=0.5).open()
    for store in (quiet, doubtful):
        store.put(("u",), "k", {"n": 1})
        store.batch([PutOp(("u",), "a", {"n": 1}), PutOp(("v",), "b", {"n": 1})])
    with gone:
        with pytest.raises(OutcomeUnknown):
            doubtful.put(("u",), "k2", {"n": 2})
        for store in (quiet, doubtful):
            with took(0, 5):
                store.close()
        assert within(5, lambda: our_threads() <= before), our_threads() - before


@contextmanager
def killed(broker: Broker) -> Iterator[None]:
    broker.kill()
    yield


def test_nothing_of_a_dead_writer_is_shown_or_waited_for(kafka_broker: Broker, new_place: NewPlace) -> None:
    """A process that ends inside a transaction holds up readers until the transaction times out."""
    broker = kafka_broker
    place = new_place(broker)
    store = place.open()
    store.put(("u",), "k0", {"n": 0})
    writer = KafkaProducer(
        **broker.client, transactional_id=place.topic, transaction_timeout_ms=2_000, enable_idempotence=True
    )
    writer.init_transactions()
    writer.begin_transaction()
    writer.send(place.topic, key=b"u\x00\x00k", value=b"{}", partition=0).get(10)
    began = time.monotonic()
    store.put(("u",), "k1", {"n": 1})
    assert store.get(("u",), "k1") is not None
    assert time.monotonic() - began < 10
    writer._sender.force_close()
    writer.close(timeout=1)
