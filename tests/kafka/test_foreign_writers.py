"""Records that come twice, late, in transactions or never: each event counts once, in every view."""

from __future__ import annotations

import os
import threading
import time
import uuid

import pytest
from kafka import KafkaProducer
from langgraph.store.base import PutOp

from eventstore.codec import encode
from eventstore.keys import encode_item
from eventstore.log.base import Log
from eventstore.log.kafka import stamps
from eventstore.log.position import Position
from projector.digests import digest
from projector.integrity import verify
from tests.kafka.broker import Broker
from tests.kafka.kit import (
    NewPlace,
    Place,
    event,
    keys_in,
    produce,
    runtime_of,
    state,
    stranger,
    took,
    within,
)
from tests.scenarios.kit import together


def transactional(broker: Broker) -> KafkaProducer:
    producer = KafkaProducer(
        **broker.client,
        transactional_id=uuid.uuid4().hex,
        transaction_timeout_ms=30_000,
        enable_idempotence=True,
    )
    producer.init_transactions()
    return producer


def test_an_event_that_comes_twice_counts_once(kafka_broker: Broker, new_place: NewPlace) -> None:
    """Scenario S08."""
    place = new_place(kafka_broker)
    store = place.open()
    store.put(("u",), "k0", {"n": 0})
    session = uuid.uuid4().bytes
    first, second = event(("u",), "k", b'{"n": 1}'), event(("u",), "k", b'{"n": 2}')
    with stranger(kafka_broker) as producer:
        produce(producer, place.topic, first, session, 1)
        produce(producer, place.topic, first, session, 1)
        produce(producer, place.topic, second, session, 2)
        # A straggler: the first once more, behind the second.
        last = produce(producer, place.topic, first, session, 1)
    store.wait_for(Position(last + 1), timeout=10)
    assert store.get(("u",), "k").value == {"n": 2}
    assert [version.value for version in store.history(("u",), "k")] == [{"n": 2}, {"n": 1}]
    assert [change.value for change in store.changes(("u",), follow=False)] == [{"n": n} for n in range(3)]
    assert state(place.open("fresh")) == state(store)


def test_open_and_aborted_transactions_of_others(kafka_broker: Broker, new_place: NewPlace) -> None:
    """Scenario S11: what was not committed is not read, and what stands behind it is not passed over."""
    place = new_place(kafka_broker)
    store = place.open()
    store.put(("u",), "k0", {"n": 0})
    session = uuid.uuid4().bytes
    writer = transactional(kafka_broker)
    try:
        writer.begin_transaction()
        produce(writer, place.topic, event(("u",), "aborted", b"{}"), session, 1)
        held = store.position
        own = threading.Thread(target=store.put, args=(("u",), "mine", {"n": 1}))
        own.start()
        time.sleep(0.4)
        # Ours is acknowledged and waits: the position must not pass the undecided record.
        assert runtime_of(store).applied == held and own.is_alive()
        writer.abort_transaction()
        own.join(10)
        assert not own.is_alive()
        assert keys_in(store, "u") == {"k0", "mine"}
        writer.begin_transaction()
        produce(writer, place.topic, event(("u",), "committed", b"{}"), session, 2)
        writer.commit_transaction()
    finally:
        writer.close(timeout=5)
    store.put(("u",), "last", {"n": 2})
    assert keys_in(store, "u") == {"k0", "mine", "committed", "last"}
    assert state(place.open("fresh")) == state(store)


def test_a_batch_behind_an_open_transaction(kafka_broker: Broker, new_place: NewPlace) -> None:
    place = new_place(kafka_broker)
    store = place.open()
    store.put(("u",), "k0", {"n": 0})
    writer = transactional(kafka_broker)
    try:
        writer.begin_transaction()
        produce(writer, place.topic, event(("u",), "open", b"{}"), uuid.uuid4().bytes, 1)
        ops = [PutOp(("u",), "a", {"n": 1}), PutOp(("v",), "b", {"n": 1})]
        own = threading.Thread(target=store.batch, args=(ops,))
        own.start()
        time.sleep(0.4)
        assert keys_in(store) == {"k0"} and own.is_alive()
        writer.commit_transaction()
        own.join(10)
        assert not own.is_alive()
    finally:
        writer.close(timeout=5)
    assert keys_in(store) == {"k0", "a", "b", "open"}


def test_catching_up_ends_whatever_the_topic_ends_with(kafka_broker: Broker, new_place: NewPlace) -> None:
    """Scenario S25."""
    place = new_place(kafka_broker, partitions=4)
    store = place.open()
    for n in range(6):
        store.put((f"user{n}",), "k", {"n": n})
    store.batch([PutOp((f"user{n}",), "b", {"n": n}) for n in range(3)])  # ends with markers
    with took(0, 6):
        assert state(place.open("markers")) == state(store)
    writer = transactional(kafka_broker)
    try:
        writer.begin_transaction()
        for partition in range(4):
            writer.send(place.topic, key=b"x", value=b"{}", partition=partition).get(10)
        writer.abort_transaction()  # ends with aborted records, and their markers, in every partition
    finally:
        writer.close(timeout=5)
    with took(0, 6):
        assert state(place.open("aborted")) == state(store)
    with took(0, 6):
        runtime_of(store).catch_up()
    # The next writes are seen at once, with all that in front of them.
    with took(0, 3):
        for n in range(6):
            store.put((f"user{n}",), "k", {"n": -n})
    empty = new_place(kafka_broker, partitions=4)
    with took(0, 6):
        assert keys_in(empty.open()) == set()
    with took(0, 6):
        assert keys_in(empty.open("second")) == set()


