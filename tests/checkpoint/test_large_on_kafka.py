"""Events larger than a record on a topic that was made by others and left at Kafka's own limit."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from eventstore.checkpoint import EventSaver, FolderKeys, enveloping
from eventstore.errors import LimitExceeded
from eventstore.log import Record
from eventstore.log.kafka import stamps
from tests.checkpoint.kit import SMALL, config, ids, put, rows, values
from tests.checkpoint.test_fragments import fragments, large_put, value_of
from tests.checkpoint.test_large import CALLS, MASTER, dropped
from tests.kafka.broker import Broker
from tests.kafka.kit import admin_of, new_name, url, within

KAFKAS_OWN_LIMIT = 1_048_588


class Topic:
    """Of checkpoints, one partition, and savers on it with a view each."""

    def __init__(self, broker: Broker, folder: Path, undo: ExitStack, **more: str) -> None:
        self.broker = broker
        self.name = new_name()
        self.url = url(broker, self.name, put_timeout=20)
        self._folder = folder
        self._undo = undo
        kept = {"retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime"}
        kept |= {name.replace("_", "."): value for name, value in more.items()}
        with admin_of(broker) as admin:
            admin.create_topics([NewTopic(f"{self.name}.checkpoints", 1, 1, topic_configs=kept)])

    def alter(self, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        with admin_of(self.broker) as admin:
            resource = ConfigResource(ConfigResourceType.TOPIC, f"{self.name}.checkpoints", configs=named)
            admin.alter_configs([resource])

    def open(self, name: str, **options: Any) -> EventSaver:
        return self._undo.enter_context(EventSaver.open(self.url, views=self._folder / name, **options))


@pytest.fixture
def topic(kafka_broker: Broker, tmp_path: Path) -> Iterator[Topic]:
    with ExitStack() as undo:
        yield Topic(kafka_broker, tmp_path, undo)


def largest(topic: Topic) -> int:
    """Bytes of the largest record there."""
    at = TopicPartition(f"{topic.name}.checkpoints", 0)
    with closing(
        KafkaConsumer(**topic.broker.client, group_id=None, auto_offset_reset="earliest")
    ) as consumer:
        consumer.assign([at])
        end = consumer.end_offsets([at])[at]
        found = 0
        while consumer.position(at) < end:
            for records in consumer.poll(timeout_ms=500).values():
                found = max([found, *(len(each.value or b"") for each in records)])
        return found


@pytest.mark.parametrize(("call", "sealed"), [*((each, False) for each in CALLS), (dropped, True)])
def test_whatever_is_saved_finds_room(
    topic: Topic, tmp_path: Path, call: Callable[[EventSaver], None], sealed: bool
) -> None:
    options: dict[str, Any] = {"keys": FolderKeys(tmp_path / "keys", MASTER)} if sealed else {}
    saver = topic.open("one", **options)
    assert runtime_limit(saver) == KAFKAS_OWN_LIMIT
    call(saver)
    saver.copy_thread("t", "copy")
    other = topic.open("two", **options)
    mine, theirs = saver.get_tuple(config("t")), other.get_tuple(config("copy"))
    assert mine is not None and theirs is not None
    assert (mine.checkpoint, mine.metadata, mine.pending_writes) == theirs[1:3] + theirs[4:]
    assert rows(saver) == rows(other)
    assert 512 * 1024 < largest(topic) < 1_000_000


def test_a_topic_that_takes_less_and_then_still_less(kafka_broker: Broker, tmp_path: Path) -> None:
    """Nobody has to be told: what does not fit any more is refused once, and fits the next time."""
    given = {"x": random.Random(1).randbytes(300_000)}
    with ExitStack() as undo:
        topic = Topic(kafka_broker, tmp_path, undo, max_message_bytes="70000")
        saver = topic.open("one")
        put(saver, "t", "1", given)
        for size in range(69_000, 70_001, 100):
            saver.put_writes(config("t", "", "1"), [("x", random.Random(size).randbytes(size))], str(size))
        assert 60_000 < largest(topic) < 70_000
        topic.alter(max_message_bytes="20000")
        given |= {"y": random.Random(2).randbytes(100_000)}
        assert within(20, lambda: taken(saver, given))
        saver.copy_thread("t", "copy")
        other = topic.open("two")
        assert values(other, "copy", "2") == given
        assert rows(other) == rows(saver)


def taken(saver: EventSaver, given: dict[str, Any]) -> bool:
    """Whether a put went through, which the topic's limit may refuse."""
    try:
        put(saver, "t", "2", given, parent="1")
    except LimitExceeded:
        return False
    return True


