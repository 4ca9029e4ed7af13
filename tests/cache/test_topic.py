"""The cache's topic: made with settings that fit a cache, verified apart from the topic of memories."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic

from eventstore import EventStore
from eventstore.cache import Cache, EventCache
from eventstore.errors import InvalidConfig
from tests.kafka.broker import Broker

A_DAY = {"cleanup.policy": "delete,compact", "retention.ms": "86400000"}
STAMPED = {"message.timestamp.type": "LogAppendTime"}


@pytest.fixture
def name(kafka_broker: Broker) -> str:
    return f"c-{uuid.uuid4().hex[:12]}"


def opened(broker: Broker, name: str, views: Path) -> EventStore:
    return EventStore.open(f"kafka://{broker.address}/{name}?partitions=3", views=views)


def make_topic(broker: Broker, name: str, partitions: int, configs: dict[str, str]) -> None:
    with closing(KafkaAdminClient(**broker.client)) as admin:
        admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])


def settings(broker: Broker, name: str) -> dict[str, Any]:
    with closing(KafkaAdminClient(**broker.client)) as admin:
        answer = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)], config_filter="all")
    return {
        key: value["value"] if isinstance(value, dict) else value
        for by_name in answer.values()
        for key, value in by_name[name].items()
    }


@pytest.mark.asyncio
async def test_it_is_made_and_holds_what_is_documented(
    kafka_broker: Broker, name: str, tmp_path: Path
) -> None:
    with opened(kafka_broker, name, tmp_path) as store:
        cache = Cache.from_store(store)
        await cache.cache_set("a secret token", {"n": 1})
        await cache.cache_delete("a secret token")
        EventCache(cache).clear([("g",)])
        found = settings(kafka_broker, f"{name}.cache")
        assert found["cleanup.policy"] == "compact,delete"
        assert found["retention.ms"] == "86400000"
        assert settings(kafka_broker, name)["cleanup.policy"] == "delete"
        at = TopicPartition(f"{name}.cache", 0)
        with closing(KafkaConsumer(**kafka_broker.client)) as consumer:
            assert consumer.partitions_for_topic(at.topic) == {0}
            consumer.assign([at])
            consumer.seek(at, 0)
            records: list[Any] = []
            while len(records) < 4:
                records += consumer.poll(1000).get(at, [])
        kinds = [dict(each.headers)["type"].decode() for each in records]
        assert kinds == ["cache-set/1", "cache-delete/1", "cache-delete/1", "cache-clear/1"]
        assert [each.value for each in records] == [b'{"n":1}', None, None, b"{}"]
        assert {len(each.key) for each in records} == {32}
        assert records[0].key == records[1].key
        assert not any(b"token" in each.key or "token" in str(each.headers) for each in records)


@pytest.mark.parametrize(
    ("partitions", "configs", "message"),
    [
        (1, STAMPED, "cleanup.policy=delete"),
        (1, {**A_DAY, **STAMPED, "retention.ms": "1000"}, "retention.ms=1000"),
        (1, A_DAY, "message.timestamp.type"),
        (2, {**A_DAY, **STAMPED}, "2 partitions"),
    ],
)
def test_a_topic_that_does_not_fit_is_refused(
    kafka_broker: Broker,
    name: str,
    tmp_path: Path,
    partitions: int,
    configs: dict[str, str],
    message: str,
) -> None:
    make_topic(kafka_broker, f"{name}.cache", partitions, configs)
    with opened(kafka_broker, name, tmp_path) as store:
        with pytest.raises(InvalidConfig, match=message):
            Cache.from_store(store)
        store.put(("a",), "k", {"n": 1})


def test_one_that_was_made_to_fit_is_used(kafka_broker: Broker, name: str, tmp_path: Path) -> None:
    make_topic(kafka_broker, f"{name}.cache", 1, {**A_DAY, **STAMPED})
    with opened(kafka_broker, name, tmp_path) as store:
        EventCache(store).set({(("g",), "k"): (1, None)})
        assert EventCache(store).get([(("g",), "k")]) == {(("g",), "k"): 1}
