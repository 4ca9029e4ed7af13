"""What can become of a topic behind the store's back, and what is in it that no store wrote."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest
from kafka.admin import NewPartitions
from langgraph.store.base import PutOp
from typer.testing import CliRunner

from eventstore import EventStore
from eventstore.errors import (
    InvalidConfig,
    LimitExceeded,
    LogMismatch,
    LogUnavailable,
    OutcomeUnknown,
    UndecodableEvent,
)
from eventstore.keys import encode_item
from eventstore.log.kafka import KafkaLog
from projector.cli.projector import app as projector
from projector.standing import standing
from tests.kafka.broker import Broker
from tests.kafka.kit import (
    NewPlace,
    Place,
    admin_of,
    event,
    keys_in,
    produce,
    runtime_of,
    state,
    stranger,
    took,
    within,
)

WATCHED = {"metadata_max_age": 0.3}


def fill(store: EventStore, count: int, user: str = "u") -> None:
    for n in range(count):
        store.put((user,), f"k{n}", {"n": n})


def stops(store: EventStore) -> str:
    """What stopped the projection of a store, which goes on reading."""
    assert within(5, lambda: runtime_of(store).stopped is not None)
    return str(runtime_of(store).stopped)


# ---------------------------------------------------------------------- deleted, made anew, cut, grown


def test_deleted_while_open(kafka_broker: Broker, new_place: NewPlace) -> None:
    place = new_place(kafka_broker, **WATCHED)
    store = place.open()
    fill(store, 5)
    place.delete()
    assert "was deleted while it was open" in stops(store)
    with pytest.raises(LogMismatch):
        store.put(("u",), "k", {"n": 1})
    assert len(keys_in(store, "u")) == 5


def test_status_of_a_topic_that_is_gone_says_so(
    kafka_broker: Broker, new_place: NewPlace, tmp_path: Path
) -> None:
    """Of the store that has it open, and from outside; looking does not make the topic."""
    place = new_place(kafka_broker, **WATCHED)
    store = place.open()
    fill(store, 5)
    place.delete()
    assert "was deleted while it was open" in stops(store)
    status = store.status()
    assert "was deleted while it was open" in str(status.trouble)
    assert (status.end, status.lag, status.applied, status.memories) == (None, None, "5", 5)
    views = place.folder / f"{place.topic}-views"
    for _ in range(2):
        found = standing(place.url, views=views)
        assert "there is no topic at" in str(found.problem) and found.end is None
        (view,) = found.views
        assert (view.position, view.memories, view.lag, view.problem) == ("5", 5, None, None)
    done = CliRunner().invoke(projector, ["status", place.url, "--views", str(views)])
    assert done.exit_code == 2 and str(views) in done.stdout and "there is no topic" in done.output
    with pytest.raises(InvalidConfig, match="there is no topic"):
        standing(place.url, views=tmp_path / "none")


def test_made_anew_while_open(kafka_broker: Broker, new_place: NewPlace) -> None:
    place = new_place(kafka_broker, **WATCHED)
    store = place.open()
    fill(store, 5)
    place.delete()
    place.make()
    assert "deleted" in stops(store)
    with pytest.raises(LogMismatch):
        store.put(("u",), "k", {"n": 1})
    with pytest.raises(LogMismatch):
        runtime_of(store).catch_up()
    assert len(keys_in(store, "u")) == 5


def test_made_anew_and_written_to_before_anyone_looked(kafka_broker: Broker, new_place: NewPlace) -> None:
    place = new_place(kafka_broker, metadata_max_age=3600)
    store = place.open()
    fill(store, 5)
    place.delete()
    place.make()
    # The broker takes the record; that its offset was given before shows that this is another topic.
    with pytest.raises((LogMismatch, OutcomeUnknown)):
        store.put(("u",), "k", {"n": 1})
    assert within(5, lambda: refuses(store, LogMismatch))
    assert store.get(("u",), "k") is None


def refuses(store: EventStore, kind: type[Exception]) -> bool:
    try:
        store.put(("u",), "again", {"n": 1})
    except kind:
        return True
    except (LogUnavailable, OutcomeUnknown):
        return False
    return False


def test_made_anew_while_closed(kafka_broker: Broker, new_place: NewPlace) -> None:
    """Scenario S22, for a topic of the same length."""
    place = new_place(kafka_broker)
    store = place.open()
    fill(store, 3)
    store.close()
    place.delete()
    place.make()
    fill(place.open("other"), 5)
    with pytest.raises(LogMismatch, match=r"was built from log .* but found log") as raised:
        place.open()
    assert "remove" in str(raised.value)


def test_a_view_ahead_of_its_topic(kafka_broker: Broker, new_place: NewPlace, tmp_path: object) -> None:
    """Scenario S22: a log that was restored from a copy that ends earlier."""
    place = new_place(kafka_broker)
    store = place.open()
    fill(store, 3)
    runtime = runtime_of(store)
    ahead = runtime.applied.advanced(0, 1000)
    runtime._view.db.default.put(b"m:position", str(ahead).encode())
    store.close()
    with pytest.raises(LogMismatch, match=r"up to 1000, but .* ends at 3"):
        place.open()


def test_cut_in_front_of_the_view(kafka_broker: Broker, new_place: NewPlace) -> None:
    """Scenario S23."""
    place = new_place(kafka_broker)
    store, other = place.open(), place.open("other")
    fill(store, 4)
    other.wait_for(store.position, timeout=5)
    other.close()
    fill(store, 12)
    place.truncate(0, 10)
    with pytest.raises(LogMismatch, match="6 events are gone"):
        place.open("other")
    # Who has read them goes on.
    store.put(("u",), "after", {"n": 1})
    assert len(keys_in(store, "u")) == 13


def test_a_new_view_of_a_topic_that_begins_later(
    kafka_broker: Broker, new_place: NewPlace, caplog: pytest.LogCaptureFixture
) -> None:
    place = new_place(kafka_broker)
    store = place.open()
    fill(store, 6)
    place.truncate(0, 4)
    fresh = place.open("fresh")
    assert keys_in(fresh, "u") == {"k4", "k5"}
    assert any("begins at 4: the 4 events before are gone" in record.message for record in caplog.records)
    fresh.put(("u",), "after", {"n": 1})
    fresh.close()
    place.truncate(0, 7)
    # Nothing is left; that is an end, too.
    with took(0, 10):
        empty = place.open("empty")
    assert keys_in(empty, "u") == set()
    empty.put(("u",), "k", {"n": 1})
    assert keys_in(empty, "u") == {"k"}
    assert keys_in(place.open("fresh"), "u") == {"k4", "k5", "after", "k"}


def test_given_more_partitions(kafka_broker: Broker, new_place: NewPlace) -> None:
    place = new_place(kafka_broker, partitions=2, **WATCHED)
    store = place.open()
    for user in range(20):
        fill(store, 1, f"user{user}")
    with admin_of(kafka_broker) as admin:
        admin.create_partitions({place.topic: NewPartitions(5)})
    assert "was given 5 partitions" in stops(store)
    with pytest.raises(LogMismatch, match="copy"):
        store.put(("u",), "k", {"n": 1})
    assert len(store.search((), limit=100)) == 20
    store.close()
    with pytest.raises(LogMismatch, match="built from 2 partitions, the log has 5"):
        place.open()
    # A new view knows of no other number; the records themselves tell.
    with pytest.raises(LogMismatch, match="belongs into another"):
        place.open("fresh")


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        ({"retention.ms": "604800000"}, "retention.ms=604800000"),
        ({"retention.bytes": "1000000"}, "retention.bytes=1000000"),
        ({"cleanup.policy": "compact"}, "cleanup.policy=compact"),
        ({"message.timestamp.type": "CreateTime"}, "message.timestamp.type=CreateTime"),
    ],
)
def test_settings_that_lose_history_are_refused(place: Place, setting: dict[str, str], shown: str) -> None:
    """Scenario S24."""
    place.make(**setting)
    with pytest.raises(InvalidConfig) as raised:
        place.open()
    assert shown in str(raised.value) and "--add-config" in str(raised.value)
    kept = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
    place.alter(**(kept | {"message.timestamp.type": "LogAppendTime"}))
    assert within(5, lambda: opens(place))


def opens(place: Place) -> bool:
    try:
        place.open()
    except InvalidConfig:
        return False
    return True


def _settings(store: EventStore) -> dict[str, str]:
    """The topic's, as the broker tells them."""
    log = runtime_of(store).log
    assert isinstance(log, KafkaLog)
    return dict(log._questions.settings())