def test_two_writers_of_the_same_memories(place: Place) -> None:
    one, two = place.open("one"), place.open("two")

    def write(store: object, name: str) -> None:
        for n in range(40):
            store.put((f"user{n % 3}",), f"k{n % 5}", {"by": name, "n": n})
            assert store.get((f"user{n % 3}",), f"k{n % 5}") is not None
            if n % 10 == 0:
                store.batch([PutOp((f"user{user}",), "b", {"by": name, "n": n}) for user in range(3)])

    together(lambda: write(one, "one"), lambda: write(two, "two"))
    one.wait_for(two.position)
    two.wait_for(one.position)
    assert state(one) == state(two) == state(place.open("fresh"))
    versions = sum(len(one.history((f"user{user}",), f"k{k}")) for user in range(3) for k in range(5))
    assert versions == 80


def test_a_batch_of_another_store_is_seen_whole(place: Place) -> None:
    writer, reader = place.open("one"), place.open("two")
    writer.batch([PutOp((f"user{user}",), "k", {"n": 0}) for user in range(6)])
    reader.wait_for(writer.position)
    done = threading.Event()

    def write() -> None:
        for n in range(1, 25):
            writer.batch([PutOp((f"user{user}",), "k", {"n": n}) for user in range(6)])
        done.set()

    def read() -> None:
        while not done.is_set():
            seen = {item.value["n"] for item in reader.search((), limit=10)}
            assert len(seen) == 1, seen

    together(write, read)
    assert within(5, lambda: {item.value["n"] for item in reader.search((), limit=10)} == {24})


def test_what_was_not_applied_is_read_again(place: Place) -> None:
    """A follower that could not apply what it was given gets it once more, not what comes after."""
    store, other = place.open("one"), place.open("other")
    log = runtime_of(other).log
    runtime_of(other)._follower.stop(5)
    start = runtime_of(other).applied
    for n in range(5):
        store.put(("u",), f"k{n}", {"n": n})
    assert delivered(log, start) == [1, 2, 3, 4, 5]
    assert delivered(log, start) == [1, 2, 3, 4, 5]


def delivered(log: Log, position: Position) -> list[int]:
    found: list[int] = []
    while len(found) < 5:
        for chunk in log.poll(position, 0.5):
            found += [record.sequence for record in chunk.records]
            position = chunk.position
    return found


@pytest.mark.parametrize("key", [encode_item(("u",), "k1"), None], ids=["tombstone", "no key"])
def test_a_record_that_no_store_wrote_is_set_aside(
    kafka_broker: Broker, new_place: NewPlace, key: bytes | None
) -> None:
    """Scenarios S12 and S21: under quarantine it deletes nothing, and what comes behind it is applied."""
    place = new_place(kafka_broker, partitions=2)
    quarantine = {"on_undecodable": "quarantine"}
    store = place.open(config=quarantine)
    for n in range(3):
        store.put(("u",), f"k{n}", {"n": n})
    partition = max(range(2), key=lambda each: store.position[each])
    with stranger(kafka_broker) as producer:
        producer.send(place.topic, key=key, value=None if key else b"{}", partition=partition).get(10)
        later = event(("u",), "later", b'{"n":4}')
        produce(producer, place.topic, later, uuid.uuid4().bytes, 1, partition=partition)
    store.put(("u",), "own", {"n": 5})
    store.batch([PutOp((f"user{n}",), "k", {"n": n}) for n in range(4)])
    assert keys_in(store, "u") == {"k0", "k1", "k2", "later", "own"}
    status = store.status()
    assert (status.quarantined, status.stopped) == (1, None)
    (aside,) = status.quarantine
    assert (aside.partition, aside.offset, aside.key) == (partition, 3, "k1" if key else None)
    assert "without a type header" in aside.reason
    fresh = place.open("fresh", config=quarantine)
    assert state(fresh) == state(store)
    assert fresh.status().quarantine == status.quarantine
    assert digest(fresh) == digest(store)
    assert verify(store).exit_code == 0


def test_half_a_batch_is_an_error_and_no_hang(kafka_broker: Broker, new_place: NewPlace) -> None:
    """As a tool leaves it that copies one partition and not the other."""
    place = new_place(kafka_broker, connect_timeout=1.5)
    store = place.open()
    store.put(("u",), "k0", {"n": 0})
    store.close()
    record = encode(event(("u",), "half", b"{}"))
    headers = stamps.stamped(record, uuid.uuid4().bytes, 1, 0, (os.urandom(8), 2))
    with stranger(kafka_broker) as producer:
        producer.send(place.topic, key=record.key, value=record.value, headers=headers, partition=0).get(10)
    with took(1, 6):
        try:
            place.open("fresh")
        except Exception as error:
            assert "not all 2 records of this batch came" in str(error) and "offset 1" in str(error)
        else:
            raise AssertionError("half a batch was shown")
