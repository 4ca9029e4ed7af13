"""What is asked of a cluster: offsets, and what it says of the topic. One connection of its own.

A broker answers one request of a connection at a time, so these never stand behind a fetch that
waits for news. Safe for several threads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError, NodeNotReadyError

from eventstore.connection import KafkaPlace, where
from eventstore.errors import InvalidConfig, LogUnavailable
from eventstore.log.kafka.client import connect, ms, unreachable
from eventstore.log.position import Position


class Questions:
    """Each answer comes within ``connect_timeout``, or ``LogUnavailable`` is raised."""

    def __init__(self, place: KafkaPlace) -> None:
        """Raises ``LogUnavailable`` and ``InvalidConfig``."""
        self._place = place
        self._admin = connect(
            KafkaAdminClient,
            place,
            client_id="eventstore-questions",
            request_timeout_ms=ms(place.options.connect_timeout),
        )

    @property
    def admin(self) -> Any:
        """kafka-python's client, for what is done once; it raises Kafka's own errors."""
        return self._admin

    def ends(self, partitions: int, *, committed: bool = True) -> Position:
        """Where each partition ends; ``committed``: what no unfinished transaction holds back."""
        asked = {self._at(number): OffsetSpec.LATEST for number in range(partitions)}
        return self._position(asked, "read_committed" if committed else "read_uncommitted")

    def begins(self, partitions: int) -> Position:
        """The first offset that each partition still has."""
        return self._position({self._at(number): OffsetSpec.EARLIEST for number in range(partitions)})

    def first_since(self, partitions: int, time_ms: int) -> list[int | None]:
        """By partition, the first record appended at or after a time; ``None`` where there is none."""
        found = self._ask({self._at(number): time_ms for number in range(partitions)})
        offsets = [found[self._at(number)].offset for number in range(partitions)]
        return [None if offset < 0 else offset for offset in offsets]

    def topic(self) -> tuple[str, int] | None:
        """Cluster and topic id, and how many partitions there are; ``None`` when there is no topic."""
        name = self._place.topic
        try:
            for found in self._admin.describe_topics([name]):
                if found["name"] == name and not found["error_code"] and found["partitions"]:
                    cluster = self._admin.describe_cluster().get("cluster_id")
                    return f"{cluster}/{found.get('topic_id')}", len(found["partitions"])
        except (KafkaError, RuntimeError) as error:
            raise self._failure(error) from error
        return None

    def settings(self) -> Mapping[str, str]:
        """The topic's settings as they are in effect, the broker's defaults among them."""
        asked = ConfigResource(ConfigResourceType.TOPIC, self._place.topic)
        try:
            answer = self._admin.describe_configs([asked], config_filter="all")
        except (KafkaError, RuntimeError) as error:
            raise self._failure(error) from error
        return {
            key: str(value["value"] if isinstance(value, dict) else value)
            for by_name in answer.values()
            for key, value in by_name[self._place.topic].items()
        }

    def close(self) -> None:
        """Give up the connection; whoever waits for an answer gets an error. Idempotent."""
        self._admin.close()

    def _failure(self, error: Exception) -> LogUnavailable | InvalidConfig:
        if isinstance(error, KafkaError):
            return unreachable(self._place, error)
        return LogUnavailable(f"the connection to {where(self._place)} was closed meanwhile ({error})")

    def _at(self, number: int) -> Any:
        return TopicPartition(self._place.topic, number)

    def _position(self, asked: Mapping[Any, int], isolation: str = "read_uncommitted") -> Position:
        found = self._ask(asked, isolation)
        return Position(*(found[each].offset for each in asked))

    def _ask(self, asked: Mapping[Any, int], isolation: str = "read_uncommitted") -> Mapping[Any, Any]:
        deadline = time.monotonic() + self._place.options.connect_timeout
        while True:
            try:
                answer: Mapping[Any, Any] = self._admin.list_partition_offsets(
                    asked, isolation_level=isolation
                )
                return answer
            except NodeNotReadyError as error:
                # Its connection is being made, for another question.
                if time.monotonic() >= deadline:
                    raise self._failure(error) from error
                time.sleep(0.02)
            except (KafkaError, RuntimeError) as error:
                raise self._failure(error) from error
