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
from glob import glob
from pathlib import Path

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
    folder = _postgres_programs()
    home = Path(tempfile.mkdtemp(prefix="eventstore-postgres-"))
    user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
    if user is not None:
        shutil.chown(home, user)
    data, port = home / "data", _free_port()
    settings = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 -c fsync=off"
    control = [folder / "pg_ctl", "-D", data, "-s", "-w", "-t", str(round(START_SECONDS))]
    try:
        _run(
            [folder / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"], user
        )
        _run([*control, "-l", home / "log", "-o", settings, "start"], user)
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            _run([*control, "-m", "immediate", "stop"], user)
    finally:
        shutil.rmtree(home, ignore_errors=True)


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
        port = _free_port()
        settings = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", home]
        with open(Path(home) / "log", "wb") as said:
            server = subprocess.Popen([command, *settings], stdout=said, stderr=said, cwd=home)
        try:
            _wait_for(port, server, Path(home) / "log")
            yield f"redis://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(10)


def _postgres_programs() -> Path:
    """The folder with initdb and pg_ctl, of the newest release there is."""
    on_path = shutil.which("initdb")
    found = [] if on_path is None else [Path(on_path).resolve().parent]
    found += [Path(each) for each in sorted(glob("/usr/lib/postgresql/*/bin"), key=_release)[::-1]]
    for folder in found:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    raise ServerUnavailable("no initdb on the PATH, nor in /usr/lib/postgresql")


def _release(folder: str) -> float:
    name = Path(folder).parent.name
    return float(name) if name.replace(".", "", 1).isdigit() else 0.0


def _run(command: list[str | Path], user: str | None) -> None:
    done = subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, user=user, cwd="/", timeout=60
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout[-1000:]}{done.stderr}")


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


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
