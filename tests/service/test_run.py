"""``projector run`` as a process: health, metrics, catching up, and every way it ends."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore import EventStore
from eventstore.config import StoreConfig
from eventstore.errors import InvalidConfig
from eventstore.log import EmbeddedLog, Record
from projector.lease import Lease
from projector.service import Service
from tests.kafka.broker import Broker
from tests.service.conftest import Open, Run
from tests.service.kit import Place, eventually


def test_it_catches_up_follows_answers_and_stops(
    place: Place, run: Run, opened: Open, tmp_path: Path
) -> None:
    writer = opened(place, views=tmp_path / "other")
    for n in range(40):
        writer.put((f"user-{n % 7}", "notes"), str(n), {"n": n})
    projector = run(place)
    document = projector.until_healthy()
    assert document["reason"] is None
    assert document["directory"] == str(place.views / "0")
    assert document["pid"] == projector.pid == Lease.holder(place.views / "0")
    assert projector.said("caught up")["position"] == str(writer.status().applied)
    for n in range(40, 50):
        writer.put((f"user-{n % 7}", "notes"), str(n), {"n": n})
    end = writer.status().end
    document = eventually(
        lambda: found if (found := projector.health()[1])["position"] == found["end"] == end else None
    )
    assert document["lag_records"] == 0
    metrics = projector.metrics()
    offsets = [int(each) for each in end.split(",")]
    for partition, offset in enumerate(offsets):
        label = f'{{partition="{partition}"}}'
        assert metrics[f"position{label}"] == metrics[f"log_end{label}"] == offset
        assert metrics[f"lag_records{label}"] == metrics[f"lag_seconds{label}"] == 0
    assert metrics["healthy"] == 1
    assert metrics["memories"] == 50
    assert metrics["view_bytes"] > 1_000
    assert 10 <= metrics["applied_records_total"] <= sum(offsets)
    assert "last_error_info" not in "".join(metrics)
    assert projector.end(signal.SIGTERM) == 0
    assert projector.lines[-1]["message"] == "stopped"
    assert projector.lines[-1]["position"] == end
    assert Lease.holder(place.views / "0") is None


def test_after_kill_the_next_one_continues(place: Place, run: Run, opened: Open, tmp_path: Path) -> None:
    first = run(place)
    first.until_healthy()
    store = opened(place)
    for n in range(20):
        store.put(("a",), str(n), {"n": n})
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    writer = opened(place, views=tmp_path / "other")
    writer.put(("a",), "later", {"n": -1})
    assert store.get(("a",), "later") is None
    second = run(place)
    assert second.until_healthy()["directory"] == str(place.views / "0")
    assert eventually(lambda: store.get(("a",), "later"))
    store.put(("a",), "own", {"n": -2})
    assert len(store.search(("a",), limit=100)) == 22
    assert second.end(signal.SIGINT) == 0


def test_a_second_one_takes_the_next_directory_unless_it_is_exclusive(embedded: Place, run: Run) -> None:
    first = run(embedded, "--exclusive")
    first.until_healthy()
    second = run(embedded)
    assert second.until_healthy()["directory"] == str(embedded.views / "1")
    text = run(embedded, "--exclusive").refused()
    assert f"process {first.pid} has the view directory {embedded.views / '0'}" in text
    assert first.end() == second.end() == 0


def test_it_is_not_healthy_once_the_projection_stops(embedded: Place, run: Run, opened: Open) -> None:
    projector = run(embedded)
    projector.until_healthy()
    store = opened(embedded, config={"wait_timeout": 0.3})
    store.put(("a",), "k", {"n": 1})
    log = EmbeddedLog.open(Path(embedded.log) / "log")
    log.append([log.prepare([Record(b"no memory", b"{}", (("type", b"merge/9"),))])])
    log.close()
    _, document = eventually(lambda: found if (found := projector.health())[0] == 503 else None)
    assert document["reason"].startswith("UndecodableEvent")
    assert document["position"] == "1"
    names = eventually(
        lambda: found if "last_error_timestamp_seconds" in (found := projector.metrics()) else None
    )
    assert names["healthy"] == 0
    assert any(name.startswith('last_error_info{message="') for name in names)
    assert store.get(("a",), "k") is not None
    assert projector.end() == 0


def test_it_sets_aside_what_cannot_be_read_if_told_to(embedded: Place, run: Run, opened: Open) -> None:
    opened(embedded, config={"attach": False}).close()
    log = EmbeddedLog.open(Path(embedded.log) / "log")
    log.append([log.prepare([Record(b"no memory", b"{}", (("type", b"merge/9"),))])])
    log.close()
    projector = run(embedded, "--quarantine")
    projector.until_healthy()
    store = opened(embedded, config={"attach": True})
    store.put(("a",), "k", {"n": 1})
    assert store.get(("a",), "k") is not None
    assert store.status().quarantined == projector.metrics()["eventstore_quarantined_events"] == 1
    assert projector.end() == 0
    (told,) = (line["message"] for line in projector.lines if line["level"] == "error")
    assert "partition 0, offset 0" in told


def test_lag_makes_it_unhealthy(embedded: Place, run: Run, opened: Open, tmp_path: Path) -> None:
    projector = run(embedded, "--max-lag", "0.2", "--follow-interval", "600")
    projector.until_healthy()
    opened(embedded, views=tmp_path / "other").put(("a",), "k", {"n": 1})
    _, document = eventually(lambda: found if (found := projector.health())[0] == 503 else None)
    assert "has been behind for" in document["reason"]
    assert document["lag_records"] == 1
    assert document["lag_seconds"] >= 0.2  # rounded
    assert projector.metrics()['lag_seconds{partition="0"}'] > 0.2


def test_it_waits_for_a_broker(new_kafka_broker: Callable[..., Broker], run: Run, tmp_path: Path) -> None:
    broker = new_kafka_broker(running=False)
    place = Place(f"kafka://{broker.address}/late?connect_timeout=0.5", tmp_path / "views")
    projector = run(place)
    _, document = eventually(
        lambda: found if (found := projector.health())[0] == 503 and broker.address in str(found) else None
    )
    assert document["directory"] is None
    broker.start()
    projector.until_healthy()
    broker.stop()
    _, document = eventually(lambda: found if (found := projector.health())[0] == 503 else None)
    assert broker.address in document["reason"]
    assert projector.end() == 0


def test_stopping_while_it_catches_up_keeps_what_was_applied(
    embedded: Place, run: Run, opened: Open, tmp_path: Path
) -> None:
    log = EmbeddedLog.open(_made(Path(embedded.log)) / "log")
    template = _record(
        opened(Place(str(tmp_path / "template"), tmp_path / "t"), views=tmp_path / "t"), tmp_path
    )
    for _ in range(9):
        log.append([log.prepare([template]) for _ in range(2_000)])
    log.close()
    projector = run(embedded)
    eventually(lambda: (projector.health()[1]["position"] or "0") > "0")
    assert projector.end() == 0
    assert "caught up" not in [line["message"] for line in projector.lines]
    assert Lease.holder(embedded.views / "0") is None
    again = run(embedded)
    again.until_healthy()
    assert 0 < again.said("caught up")["records"] < 18_000


def test_wrong_use_is_refused(embedded: Place, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in run(embedded, port=port).refused()
    with pytest.raises(InvalidConfig, match="no projector of its own"):
        Service("memory:", embedded.views, StoreConfig())


def test_unknown_paths_are_not_found(embedded: Place, run: Run) -> None:
    projector = run(embedded, "--log-format", "json", "--log-level", "info")
    with socket.create_connection(("127.0.0.1", projector.port)) as asking:
        asking.sendall(b"GET /other HTTP/1.0\r\n\r\n")
        assert b" 404 " in asking.makefile("rb").readline()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _record(store: EventStore, folder: Path) -> Record:
    """A put as the log carries it."""
    store.put(("a", "b", "c"), "k", {"text": "x" * 200})
    log = EmbeddedLog.open(folder / "template" / "log")
    try:
        [[stored]] = log.read(0)
        return Record(stored.key, stored.value, stored.headers)
    finally:
        log.close()
