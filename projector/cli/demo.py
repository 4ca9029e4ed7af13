"""``eventstore demo``: runs the demonstration, in processes of its own as it is meant to be seen."""

from __future__ import annotations

import subprocess
import sys

import typer


def run() -> None:
    """Watch an agent learn in one process and remember in another."""
    raise typer.Exit(subprocess.run([sys.executable, "-m", "projector.demo"]).returncode)
