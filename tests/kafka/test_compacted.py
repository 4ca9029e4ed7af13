"""What a log means once only the last record of each key is left, compacted in place or copied: S21."""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from langgraph.store.base import PutOp

from eventstore import EventStore, VersionConflict
from eventstore.errors import InvalidConfig, UndecodableEvent
from eventstore.history import microseconds
from eventstore.keys import encode_item
from eventstore.log.base import Record, StoredRecord
from eventstore.log.kafka import stamps
from projector.digests import digest
from projector.integrity import verify
from tests.kafka.broker import Broker
from tests.kafka.kit import (
    ALL,
    QUERIES,
    NewPlace,
    Place,
    event,
    indexed,
    keys_in,
    produce,
    runtime_of,
    stranger,
    within,
)
from tests.kafka.plugin import NewBroker
from tests.past.replay import records_of

PLACES = [((f"user{user}", "m"), f"k{key}") for user in range(6) for key in range(5)]
FAST = {"log.cleaner.backoff.ms": "100"}


def write(store: EventStore, batches: bool) -> None:
    """Every memory several times: put, deleted, put again, expired, deleted; some for good."""
    for number in range(150):
        namespace, key = PLACES[number * 7 % len(PLACES)]
        if number % 11 == 10:
            store.delete(namespace, key)
        elif number % 31 == 30:
            store.put(namespace, key, {"t": "brief", "n": number}, ttl=1e-7)
            store.sweep_ttl()
        else:
            store.put(namespace, key, {"t": ["red", "blue", "green"][number % 3], "n": number})
        if batches and number % 25 == 0:
            store.batch([PutOp((f"user{user}", "b"), "k", {"t": "yellow", "n": number}) for user in range(4)])
    for namespace, key in PLACES[:4]:
        store.delete(namespace, key)
    store.delete(*PLACES[5])
    store.put(*PLACES[5], {"t": "red", "n": -1})


def current(store: EventStore) -> dict[str, Any]:
    """All that does not tell of a past: what is there, where, since when, and how it ranks."""
    items = store.search((), limit=ALL, refresh_ttl=False)
    return {
        "items": [(item.namespace, item.key, item.value, item.updated_at) for item in items],
        "got": [None if (item := store.get(*place)) is None else item.value for place in PLACES],
        "namespaces": store.list_namespaces(limit=ALL),
        "ranked": {
            query: [
                (hit.namespace, hit.key, round(hit.score or 0.0, 4))
                for hit in store.search((), query=query, limit=ALL, refresh_ttl=False)
            ]
            for query in QUERIES
        },
    }


def test_a_topic_that_was_compacted_gives_the_same_memories(
    new_kafka_broker: NewBroker, new_place: NewPlace
) -> None:
    """By the broker's own cleaner, which leaves gaps between offsets; deletes stay deletes."""
    place = new_place(new_kafka_broker(properties=FAST), partitions=3)
    live = place.open(index=indexed())
    write(live, batches=False)
    runtime_of(live).catch_up()
    expected, written = current(live), sum(live.position)
    live.close()
    for retention in ("86400000", "0"):  # of tombstones
        compact(place, retention)
        assert len(offsets_in(place)) < written - 80
        # A store refuses the topic until its policy is what it must be.
        with pytest.raises(InvalidConfig, match=r"cleanup\.policy=compact"):
            place.open("refused")
        place.alter(**settings())
        fresh = place.open(f"fresh-{retention}", index=indexed())
        assert current(fresh) == expected
        assert all(len(fresh.history(*each)) <= 1 for each in PLACES)
        fresh.put(*PLACES[7], {"t": "blue", "n": -2})
        expected = current(fresh)
        fresh.close()


def settings(**more: str) -> dict[str, str]:
    kept = {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
        "cleanup.policy": "delete",
    }
    return kept | {name.replace("_", "."): value for name, value in more.items()}


ROLLING = {stamps.partition_of(encode_item((f"roll{n}",), "k"), 3): (f"roll{n}",) for n in range(20)}


