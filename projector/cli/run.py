"""``projector run``: keep a view of a log for as long as the process lives."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from eventstore.config import StoreConfig
from eventstore.errors import InvalidConfig
from projector import logs

Store = Annotated[str, typer.Argument(help="Folder of the store, or kafka://host:port/topic.")]
Level = Literal["debug", "info", "warning", "error"]


def run(
    store: Store,
    views: Annotated[
        Path | None, typer.Option(help="Where the views are, if not in their usual place.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Address of /healthz and /metrics.")] = "127.0.0.1",
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of /healthz and /metrics; 0 is any free one.")
    ] = 9464,
    max_lag: Annotated[
        float, typer.Option(min=0.0, help="Seconds the view may be behind and still be healthy.")
    ] = 30.0,
    follow_interval: Annotated[
        float,
        typer.Option(min=0.0005, help="Seconds between looks at the embedded log; Kafka tells by itself."),
    ] = 0.002,
    cache_mib: Annotated[int, typer.Option(min=1, help="MiB of RocksDB block cache.")] = 64,
    exclusive: Annotated[
        bool, typer.Option("--exclusive", help="Fail when another process has the first view directory.")
    ] = False,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Set events aside that cannot be applied, and go on.")
    ] = False,
    log_format: Annotated[Literal["json", "text"], typer.Option(help="Form of the log lines.")] = "json",
    log_level: Annotated[Level, typer.Option(help="Least important level that is logged.")] = "info",
) -> None:
    """Keep a view of a log: catch up, follow, and answer for it over HTTP.

    SIGTERM and Ctrl-C stop it cleanly, with exit code 0.
    """
    logs.set_up(log_format, log_level)
    config = StoreConfig(
        follow_interval=follow_interval,
        cache_bytes=cache_mib << 20,
        on_undecodable="quarantine" if quarantine else "stop",
    )
    service = _service()
    settings = service.Settings(host=metrics_host, port=metrics_port, max_lag=max_lag, exclusive=exclusive)
    service.Service(store, views, config, settings).run()


def _service() -> Any:
    try:
        # Only this command needs the metrics client.
        return importlib.import_module("projector.service")
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"projector run needs {error.name}: pip install 'eventstore-langgraph[service]'"
        ) from error
