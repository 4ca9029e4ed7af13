"""The benchmark of the store on Kafka runs, and writes figures that a program can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.kafka import main
from tests.kafka.broker import Broker


def test_it_measures_both_sides(
    kafka_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = tmp_path / "figures.json"
    few = ["--rounds", "1", "--calls", "20", "--seconds", "0.2", "--records", "200"]
    assert main(["--servers", kafka_broker.address, "--json", str(wanted), *few]) == 0
    figures = json.loads(wanted.read_text())
    assert {"put, one caller, p50", "puts with 64 threads", "catching up, a new view"} <= figures.keys()
    for each in figures.values():
        assert each["ours"] > 0 and each["alone"] > 0 and each["ratio"] > 0
    assert "kafka-python alone" in capsys.readouterr().out