def compact(place: Place, retention: str) -> None:
    """Have the broker's cleaner do its work; the last segment of each partition it leaves alone."""
    place.alter(
        **settings(cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.0"),
        **{"delete.retention.ms": retention},
    )

    def is_cleaned() -> bool:
        # A segment is closed by the first record that comes too late for it.
        with stranger(place.broker) as producer:
            for partition, namespace in ROLLING.items():
                nothing = event(namespace, "k", None)
                produce(producer, place.topic, nothing, uuid.uuid4().bytes, 1, partition)
        rolling = {encode_item(namespace, "k") for namespace in ROLLING.values()}
        left = Counter(key for _, _, key in offsets_in(place))
        return max(count for key, count in left.items() if key not in rolling) == 1

    assert within(40, is_cleaned, step=0.3)


def offsets_in(place: Place) -> list[tuple[int, int, bytes]]:
    """Partition, offset and key of every record, as any consumer sees them."""
    consumer = KafkaConsumer(**place.broker.client, auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        partitions = [TopicPartition(place.topic, number) for number in range(3)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[tuple[int, int, bytes]] = []
        while any(consumer.position(each) < ends[each] for each in partitions):
            for each, messages in consumer.poll(timeout_ms=200).items():
                found += [(each.partition, message.offset, message.key) for message in messages]
        return found
    finally:
        consumer.close()


# ---------------------------------------------------------------------- copies


def test_a_copy_of_the_last_records_gives_the_same_memories(
    kafka_broker: Broker, new_place: NewPlace
) -> None:
    """As docs/kafka.md says to copy, with batches among them, to other partitions, and with gaps."""
    source, target = new_place(kafka_broker, partitions=3), new_place(kafka_broker, partitions=4)
    live = source.open(index=indexed())
    write(live, batches=True)
    target.open("maker").close()
    copy(target, last_of_each_key(live), 4, gaps=True)
    fresh = target.open(index=indexed())
    assert current(fresh) == current(live)
    again = target.open("again", index=indexed())
    assert digest(again) == digest(fresh) and verify(fresh).exit_code == 0


@pytest.mark.parametrize("policy", ["stop", "quarantine"])
def test_a_foreign_tombstone_is_no_delete_in_a_copy_either(
    kafka_broker: Broker, new_place: NewPlace, policy: str
) -> None:
    """It is an event that cannot be decoded; but what it pushed out of the copy is not there."""
    source, target = new_place(kafka_broker), new_place(kafka_broker)
    config = {"on_undecodable": "quarantine"}
    live = source.open(config=config)
    for number in range(3):
        live.put(("u",), f"k{number}", {"n": number})
    with stranger(kafka_broker) as producer:
        producer.send(source.topic, key=encode_item(("u",), "k1"), value=None, partition=0).get(10)
    live.put(("u",), "later", {"n": 4})
    assert keys_in(live, "u") == {"k0", "k1", "k2", "later"}
    target.open("maker").close()
    copy(target, last_of_each_key(live), 1)
    if policy == "stop":
        fresh = target.open()
        assert keys_in(fresh, "u") == {"k0", "k2"}
        with pytest.raises(UndecodableEvent, match="partition 0, offset 2: a record without a type header"):
            fresh.put(("u",), "k", {"n": 1})
    else:
        fresh = target.open(config=config)
        assert keys_in(fresh, "u") == {"k0", "k2", "later"}
        assert [each.key for each in fresh.status().quarantine] == ["k1"]


def test_what_was_decided_by_the_past_is_decided_anew_in_a_copy(
    kafka_broker: Broker, new_place: NewPlace
) -> None:
    """The limits of a copy, as docs/kafka.md has them: conditions and refreshes name versions it has not."""
    source, target = new_place(kafka_broker), new_place(kafka_broker)
    live = source.open()
    for key in ("conditional", "rejected", "plain"):
        live.put(("u",), key, {"n": 1})
    live.put(("u",), "conditional", {"n": 2}, expected_version=1)
    with pytest.raises(VersionConflict):
        live.put(("u",), "rejected", {"n": 2}, expected_version=7)
    live.put(("u",), "new", {"n": 1}, expected_version=0)
    for number in range(2):
        live.put(("u",), "refreshed", {"n": number}, ttl=0.01)
    put, expired = live.history(("u",), "refreshed")[0], expiry(live, "refreshed")
    time.sleep(0.1)
    live.get(("u",), "refreshed", refresh_ttl=True)
    live._expiry.flush()
    assert expiry(live, "refreshed") > expired == microseconds(put.expires_at, "expires_at")
    assert keys_in(live, "u") == {"conditional", "rejected", "plain", "new", "refreshed"}
    target.open("maker").close()
    copy(target, last_of_each_key(live), 1)
    fresh = target.open()
    assert keys_in(fresh, "u") == {"plain", "new", "refreshed"}
    assert expiry(fresh, "refreshed") == expired
    assert [version.rejected for version in fresh.history(("u",), "conditional")] == [True]


def expiry(store: EventStore, key: str) -> int:
    row = runtime_of(store).view.get(encode_item(("u",), key))
    assert row is not None
    return row.expires_us


def last_of_each_key(store: EventStore) -> list[StoredRecord]:
    """What compaction would leave, by the record's own key, in the order of the log."""
    records = records_of(store)
    last = {record.key: record for record in records}
    return [record for record in records if last[record.key] is record]


def copy(target: Place, records: list[StoredRecord], partitions: int, *, gaps: bool = False) -> None:
    with stranger(target.broker) as producer, aborting(target) as gap:
        for number, record in enumerate(records):
            partition = stamps.partition_of(record.key, partitions)
            if gaps and number % 5 == 0:
                gap(partition)
            headers = list(record.headers)
            if record.session != stamps.NOBODY:
                session = hashlib.blake2s(record.session + bytes([record.partition]), digest_size=16).digest()
                headers = stamps.stamped(record_of(record), session, record.sequence, record.time_us, None)
            sent = producer.send(
                target.topic, key=record.key, value=record.value, headers=headers, partition=partition
            )
            sent.get(10)


def record_of(stored: StoredRecord) -> Record:
    return Record(stored.key, stored.value, stored.headers)


@contextmanager
def aborting(place: Place) -> Iterator[Callable[[int], None]]:
    """Makes gaps: each call leaves an aborted record and its marker, offsets without a record."""
    writer = KafkaProducer(**place.broker.client, transactional_id=uuid.uuid4().hex, enable_idempotence=True)
    writer.init_transactions()

    def gap(partition: int) -> None:
        writer.begin_transaction()
        writer.send(place.topic, key=b"x", value=b"{}", partition=partition).get(10)
        writer.abort_transaction()

    try:
        yield gap
    finally:
        writer.close(timeout=10)
