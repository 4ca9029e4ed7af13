"""Commands about checkpoints on a topic: told, thinned out, verified, rebuilt; none is made by looking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient
from typer.testing import CliRunner

from eventstore import EventStore
from eventstore.checkpoint import EventSaver
from projector.cli import app as eventstore_app
from projector.cli.projector import app as projector_app
from tests.checkpoint_ops.kit import agent, config, talk
from tests.kafka.broker import Broker
from tests.kafka.kit import new_name, url


def run(name: str, *arguments: object) -> tuple[int, Any]:
    app = eventstore_app if name == "eventstore" else projector_app
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_checkpoints_of_a_topic(kafka_broker: Broker, tmp_path: Path) -> None:
    place, views = url(kafka_broker, new_name(), partitions=3), tmp_path / "views"
    with EventSaver.open(place, views=views) as saver:
        graph = agent(saver)
        for number in range(5):
            talk(graph, f"thread {number}", ["hello", "again"])
        code, threads = run("eventstore", "threads", place, "--views", views)
        assert (code, len(threads)) == (0, 5)
        code, found = run("eventstore", "prune", place, "--keep", 2, "--views", views)
        assert (code, len(found["threads"])) == (0, 5)
        assert {each.namespace: 0 for each in saver.checkpoints("thread 1")}.keys() == {
            each.namespace for each in saver.checkpoints("thread 2")
        }
        assert len(list(saver.list(config("thread 1")))) == len(saver.checkpoints("thread 1")) == 4
        talk(graph, "thread 1", ["and on"])
    code, standing = run("projector", "status", place, "--views", views)
    (view,) = standing["checkpoints"]["views"]
    assert code == 0 and standing["checkpoints"]["log"].endswith(".checkpoints")
    assert (view["threads"], view["lag"]) == (5, 0)
    code, reports = run("projector", "verify", place, "--views", views)
    assert (code, [report["exit_code"] for report in reports]) == (0, [0] * len(reports))
    assert reports[-1]["view"] == str(views / "checkpoints" / "0") and reports[-1]["rows"]["parts"]
    code, made = run("projector", "rebuild", place, "--views", views)
    assert (code, {each["outcome"] for each in made}) == (0, {"exchanged"})
    with EventSaver.open(place, views=views) as saver:
        assert agent(saver).get_state(config("thread 1")).next == ()
    assert run("projector", "verify", place, "--views", views)[0] == 0


def test_looking_makes_no_topic(kafka_broker: Broker, tmp_path: Path) -> None:
    topic = new_name()
    place, views = url(kafka_broker, topic), tmp_path / "views"
    EventStore.open(place, views=views).close()
    assert run("projector", "status", place, "--views", views)[1]["checkpoints"] is None
    assert len(run("projector", "verify", place, "--views", views)[1]) == 1
    run("projector", "rebuild", place, "--views", views)
    assert run("eventstore", "threads", place, "--views", views) == (0, [])
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker.address)
    try:
        assert f"{topic}.checkpoints" not in admin.list_topics()
    finally:
        admin.close()
