"""The broker that the Kafka tests run on: it keeps what it acknowledged, and can be stopped in every way."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from tests.kafka.broker import Broker, Login, is_listening
from tests.kafka.docker_broker import environment_name
from tests.kafka.plugin import NewBroker


def new_topic(broker: Broker, **configs: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    with closing(KafkaAdminClient(**broker.client)) as admin:
        admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1, topic_configs=configs)])
    return name


@contextmanager
def producer_to(broker: Broker, **settings: Any) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(**broker.client, acks="all", enable_idempotence=True, **settings)
    try:
        yield producer
    finally:
        producer.close(timeout=10)


def values_in(broker: Broker, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
    partition = TopicPartition(topic, 0)
    values: list[bytes] = []
    consumer = KafkaConsumer(**broker.client, auto_offset_reset="none", isolation_level=isolation)
    with closing(consumer):
        consumer.assign([partition])
        consumer.seek(partition, 0)
        deadline = time.monotonic() + 20
        while len(values) < count and time.monotonic() < deadline:
            values += [record.value for records in consumer.poll(500).values() for record in records]
    return values


def test_what_is_produced_is_consumed(kafka_broker: Broker) -> None:
    topic = new_topic(kafka_broker)
    with producer_to(kafka_broker) as producer:
        offsets = [producer.send(topic, b"%d" % n, partition=0).get(10).offset for n in range(5)]
    assert offsets == [0, 1, 2, 3, 4]
    assert values_in(kafka_broker, topic, 5) == [b"0", b"1", b"2", b"3", b"4"]


def test_an_aborted_transaction_is_not_read(kafka_broker: Broker) -> None:
    topic = new_topic(kafka_broker)
    with producer_to(kafka_broker, transactional_id=topic) as producer:
        producer.init_transactions()
        for commits, value in ((True, b"a"), (False, b"b"), (True, b"c")):
            producer.begin_transaction()
            producer.send(topic, value, partition=0).get(10)
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    assert values_in(kafka_broker, topic, 2) == [b"a", b"c"]
    assert values_in(kafka_broker, topic, 3, isolation="read_uncommitted") == [b"a", b"b", b"c"]


def test_what_was_acknowledged_is_there_after_a_restart(new_kafka_broker: NewBroker) -> None:
    broker = new_kafka_broker()
    address = broker.address
    topic = new_topic(broker)
    written: list[bytes] = []
    for end in (broker.stop, broker.kill):
        with producer_to(broker) as producer:
            for _ in range(20):
                written.append(b"%d" % len(written))
                assert producer.send(topic, written[-1], partition=0).get(10).offset == len(written) - 1
        end()
        assert not broker.alive()
        assert not is_listening(broker.host, broker.port)
        broker.start()
        assert broker.address == address
        assert values_in(broker, topic, len(written)) == written


def test_a_paused_broker_answers_nothing_until_it_is_resumed(new_kafka_broker: NewBroker) -> None:
    broker = new_kafka_broker()
    topic = new_topic(broker)
    with producer_to(broker) as producer:
        producer.send(topic, b"before", partition=0).get(10)
        broker.pause()
        late = producer.send(topic, b"late", partition=0)
        with pytest.raises(KafkaTimeoutError):
            late.get(0.5)
        assert broker.alive()
        broker.resume()
        assert late.get(10).offset == 1


def test_properties_and_a_login_reach_the_broker(new_kafka_broker: NewBroker) -> None:
    broker = new_kafka_broker(properties={"message.max.bytes": "2000"}, login=Login("ann", "right"))
    topic = new_topic(broker)
    with producer_to(broker) as producer:
        producer.send(topic, b"in", partition=0).get(10)
        with pytest.raises(MessageSizeTooLargeError):
            producer.send(topic, b"x" * 3000, partition=0).get(10)
    with pytest.raises(KafkaTimeoutError):
        KafkaAdminClient(**broker.client | {"sasl_plain_password": "wrong"}, bootstrap_timeout_ms=1000)


def test_a_broker_that_cannot_start_shows_its_log(new_kafka_broker: NewBroker) -> None:
    with pytest.raises(RuntimeError, match=r"num\.io\.threads"):
        new_kafka_broker(properties={"num.io.threads": "0"})


def test_server_properties_have_names_in_the_environment_of_the_image() -> None:
    assert environment_name("log.dirs") == "KAFKA_LOG_DIRS"
    assert environment_name("listener.name.client.a-b_c") == "KAFKA_LISTENER_NAME_CLIENT_A___B__C"
