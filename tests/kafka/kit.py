"""What tests of the store on Kafka share: places on a broker, tools of a stranger, whole states compared."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from langgraph.store.base import PutOp

from eventstore import EventStore
from eventstore.codec import encode
from eventstore.errors import VersionConflict
from eventstore.events import Event, Kind
from eventstore.keys import encode_item
from eventstore.log.kafka import stamps
from projector.runtime import OpenRuntime
from tests.kafka.broker import Broker
from tests.scenarios.kit import TinyEmbedder, index_of

ALL = 2**40
OURS = ("eventstore", "kafka")
QUERIES = ("red", "blue green", "yellow")


def new_name() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


def url(broker: Broker, topic: str, **options: object) -> str:
    """Where a topic is, with limits that are short enough for tests."""
    chosen = {"put_timeout": 2, "connect_timeout": 3, "partitions": 1, **options}
    asked = "&".join(f"{name}={value}" for name, value in chosen.items())
    return f"kafka://{broker.address}/{topic}?{asked}"


class Place:
    """One topic of one broker, and stores opened on it; all are closed at the end of the test."""

    def __init__(self, broker: Broker, folder: Path, **options: object) -> None:
        self.broker = broker
        self.topic = new_name()
        self.folder = folder
        self.options = options
        self.opened: list[EventStore] = []

    @property
    def url(self) -> str:
        return url(self.broker, self.topic, **self.options)

    def open(self, views: str = "views", **given: Any) -> EventStore:
        store = EventStore.open(self.url, views=self.folder / f"{self.topic}-{views}", **given)
        self.opened.append(store)
        return store

    def close(self) -> None:
        for store in self.opened:
            store.close()

    def make(self, partitions: int = 1, **configs: str) -> None:
        """Make the topic as a stranger would."""
        kept = {"retention.ms": "-1", "retention.bytes": "-1", "message.timestamp.type": "LogAppendTime"}
        configs = kept | {name.replace("_", "."): value for name, value in configs.items()}
        with admin_of(self.broker) as admin:
            admin.create_topics([NewTopic(self.topic, partitions, 1, topic_configs=configs)])

    def delete(self) -> None:
        with admin_of(self.broker) as admin:
            admin.delete_topics([self.topic])

    def alter(self, **configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        with admin_of(self.broker) as admin:
            admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, self.topic, configs=named)])

    def truncate(self, partition: int, before: int) -> None:
        with admin_of(self.broker) as admin:
            admin.delete_records({TopicPartition(self.topic, partition): before})


@contextmanager
def admin_of(broker: Broker) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(**broker.client)) as admin:
        yield admin


@contextmanager
def stranger(broker: Broker, **settings: Any) -> Iterator[KafkaProducer]:
    """A producer that knows nothing of this project."""
    producer = KafkaProducer(**broker.client, acks="all", enable_idempotence=True, **settings)
    try:
        yield producer
    finally:
        producer.close(timeout=10)


def event(namespace: tuple[str, ...], key: str, value: bytes | None) -> Event:
    return Event(
        Kind.DELETE if value is None else Kind.PUT, encode_item(namespace, key), uuid.uuid4().bytes, value
    )


def produce(
    producer: KafkaProducer, topic: str, what: Event, session: bytes, sequence: int, partition: int = 0
) -> int:
    """Write an event as a store with this session would; its offset."""
    record = encode(what)
    headers = stamps.stamped(record, session, sequence, time.time_ns() // 1000, None)
    sent = producer.send(topic, key=record.key, value=record.value, headers=headers, partition=partition)
    return int(sent.get(10).offset)


def runtime_of(store: EventStore) -> OpenRuntime:
    runtime = store._runtime
    assert isinstance(runtime, OpenRuntime)
    return runtime


def keys_in(store: EventStore, *prefix: str) -> set[str]:
    return {item.key for item in store.search(prefix, limit=ALL)}


PLACES = {"partition", "offset", "at"}
TIMES = {"created_at", "updated_at", "expires_at", "event_id"}


def state(store: EventStore, *, places: bool = True, times: bool = True) -> dict[str, Any]:
    """Everything a user can learn from a store. Without places: of a log, wherever it is copied to.
    Without times, too: of the same calls made again."""
    items = store.search((), limit=ALL, refresh_ttl=False)
    without = (set() if places else PLACES) | (set() if times else TIMES)
    return {
        "items": [
            (item.namespace, item.key, item.value, (item.created_at, item.updated_at) if times else None)
            for item in items
        ],
        "namespaces": store.list_namespaces(limit=ALL),
        "history": {
            (item.namespace, item.key): [
                version.model_dump(exclude=without) for version in store.history(item.namespace, item.key)
            ]
            for item in items
        },
        "ranked": {
            query: [
                (hit.namespace, hit.key, round(hit.score or 0.0, 4))
                for hit in store.search((), query=query, limit=ALL, refresh_ttl=False)
            ]
            for query in QUERIES
        }
        if store._embedder is not None
        else None,
    }


def indexed() -> dict[str, Any]:
    return index_of(TinyEmbedder())


def random_writes(store: EventStore, seed: int, count: int) -> None:
    """Puts, deletes, batches and conditions on a few dozen memories of a few users; alike for a seed."""
    chance = random.Random(seed)
    words = ["red", "blue", "green", "yellow"]
    for number in range(count):
        user = f"user{chance.randrange(4)}"
        namespace = (user, chance.choice(["a", "b"]))
        key = f"k{chance.randrange(6)}"
        value = {"t": " ".join(chance.sample(words, 2)), "n": number}
        what = chance.random()
        if what < 0.5:
            store.put(namespace, key, value)
        elif what < 0.6:
            store.put(namespace, key, value, index=False, ttl=chance.choice([None, 600]))
        elif what < 0.75:
            store.delete(namespace, key)
        elif what < 0.85:
            try:
                store.put(namespace, key, value, expected_version=chance.randrange(3))
            except VersionConflict:
                continue
        else:
            ops = [
                (f"user{chance.randrange(4)}", f"k{chance.randrange(6)}", chance.random() < 0.7)
                for _ in range(chance.randrange(2, 5))
            ]
            store.batch([put_op((who, "a"), name, value if alive else None) for who, name, alive in ops])


def put_op(namespace: tuple[str, ...], key: str, value: dict[str, Any] | None) -> Any:
    return PutOp(namespace, key, value)


def within(seconds: float, condition: Callable[[], bool], step: float = 0.02) -> bool:
    """Whether something comes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(step)
    return condition()


def our_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(OURS)}


@contextmanager
def took(least: float, most: float) -> Iterator[None]:
    """That a block takes about so long, in seconds."""
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    assert least <= seconds <= most, f"took {seconds:.2f} s, not {least} to {most}"


NewPlace = Callable[..., Place]
