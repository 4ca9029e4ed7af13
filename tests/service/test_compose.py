"""The compose file starts the projector with options that exist."""

from __future__ import annotations

import typer.main
import yaml

from projector.cli.projector import app
from tests.scenarios.kit import ROOT


def test_the_projector_of_the_compose_file_is_started_as_it_can_be() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    projector = services["projector"]
    name, *options = projector["command"]
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    given = command.make_context(name, options).params
    assert given["store"].startswith("kafka://kafka:19092/")
    assert projector["volumes"] == [f"views:{given['views']}"]
    assert projector["ports"] == [f"127.0.0.1:{given['metrics_port']}:{given['metrics_port']}"]
    assert given["metrics_host"] == "0.0.0.0"
    assert (ROOT / projector["build"]["dockerfile"]).is_file()
    assert projector["depends_on"]["kafka"]["condition"] == "service_healthy"
    assert "healthcheck" in services["kafka"]
