"""The demonstration's commands: the whole of it, or one process of it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from projector.demo import acts, stage

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="An agent learns in one process and remembers in another.",
)

NewFolder = Annotated[
    Path | None, typer.Option("--data", help="Where to keep the memories (default: a new temporary folder).")
]
Folder = Annotated[
    Path, typer.Option("--data", help="Where the demonstration left its store.", exists=True, file_okay=False)
]


@app.callback(invoke_without_command=True)
def everything(context: typer.Context, data: NewFolder = None) -> None:
    """Run the whole demonstration: two processes, one after the other."""
    # WordLlama turns on INFO for every library when it is imported.
    logging.getLogger().setLevel(logging.WARNING)
    if context.invoked_subcommand is not None:
        return
    if data is not None and data.exists() and any(data.iterdir()):
        raise typer.BadParameter(f"{data} is not empty; name a new folder", param_hint="--data")
    folder = data if data is not None else Path(tempfile.mkdtemp(prefix="eventstore-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    stage.title()
    first = _process("learn", folder)
    stage.remark(f"Process {first} has ended, and its threads with it. What is left is on disk.")
    _process("recall", folder)
    stage.farewell(folder, _short(sys.executable))


@app.command(hidden=True)
def learn(data: Folder) -> None:
    """The first process: an agent is told things and keeps them."""
    acts.learn(data)


@app.command(hidden=True)
def recall(data: Folder) -> None:
    """The second process: an agent that was told nothing remembers."""
    acts.recall(data)


@app.command()
def ask(question: str, data: Folder) -> None:
    """Ask what was remembered, by meaning."""
    acts.ask(data, question)


@app.command()
def memories(data: Folder) -> None:
    """List every memory."""
    acts.memories(data)


def _process(command: str, data: Path) -> int:
    """Run one command in a process of its own; returns its id once it has ended well."""
    sys.stdout.flush()
    child = subprocess.Popen([sys.executable, "-m", "projector.demo", command, "--data", str(data)])
    if child.wait() != 0:
        raise typer.Exit(child.returncode)
    return child.pid


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