def runtime_limit(saver: EventSaver) -> int:
    log: Any = saver._engine.runtime.log
    return int(log._topic.max_record_bytes)


@pytest.mark.parametrize("ends", ["abort", "commit"])
def test_a_transaction_that_ends_between_fragments_leaves_nothing_half_visible(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Aborted, it was never there. Left half done by who knows whom, nothing of it shows either."""
    monkeypatch.setattr(enveloping, "RECORD_BYTES", SMALL)
    saver = topic.open("one")
    put(saver, "t", "1", {"n": 1})
    made = large_put("2")
    with transactional(topic.broker) as producer:
        session = uuid.uuid4().bytes
        producer.begin_transaction()
        produce(producer, topic, made[:-1], session)
        if ends == "abort":
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        put(saver, "t", "3", {"n": 3}, parent="1")
        assert ids(saver, "t") == ["3", "1"]
        assert fragments(saver) == (0 if ends == "abort" else len(made) - 1)
        producer.begin_transaction()
        produce(producer, topic, made[-1:], session, len(made))
        producer.commit_transaction()
        assert within(20, lambda: ids(saver, "t") == (["3", "1"] if ends == "abort" else ["3", "2", "1"]))
    if ends == "commit":
        assert values(saver, "t", "2") == value_of("2")
    assert fragments(saver) == 0
    assert rows(topic.open("two")) == rows(saver)


def test_transactions_that_cross_each_other(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enveloping, "RECORD_BYTES", SMALL)
    saver = topic.open("one")
    assert ids(saver, "t") == []
    made = [large_put("1"), large_put("2")]
    with transactional(topic.broker) as one, transactional(topic.broker) as two:
        sessions = [uuid.uuid4().bytes, uuid.uuid4().bytes]
        one.begin_transaction()
        two.begin_transaction()
        for number, records in enumerate(zip(*made, strict=False), 1):
            for producer, session, record in zip((one, two), sessions, records, strict=True):
                produce(producer, topic, [record], session, number)
        done = min(map(len, made))
        for producer, session, records in zip((one, two), sessions, made, strict=True):
            produce(producer, topic, records[done:], session, done + 1)
        two.commit_transaction()
        one.commit_transaction()
    assert within(20, lambda: ids(saver, "t") == ["2", "1"])
    assert [values(saver, "t", "1"), values(saver, "t", "2")] == [value_of("1"), value_of("2")]
    assert fragments(saver) == 0
    assert rows(topic.open("two")) == rows(saver)


@contextmanager
def transactional(broker: Broker) -> Iterator[Any]:
    """A producer of somebody's."""
    producer = KafkaProducer(**broker.client, transactional_id=uuid.uuid4().hex, enable_idempotence=True)
    try:
        producer.init_transactions()
        yield producer
    finally:
        producer.close(timeout=10)


def produce(producer: Any, topic: Topic, made: Sequence[Record], session: bytes, first: int = 1) -> None:
    """Write records as a saver of this session would."""
    for number, record in enumerate(made, first):
        headers = stamps.stamped(record, session, number, time.time_ns() // 1000, None)
        producer.send(
            f"{topic.name}.checkpoints", key=record.key, value=record.value, headers=headers, partition=0
        ).get(10)