def test_a_topic_is_made_to_keep_everything(place: Place) -> None:
    place.open()
    found = _settings(place.opened[0])
    assert found["retention.ms"] == found["retention.bytes"] == "-1"
    assert found["cleanup.policy"] == "delete" and found["message.timestamp.type"] == "LogAppendTime"


def test_a_missing_topic_is_not_made_when_that_is_off(kafka_broker: Broker, new_place: NewPlace) -> None:
    with pytest.raises(InvalidConfig, match="create is off"):
        new_place(kafka_broker, create="false").open()


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_record_too_large_for_the_topic(
    kafka_broker: Broker, new_place: NewPlace, compression: str | None
) -> None:
    """Scenario S03."""
    more = {} if compression is None else {"compression": compression}
    place = new_place(kafka_broker, max_record_bytes=1 << 20, **more)
    store = place.open()
    store.put(("u",), "k", {"t": "small"})
    end = runtime_of(store).log.high_water_mark()
    big = {"t": "x" * (3 << 20)}
    with pytest.raises(LimitExceeded, match=r"takes up to 3\d{6} bytes .* takes 1048576"):
        store.put(("u",), "k", big)
    with pytest.raises(LimitExceeded):
        store.batch([PutOp(("u",), "a", {"n": 1}), PutOp(("u",), "k", big), PutOp(("v",), "b", {"n": 1})])
    assert store.get(("u",), "k").value == {"t": "small"}
    assert runtime_of(store).log.high_water_mark() == end
    store.put(("u",), "k2", {"t": "y" * 900_000})
    assert keys_in(place.open("fresh"), "u") == {"k", "k2"}


