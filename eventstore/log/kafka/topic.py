"""The topic behind a log: made with settings that keep history, verified at every start, and watched.

Broker defaults delete records after seven days, by size, or by key. A topic that would lose
history is refused, since a memory that cannot be replayed cannot be proved.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Final, NamedTuple

from kafka.errors import KafkaError, KafkaTimeoutError, TopicAlreadyExistsError

from eventstore.connection import KafkaPlace, where
from eventstore.errors import InvalidConfig, LogError
from eventstore.log.kafka.client import unreachable
from eventstore.log.kafka.questions import Questions


class Kept(NamedTuple):
    """For how long a topic keeps records: what it must be set to, and what it is made with."""

    required: Mapping[str, str]
    why: str
    """What is wrong about a topic with other settings."""
    made_with: Mapping[str, str] = {}
    partitions: int | None = None
    """How many it must have; ``None`` for any number."""


KEPT_FOREVER: Final = Kept(
    {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}, "which loses history"
)
"""What holds memories: no record is ever deleted."""
KEPT_A_DAY: Final = Kept(
    {"cleanup.policy": "compact,delete", "retention.ms": "86400000"},
    "which does not fit the life of cache entries",
    {"segment.ms": "3600000", "segment.bytes": "67108864"},
    partitions=1,
)
"""What holds cache entries: the last record of a key, for a day. Clearing needs one order for all keys."""
STAMPED_BY_BROKER: Final = {"message.timestamp.type": "LogAppendTime"}
"""What any must be set to, so that times in the log never step back."""


class Topic(NamedTuple):
    """What the broker says of a topic."""

    id: str
    """Cluster and topic id: a topic that is deleted and made again has another one."""
    partitions: int
    max_record_bytes: int


def ensure_topic(place: KafkaPlace, questions: Questions, kept: Kept = KEPT_FOREVER) -> Topic:
    """The topic, made if it is missing and may be made.

    Raises ``LogUnavailable`` when the cluster does not answer, ``InvalidConfig`` for a topic that
    is missing, or does not keep records as it must.
    """
    found = questions.topic()
    if found is None:
        if not place.options.create:
            raise InvalidConfig(f"there is no topic at {where(place)}, and create is off; make it first")
        _create(place, questions, kept)
        found = questions.topic()
        if found is None:
            raise InvalidConfig(f"{where(place)} was made but does not show; try again")
    settings = questions.settings()
    for name, wanted in kept.required.items():
        # A list of policies has no order.
        if sorted(settings.get(name, "").split(",")) != sorted(wanted.split(",")):
            raise _wrong(place, name, settings.get(name), wanted, kept.why)
    for name, wanted in STAMPED_BY_BROKER.items():
        if settings.get(name) != wanted:
            raise _wrong(place, name, settings.get(name), wanted, "by which times may step back")
    if kept.partitions not in (None, found[1]):
        raise InvalidConfig(
            f"{where(place)} has {found[1]} partitions; it must have {kept.partitions}. Delete it: the store "
            "makes it itself"
        )
    return Topic(*found, int(settings["max.message.bytes"]))


def _create(place: KafkaPlace, questions: Questions, kept: Kept) -> None:
    chosen = place.options
    configs = {**kept.required, **kept.made_with, **STAMPED_BY_BROKER}
    configs["max.message.bytes"] = str(chosen.max_record_bytes)
    configs["unclean.leader.election.enable"] = "false"
    if chosen.min_insync_replicas is not None:
        configs["min.insync.replicas"] = str(chosen.min_insync_replicas)
    wanted = {
        "num_partitions": kept.partitions or chosen.partitions,
        "replication_factor": chosen.replication_factor or -1,
        "configs": configs,
    }
    try:
        # Another process may be first; its settings are verified like any topic's.
        with contextlib.suppress(TopicAlreadyExistsError):
            questions.admin.create_topics({place.topic: wanted}, wait_for_metadata=True)
    except KafkaTimeoutError as error:
        raise unreachable(place, error) from error
    except KafkaError as error:
        raise InvalidConfig(
            f"{where(place)} could not be made: {type(error).__name__}: {error}. "
            "Make it yourself, or choose other options"
        ) from error


def _wrong(place: KafkaPlace, name: str, found: str | None, wanted: str, why: str) -> InvalidConfig:
    return InvalidConfig(
        f"{where(place)} has {name}={found}, {why}; it must be {wanted}. "
        f"Set it (kafka-configs.sh --alter --entity-type topics --entity-name {place.topic} "
        f"--add-config {name}={wanted}), or use a topic that the store makes itself"
    )


class Watch:
    """Looks at regular times whether the topic is still the one that was opened, in a daemon thread.

    Neither producing nor consuming notices that a topic was deleted and made again: both go on
    in the new one, at the old one's offsets.
    """

    def __init__(self, place: KafkaPlace, questions: Questions, topic: Topic) -> None:
        self._place = place
        self._questions = questions
        self._topic = topic
        self._closed = threading.Event()
        self.mismatch: str | None = None
        """What became of the topic, once it is no longer the one that was opened."""
        self._thread = threading.Thread(target=self._run, name="eventstore-kafka-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def look(self) -> str | None:
        """Look now; the mismatch, if there is one. Silent while the cluster does not answer."""
        with contextlib.suppress(LogError, InvalidConfig):
            self.mismatch = self.mismatch or self._compare()
        return self.mismatch

    def stop(self) -> None:
        """Let the thread end; :meth:`join` waits for it."""
        self._closed.set()

    def join(self, timeout: float) -> None:
        """Wait for the thread, which ends at once unless a question of its is still open."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while self.mismatch is None and not self._closed.wait(self._place.options.metadata_max_age):
            self.look()

    def _compare(self) -> str | None:
        at = where(self._place)
        found = self._questions.topic()
        if found is None:
            return (
                f"{at} was deleted while it was open; nothing can be written any more. Reads go on "
                "from the view, which has everything up to its position"
            )
        name, partitions = found
        if name != self._topic.id:
            return (
                f"{at} was deleted and made anew while it was open ({self._topic.id}, now {name}); "
                "what it held is in this view only. Restore the topic, or open the new one with another view"
            )
        if partitions != self._topic.partitions:
            return (
                f"{at} was given {partitions} partitions while it was open; it had {self._topic.partitions}. "
                "Memories are kept in order by partition, so their number cannot change: make a new topic "
                "with as many as you need and copy this one into it (see docs/kafka.md)"
            )
        return None
