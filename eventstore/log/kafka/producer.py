"""One kafka-python producer: how it is made, used and given up.

kafka-python's idempotent producer must not run into its own delivery timeout: it then never
sends again. So that timeout is a day, and deadlines are kept by whoever waits.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any, Final, NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaError

from eventstore.connection import KafkaPlace
from eventstore.log.kafka.client import connect, ms, unreachable
from eventstore.log.kafka.stamps import Outgoing

log = logging.getLogger("eventstore.log.kafka")

DAY_MS: Final = 86_400_000
BATCH_BYTES: Final = 256 * 1024
"""Kafka's default of 16 KiB is one small batch per round trip and partition."""
FLUSH_SECONDS: Final = 1.0


class Ack(NamedTuple):
    """Where a record was written."""

    offset: int
    timestamp_ms: int


def open_producer(
    place: KafkaPlace, session: bytes, max_record_bytes: int, transactional_id: str | None = None
) -> Any:
    """A producer that has met the cluster. Raises ``LogUnavailable`` and ``InvalidConfig``."""
    chosen = place.options
    settings: dict[str, Any] = {
        "client_id": f"eventstore-{session.hex()[:8]}",
        "acks": "all",
        "enable_idempotence": True,
        "metrics_enabled": False,
        "linger_ms": 0,
        "batch_size": min(BATCH_BYTES, max_record_bytes),
        "max_request_size": max_record_bytes + BATCH_BYTES,
        "compression_type": chosen.compression,
        "delivery_timeout_ms": DAY_MS,
        "max_block_ms": ms(chosen.put_timeout),
        "allow_auto_create_topics": False,
    }
    if transactional_id is not None:
        settings |= {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": max(10_000, 2 * ms(chosen.put_timeout)),
        }
    producer = connect(KafkaProducer, place, **settings)
    try:
        # The first send would otherwise wait a back-off for the topic's metadata.
        producer.partitions_for(place.topic)
        if transactional_id is not None:
            # Ends what a producer of the same id has left open, too.
            producer.init_transactions()
    except KafkaError as error:
        give_up(producer)
        raise unreachable(place, error) from error
    return producer


def send(producer: Any, topic: str, out: Outgoing) -> Any:
    """Hand a record over; its future. Raises kafka-python's errors."""
    return producer.send(
        topic,
        key=out.record.key,
        value=out.record.value,
        headers=out.headers,
        partition=out.partition,
    )


def close_producer(producer: Any) -> None:
    """Close a producer within seconds, delivered or not: a plain close may leave its thread behind."""
    try:
        producer.close(timeout=FLUSH_SECONDS)
    except (KafkaError, AssertionError):
        log.warning("a Kafka producer was closed with records it could not deliver")
        give_up(producer)


def give_up(producer: Any) -> None:
    """Close a producer at once; what it still holds fails."""
    with contextlib.suppress(Exception):
        producer._sender.force_close()
        producer.close(timeout=FLUSH_SECONDS)


class Closing:
    """Producers that are given up aside, so that no write waits for it."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def add(self, producer: Any) -> None:
        """Give one up."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(
            target=give_up, args=(producer,), name="eventstore-kafka-close", daemon=True
        )
        thread.start()
        self._threads.append(thread)

    def join(self) -> None:
        """Wait for those on their way, for a while."""
        for thread in self._threads:
            thread.join(2 * FLUSH_SECONDS)
