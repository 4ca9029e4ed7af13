"""The topic behind a log: made with settings that keep history, and verified at every start.

Broker defaults delete records after seven days, by size, or by key. A topic that would lose
history is refused, since a memory that cannot be replayed cannot be proved.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, KafkaTimeoutError, TopicAlreadyExistsError

from eventstore.connection import KafkaPlace, where
from eventstore.errors import InvalidConfig
from eventstore.log.kafka.client import common, refused, unreachable

KEPT_FOREVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""What a topic must be set to, so that its history is never deleted."""


class Topic(NamedTuple):
    """What the broker says of a topic."""

    id: str
    """Cluster and topic id: a topic that is deleted and made again has another one."""
    partitions: int
    max_record_bytes: int


def ensure_topic(place: KafkaPlace) -> Topic:
    """The topic, made if it is missing and may be made.

    Raises ``LogUnavailable`` when the cluster does not answer, ``InvalidConfig`` for a topic that
    is missing, or whose settings would lose history.
    """
    try:
        admin = KafkaAdminClient(**common(place), client_id="eventstore-admin")
    except KafkaError as error:
        raise unreachable(place, error) from error
    try:
        found = _describe(admin, place.topic)
        if found is None:
            if not place.options.create:
                raise InvalidConfig(f"there is no topic at {where(place)}, and create is off; make it first")
            _create(admin, place)
            found = _describe(admin, place.topic)
            if found is None:
                raise InvalidConfig(f"{where(place)} was made but does not show; try again")
        settings = _settings(admin, place.topic)
        _refuse_loss(place, settings)
        cluster = admin.describe_cluster()
        return Topic(
            f"{cluster.get('cluster_id')}/{found.get('topic_id')}",
            len(found["partitions"]),
            int(settings["max.message.bytes"]),
        )
    except KafkaTimeoutError as error:
        raise unreachable(place, error) from error
    except KafkaError as error:
        raise refused(place, error) from error
    finally:
        admin.close()


def topic_id(place: KafkaPlace) -> str | None:
    """The id of the topic as it is now; ``None`` when there is none. Raises ``LogUnavailable``."""
    try:
        admin = KafkaAdminClient(**common(place), client_id="eventstore-admin")
    except KafkaError as error:
        raise unreachable(place, error) from error
    try:
        found = _describe(admin, place.topic)
        return (
            None if found is None else f"{admin.describe_cluster().get('cluster_id')}/{found.get('topic_id')}"
        )
    except KafkaError as error:
        raise unreachable(place, error) from error
    finally:
        admin.close()


def _describe(admin: KafkaAdminClient, name: str) -> dict[str, Any] | None:
    for topic in admin.describe_topics([name]):
        if topic["name"] == name and not topic["error_code"] and topic["partitions"]:
            return dict(topic)
    return None


def _create(admin: KafkaAdminClient, place: KafkaPlace) -> None:
    chosen = place.options
    configs = {**KEPT_FOREVER, "message.timestamp.type": "LogAppendTime"}
    configs["max.message.bytes"] = str(chosen.max_record_bytes)
    configs["unclean.leader.election.enable"] = "false"
    if chosen.min_insync_replicas is not None:
        configs["min.insync.replicas"] = str(chosen.min_insync_replicas)
    wanted = {
        "num_partitions": chosen.partitions,
        "replication_factor": chosen.replication_factor or -1,
        "configs": configs,
    }
    # Another process may be first; its settings are verified like any topic's.
    with contextlib.suppress(TopicAlreadyExistsError):
        admin.create_topics({place.topic: wanted}, wait_for_metadata=True)


def _settings(admin: KafkaAdminClient, name: str) -> dict[str, str]:
    asked = ConfigResource(ConfigResourceType.TOPIC, name)
    answer = admin.describe_configs([asked], config_filter="all")
    return {
        key: str(value["value"] if isinstance(value, dict) else value)
        for by_name in answer.values()
        for key, value in by_name[name].items()
    }


def _refuse_loss(place: KafkaPlace, settings: dict[str, str]) -> None:
    for name, wanted in KEPT_FOREVER.items():
        if settings.get(name) != wanted:
            raise InvalidConfig(
                f"{where(place)} has {name}={settings.get(name)}, which loses history; it must be {wanted}. "
                f"Set it (kafka-configs.sh --alter --entity-type topics --entity-name {place.topic} "
                f"--add-config {name}={wanted}), or use a topic that the store makes itself"
            )
