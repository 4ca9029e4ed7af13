"""The benchmark of the store on Kafka runs, and writes figures that a program can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import run, servers
from benchmarks.cells import CELLS
from benchmarks.kafka import main
from benchmarks.race import Limits
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


def test_stores_on_servers_are_measured_beside_the_others(
    kafka_broker: Broker, postgres: str, tmp_path: Path
) -> None:
    (found,) = run.run(
        [300],
        peers=["postgres-flat", "kafka"],
        dims=16,
        limits=Limits(seconds=0.03, turns=1),
        directory=tmp_path,
        console=Console(quiet=True),
        given={servers.POSTGRES: postgres, servers.KAFKA: kafka_broker.address},
    )
    assert run.wrong([found]) == []
    cells = {cell.name: found.figures[cell.name] for cell in CELLS}
    for name, figures in cells.items():
        assert figures["kafka"].middle is not None or figures["kafka"].reason, name
        assert figures["kafka"].right in (None, 1.0), name
    assert cells["get"]["postgres-flat"].right == 1.0
    assert cells["put"]["postgres-flat"].middle is not None
    assert cells["rebuild"]["kafka"].recall == 1.0
    semantic = cells["semantic-40"]["postgres-flat"]
    # Where PostgreSQL has no pgvector, the cell says so.
    assert semantic.recall == 1.0 or "pgvector" in semantic.reason
    assert cells["disk"]["kafka"].reason == "on its server"
