"""One history gives one state, whatever log carries it, in however many partitions, whenever it is read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from eventstore import EventStore
from eventstore.connection import parse
from eventstore.log.kafka import KafkaLog, stamps
from eventstore.log.position import Position
from projector.rebuild import rebuild
from tests.kafka.broker import Broker
from tests.kafka.kit import NewPlace, Place, indexed, random_writes, runtime_of, state, stranger
from tests.scenarios.kit import rows

WRITES = 150


def test_the_same_calls_give_the_same_state_on_every_log(
    kafka_broker: Broker, new_place: NewPlace, tmp_path: Path
) -> None:
    stores = [
        EventStore.open(tmp_path / "embedded", index=indexed()),
        new_place(kafka_broker, partitions=1).open(index=indexed()),
        new_place(kafka_broker, partitions=6).open(index=indexed()),
    ]
    with stores[0]:
        states = []
        for store in stores:
            random_writes(store, seed=11, count=WRITES)
            states.append(state(store, places=False, times=False))
            rebuild(store)
            assert state(store, places=False, times=False) == states[-1]
        assert states[0] == states[1] == states[2]
        assert len(states[0]["items"]) > 10


def test_a_fresh_view_equals_the_one_that_was_there(kafka_broker: Broker, new_place: NewPlace) -> None:
    for partitions in (1, 6):
        place = new_place(kafka_broker, partitions=partitions)
        live = place.open(index=indexed())
        random_writes(live, seed=12, count=WRITES)
        runtime_of(live).catch_up()
        fresh = place.open("fresh", index=indexed())
        assert state(fresh) == state(live)
        if partitions == 1:
            # Rows of vectors are numbered as they come, which is one order only with one partition.
            assert rows(fresh) == rows(live)


def test_records_copied_to_more_partitions_give_the_same_state(
    kafka_broker: Broker, new_place: NewPlace
) -> None:
    source, target = new_place(kafka_broker, partitions=2), new_place(kafka_broker, partitions=5)
    live = source.open(index=indexed())
    random_writes(live, seed=13, count=WRITES)
    target.open("maker").close()
    copy(source, target, 5)
    assert state(target.open(index=indexed()), places=False) == state(live, places=False)


def copy(source: Place, target: Place, partitions: int) -> None:
    """As docs/kafka.md says to move a log: every record with its own headers, to the partition of its key."""
    place = parse(source.url)
    reading = KafkaLog(place)
    try:
        with stranger(target.broker) as producer:
            for chunk in reading.chunks(Position.start(reading.partitions)):
                for record in chunk.records:
                    here = record.session + bytes([record.partition])
                    session = hashlib.blake2s(here, digest_size=16).digest()
                    headers = stamps.stamped(record, session, record.sequence, record.time_us, None)
                    producer.send(
                        target.topic,
                        key=record.key,
                        value=record.value,
                        headers=headers,
                        partition=stamps.partition_of(record.key, partitions),
                    )
            producer.flush(30)
    finally:
        reading.close()