def test_a_limit_lowered_while_open(kafka_broker: Broker, new_place: NewPlace) -> None:
    place = new_place(kafka_broker)
    store = place.open()
    store.put(("u",), "k", {"t": "x" * 50_000})
    place.alter(**{"max.message.bytes": "20000"})
    assert within(5, lambda: _settings(store)["max.message.bytes"] == "20000")
    for _ in range(2):
        with pytest.raises(LimitExceeded, match=r"takes up to 50\d{3} bytes .* takes 20000"):
            store.put(("u",), "k2", {"t": "x" * 50_000})
        store.put(("u",), "small", {"n": 1})
    with pytest.raises(LimitExceeded):
        store.batch([PutOp(("u",), "k3", {"t": "x" * 50_000}), PutOp(("v",), "k3", {"n": 1})])
    store.batch([PutOp(("u",), "k4", {"n": 1}), PutOp(("v",), "k4", {"n": 1})])
    assert keys_in(place.open("fresh")) == {"k", "small", "k4"}


def test_a_limit_lowered_meets_a_batch_first(kafka_broker: Broker, new_place: NewPlace) -> None:
    place = new_place(kafka_broker)
    store = place.open()
    store.batch([PutOp(("u",), "k", {"n": 1}), PutOp(("v",), "k", {"n": 1})])
    place.alter(**{"max.message.bytes": "20000"})
    assert within(5, lambda: _settings(store)["max.message.bytes"] == "20000")
    with pytest.raises(LimitExceeded, match="takes 20000"):
        store.batch([PutOp(("u",), "k3", {"t": "x" * 50_000}), PutOp(("v",), "k3", {"n": 1})])
    with took(0, 5):
        store.batch([PutOp(("u",), "k4", {"n": 1}), PutOp(("v",), "k4", {"n": 1})])
        store.put(("u",), "k5", {"n": 1})
    assert keys_in(place.open("fresh")) == {"k", "k4", "k5"}


# ---------------------------------------------------------------------- records of strangers


@pytest.mark.parametrize("value", [None, b'{"n": 1}', b"\xff\x00"])
def test_a_record_that_no_store_wrote(
    kafka_broker: Broker, new_place: NewPlace, value: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenarios S12 and S21: it stops the projection there, live and in a rebuild, and deletes nothing."""
    place = new_place(kafka_broker)
    store = place.open()
    fill(store, 3)
    with stranger(kafka_broker) as producer:
        producer.send(place.topic, key=encode_item(("u",), "k1"), value=value, partition=0).get(10)
        produce(producer, place.topic, event(("u",), "later", b"{}"), uuid.uuid4().bytes, 1)
    assert "partition 0, offset 3" in stops(store)
    assert keys_in(store, "u") == {"k0", "k1", "k2"}
    with pytest.raises(UndecodableEvent, match="partition 0, offset 3"):
        store.put(("u",), "k", {"n": 1})
    assert "partition 0, offset 3" in str(store.status().stopped)
    assert any(
        record.levelno == logging.ERROR and "the projection stopped" in record.message
        for record in caplog.records
    )
    fresh = place.open("fresh")
    assert state(fresh) == state(store)
    with pytest.raises(UndecodableEvent):
        fresh.delete(("u",), "k1")
