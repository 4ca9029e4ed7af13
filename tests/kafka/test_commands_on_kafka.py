"""The projector's commands on a topic: status, verify and rebuild, beside a store that is open and alone."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from langgraph.store.base import PutOp
from typer.testing import CliRunner

from eventstore import EventStore
from projector.cli.projector import app
from tests.kafka.broker import Broker
from tests.scenarios.kit import TinyEmbedder, index_of, keys_of


def run(*arguments: str) -> tuple[int, Any]:
    done = CliRunner().invoke(app, [*arguments, "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_a_view_of_a_topic_is_verified_rebuilt_and_described(kafka_broker: Broker, tmp_path: Path) -> None:
    topic = f"kafka://{kafka_broker.address}/commands-{uuid.uuid4().hex}?partitions=3"
    views = tmp_path / "views"
    embedder = TinyEmbedder()
    with EventStore.open(topic, views=views, index=index_of(embedder)) as store:
        for number in range(60):
            store.put((f"u{number % 5}", "m"), f"k{number % 20}", {"n": number, "t": "tea"})
        store.batch([PutOp((f"b{number}",), "k", {"n": number}) for number in range(4)])
        store.delete(("u1", "m"), "k1")
        live, embedded = keys_of(store), embedder.documents
        code, (report,) = run("verify", topic, "--views", str(views))
        assert (code, report["exit_code"], report["differences"]) == (0, 0, {})
        code, (made,) = run("rebuild", topic, "--views", str(views))
        assert (code, made["outcome"]) == (0, "exchanged")
        assert keys_of(store) == live
        store.put(("u0", "m"), "after", {"n": -1})
    code, (report,) = run("verify", topic, "--views", str(views))
    assert (code, report["damage"], report["differences"]) == (0, None, {})
    code, standing = run("status", topic, "--views", str(views))
    (view,) = standing["views"]
    assert (code, view["position"], view["lag"], view["owner"]) == (0, standing["end"], 0, None)
    assert embedder.documents == embedded
