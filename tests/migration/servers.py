"""The servers that other stores need: one that is given, or one started from this machine's programs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.kafka.broker import free_port
from tests.postgres import PostgresUnavailable, programs, started

START_SECONDS = 30.0


class ServerUnavailable(Exception):
    """There is no such server, and this machine cannot start one."""


@contextmanager
def postgres() -> Iterator[str]:
    """A connection string of a PostgreSQL: EVENTSTORE_TEST_POSTGRES, or a server with a new data folder."""
    given = os.environ.get("EVENTSTORE_TEST_POSTGRES")
    if given:
        yield given
        return
    try:
        folder = programs()
    except PostgresUnavailable as unavailable:
        raise ServerUnavailable(str(unavailable)) from None
    with started(folder, {"fsync": "off"}) as address:
        yield address


@contextmanager
def redis() -> Iterator[str]:
    """A URL of a Redis with search and JSON, to be emptied: EVENTSTORE_TEST_REDIS, or started here."""
    given = os.environ.get("EVENTSTORE_TEST_REDIS")
    if given:
        yield given
        return
    command = shutil.which("redis-stack-server")
    if command is None:
        raise ServerUnavailable("no redis-stack-server on the PATH")
    with tempfile.TemporaryDirectory(prefix="eventstore-redis-") as home:
        port = free_port()
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", home]
        with open(Path(home) / "log", "wb") as said:
            server = subprocess.Popen([command, *settings], stdout=said, stderr=said, cwd=home)
        try:
            _wait_for(port, server, Path(home) / "log")
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(10)


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        with closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    server.kill()
    raise ServerUnavailable(f"redis-stack-server does not start: {log.read_text()[-300:].strip()}")
