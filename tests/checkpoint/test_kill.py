"""A process killed at any moment loses no acknowledged call and leaves nothing half visible."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.checkpoint.kit import records, type_of
from tests.kafka.broker import Broker
from tests.kafka.kit import new_name, url
from tests.scenarios.kit import ROOT

KILLS = int(os.environ.get("EVENTSTORE_KILLS", "8"))


def run(name: str, *arguments: object, timeout: float = 110) -> list[Any]:
    child = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.children", name, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert child.returncode == 0, child.stdout[-4000:] + child.stderr[-4000:]
    return [json.loads(line) for line in child.stdout.splitlines()]


def test_a_killed_process_loses_no_checkpoint_it_acknowledged(tmp_path: Path) -> None:
    """Three threads put, write, prune and copy; some states take several records."""
    keeps_its_word(*run("storm", tmp_path / "store", KILLS, 1, timeout=100 + 2 * KILLS))
    assert b"cp.large/1" in set(map(type_of, records(tmp_path / "store")))


def test_a_killed_process_loses_nothing_on_a_topic(kafka_broker: Broker, tmp_path: Path) -> None:
    """Nor does anything come twice that it had sent and not heard of."""
    kills = max(3, KILLS // 4)
    where = url(kafka_broker, new_name(), partitions=3, put_timeout=10)
    # Fewer: a transaction that was killed holds the next process up until it times out.
    keeps_its_word(*run("storm", tmp_path / "store", kills, 1, where, timeout=100 + 4 * kills), least=2)


def keeps_its_word(storm: dict[str, int], end: dict[str, Any], least: int = 8) -> None:
    assert storm["acknowledged"] > least
    assert "failed" not in end, end
    assert end["equal"], "a rebuild from the log differs from the view"
    assert end["left"] == 0
    assert end["rows"] > 20
