"""Commands that move memories and checkpoints: export, import, migrate.

Where the store has vectors, those of a file are used again; texts without fitting ones are
embedded only if ``--embed`` names the model, else they are kept without vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from eventstore import EventStore
from eventstore.checkpoint import EventSaver
from projector.cli.items import Json, Store, labels, open_existing
from projector.cli.output import complain, emit, print_table
from projector.cli.threads import Keys, keys_of
from projector.transfer import export, import_, migrate, migrate_threads, open_saver, open_source

Embed = Annotated[
    str | None, typer.Option(help="Model for texts without vectors, as 'provider:model'; needs --dims.")
]
Dims = Annotated[int | None, typer.Option(min=1, help="Size of the model's vectors.")]
Field = Annotated[list[str] | None, typer.Option(help="Path whose text is embedded; may be repeated.")]
Prefix = Annotated[str, typer.Option(help="Only under these labels, with '/' between them.")]
By = Annotated[str | None, typer.Option("--by", help="Who does it, for the history.")]
File = Annotated[Path, typer.Argument(help="File of JSON lines.")]


def write_out(
    store: Store,
    file: File,
    prefix: Prefix = "",
    history: Annotated[bool, typer.Option("--history", help="A line for every version.")] = False,
    vectors: Annotated[bool, typer.Option(help="Take vectors along, or leave them out.")] = True,
    as_json: Json = False,
) -> None:
    """Write the memories of a store to a file, one JSON line each."""
    with open_existing(store) as opened:
        done = export(opened, file, prefix=labels(prefix), history=history, vectors=vectors)
    _report(done.model_dump(), as_json)


def read_in(
    store: Store,
    file: File,
    embed: Embed = None,
    dims: Dims = None,
    field: Field = None,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Write the memories of a file into a store, made when missing; those it has are left alone."""
    with EventStore.open(store, index=_index(embed, dims, field)) as opened:
        done = import_(opened, file, actor=by or "import")
    _report(done.model_dump(), as_json)
    if done.conflicts:
        complain(f"{done.conflicts} versions were left out: the store has another history of their memories")


def copy_from(
    source: Annotated[
        str,
        typer.Argument(help="postgresql://…, redis://…, sqlite:path, or module:factory of a store or saver."),
    ],
    store: Store,
    prefix: Prefix = "",
    ttl: Annotated[float | None, typer.Option(help="Minutes to live of each memory.")] = None,
    embed: Embed = None,
    dims: Dims = None,
    field: Field = None,
    by: By = None,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Copy the threads of a saver, not the memories of a store.")
    ] = False,
    thread: Annotated[
        list[str] | None, typer.Option("--thread", help="Only this thread of a saver; may be repeated.")
    ] = None,
    keys: Keys = None,
    as_json: Json = False,
) -> None:
    """Copy the memories of another LangGraph store, or a saver's threads; repeat until nothing is written."""
    if checkpoints:
        if prefix or ttl is not None or embed is not None or dims is not None or field or by:
            raise typer.BadParameter("of a saver's threads only --thread and --keys can be chosen")
        with open_saver(source) as saver, EventSaver.open(store, keys=keys_of(keys)) as ours:
            moved = migrate_threads(saver, ours, threads=thread)
        _report(moved.model_dump(), as_json)
        return
    if thread or keys:
        raise typer.BadParameter("--thread and --keys are for --checkpoints")
    with open_source(source) as theirs, EventStore.open(store, index=_index(embed, dims, field)) as opened:
        done = migrate(theirs, opened, prefix=labels(prefix), ttl=ttl, actor=by or "migrate")
    _report(done.model_dump(), as_json)


def _index(embed: str | None, dims: int | None, field: list[str] | None) -> dict[str, Any] | None:
    if embed is None:
        if dims is not None or field:
            raise typer.BadParameter("--dims and --field need --embed")
        return None
    if dims is None:
        raise typer.BadParameter("--embed needs --dims, the size of the model's vectors")
    return {"embed": embed, "dims": dims, **({"fields": field} if field else {})}


def _report(done: dict[str, Any], as_json: bool) -> None:
    if as_json:
        emit(done)
        return
    done["seconds"] = round(done["seconds"], 1)
    print_table([{"what": name.replace("_", " "), "value": value} for name, value in done.items()])
