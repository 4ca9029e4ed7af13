"""A PostgreSQL with a new data folder, started from this machine's programs and removed in the end.

Tests and benchmarks say how it is set; what is done with it is theirs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Final

from tests.kafka.broker import free_port

START_SECONDS: Final = 60


class PostgresUnavailable(Exception):
    """This machine has no programs of a PostgreSQL server."""


def programs(first: Sequence[Path] = ()) -> Path:
    """The folder with initdb and pg_ctl: one of ``first``, else on the ``PATH``, else Debian's newest."""
    on_path = shutil.which("initdb")
    found = [*first] if on_path is None else [*first, Path(on_path).resolve().parent]
    found += [Path(each) for each in sorted(glob("/usr/lib/postgresql/*/bin"), key=_release)[::-1]]
    for folder in found:
        if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
            return folder
    raise PostgresUnavailable("no initdb on the PATH, nor in /usr/lib/postgresql")


@contextmanager
def started(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """The superuser's address of a server that ends with the block. Raises ``RuntimeError``."""
    home = Path(tempfile.mkdtemp(prefix="eventstore-postgres-"))
    user = "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
    if user is not None:
        shutil.chown(home, user)
    data, port = home / "data", free_port()
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    control = [folder / "pg_ctl", "-D", data, "-s", "-w", "-t", str(START_SECONDS)]
    try:
        _run(
            [folder / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"], user
        )
        listening = f"-p {port} -k {home} -c listen_addresses=127.0.0.1 {options}"
        _run([*control, "-l", home / "log", "-o", listening, "start"], user)
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            _run([*control, "-m", "immediate", "stop"], user)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _release(folder: str) -> float:
    name = Path(folder).parent.name
    return float(name) if name.replace(".", "", 1).isdigit() else 0.0


def _run(command: Sequence[str | Path], user: str | None) -> None:
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        user=user,
        cwd="/",
        timeout=START_SECONDS + 30,
    )
    if done.returncode:
        said = f"{done.stdout[-1000:]}{done.stderr[-1000:]}"
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {said}")
