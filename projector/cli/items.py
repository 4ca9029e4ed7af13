"""Commands about memories: get, search, namespaces, history.

Each opens the store beside whatever else has it open, reads, and leaves; no memory is refreshed
or written. Namespaces are given with ``/`` between labels, keys as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from langgraph.store.base import BaseStore, Item

from eventstore import EventStore
from eventstore.asof import When
from eventstore.namespaces import check_namespace
from projector.cli.output import compact, complain, emit, plain, print_table, when
from projector.standing import sets_aside

Store = Annotated[Path, typer.Argument(help="Folder of the store.")]
Namespace = Annotated[str, typer.Argument(help="Labels with '/' between them; '' is the whole store.")]
Key = Annotated[str, typer.Argument(help="Key of the memory.")]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs, one document.")]
Limit = Annotated[int, typer.Option(min=1, help="At most so many.")]
AsOf = Annotated[
    str | None, typer.Option("--as-of", help="As it was at this position or time (2026-03-01T12:00Z).")
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        help="As it was when this checkpoint came to be: THREAD:CHECKPOINT, or THREAD for its newest."
    ),
]

_CHECKPOINT: Final = "checkpoint:"
_OF_THREAD: Final = re.compile(r"(.+):([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.DOTALL)


def open_existing(path: Path, actor: str | None = None) -> EventStore:
    """The store in a folder; a folder without one is not made into one.

    Where views have set events aside, a command does so, too: it may be given a view of its own.
    """
    if not (path / "log").is_dir():
        raise typer.BadParameter(f"there is no store in {path}")
    policy = "quarantine" if sets_aside(path) else "stop"
    return EventStore.open(path, actor=actor, config={"on_undecodable": policy})


def moment_of(text: str) -> When:
    """A position, a time in ISO form, or ``checkpoint:`` with a thread and perhaps a checkpoint of it."""
    if re.fullmatch(r"[\d,]+", text):
        return text
    if text.startswith(_CHECKPOINT):
        return checkpoint_of(text.removeprefix(_CHECKPOINT))
    return time_of(text, "neither a position, such as 42, nor checkpoint:THREAD, nor")


def time_of(text: str, what_else: str) -> datetime:
    """A time in ISO form; ``what_else`` it is not, in words before "a time"."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is {what_else} a time, such as 2026-03-01T12:00Z") from None


def checkpoint_of(text: str) -> dict[str, Any]:
    """The config that ``THREAD:CHECKPOINT`` names, or ``THREAD`` alone: its newest checkpoint."""
    # A thread's id may hold colons of its own; LangGraph's checkpoints have UUIDs.
    found = _OF_THREAD.fullmatch(text)
    if found is None:
        return {"configurable": {"thread_id": text}}
    return {"configurable": {"thread_id": found[1], "checkpoint_id": found[2]}}


def as_it_was(opened: EventStore, when: str | None, checkpoint: str | None) -> BaseStore:
    """The store, or the store as of a moment or of a checkpoint."""
    if when is not None and checkpoint is not None:
        raise typer.BadParameter("--as-of and --checkpoint name two moments; give one")
    if checkpoint is not None:
        return opened.as_of(checkpoint_of(checkpoint))
    return opened if when is None else opened.as_of(moment_of(when))


def labels(namespace: str) -> tuple[str, ...]:
    """A namespace from its written form."""
    return check_namespace(namespace.split("/") if namespace else (), empty_ok=True)


def get(
    store: Store,
    namespace: Namespace,
    key: Key,
    as_of: AsOf = None,
    checkpoint: Checkpoint = None,
    as_json: Json = False,
) -> None:
    """Print one memory."""
    with open_existing(store) as opened:
        item = as_it_was(opened, as_of, checkpoint).get(labels(namespace), key, refresh_ttl=False)
    if item is None:
        complain(f"no memory {key!r} in {namespace!r}")
        raise typer.Exit(1)
    if as_json:
        emit(item.dict())
    else:
        _print_items([item])


def search(
    store: Store,
    namespace: Namespace = "",
    where: Annotated[str | None, typer.Option(help="Filter, as JSON.")] = None,
    limit: Limit = 20,
    offset: Annotated[int, typer.Option(min=0, help="Skip so many.")] = 0,
    as_of: AsOf = None,
    checkpoint: Checkpoint = None,
    as_json: Json = False,
) -> None:
    """List memories under a namespace, last updated first."""
    try:
        wanted = None if where is None else json.loads(where)
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"--where is not JSON: {error}") from error
    with open_existing(store) as opened:
        found = as_it_was(opened, as_of, checkpoint).search(
            labels(namespace), filter=wanted, limit=limit, offset=offset, refresh_ttl=False
        )
    if as_json:
        emit([item.dict() for item in found])
    else:
        _print_items(found)


def namespaces(
    store: Store,
    prefix: Annotated[str, typer.Argument(help="Labels with '/' between them; '*' is any one label.")] = "",
    max_depth: Annotated[int | None, typer.Option(min=1, help="Cut longer ones to so many labels.")] = None,
    limit: Limit = 100,
    as_of: AsOf = None,
    checkpoint: Checkpoint = None,
    as_json: Json = False,
) -> None:
    """List namespaces that hold memories."""
    with open_existing(store) as opened:
        found = as_it_was(opened, as_of, checkpoint).list_namespaces(
            prefix=labels(prefix) or None, max_depth=max_depth, limit=limit
        )
    if as_json:
        emit(found)
    else:
        for namespace in found:
            print(plain("/".join(namespace)))


def history(store: Store, namespace: Namespace, key: Key, limit: Limit = 50, as_json: Json = False) -> None:
    """Print how a memory came to be, newest first, deleted ones too."""
    with open_existing(store) as opened:
        versions = opened.history(labels(namespace), key, limit=limit)
    if not versions:
        complain(f"nothing was ever written to {key!r} in {namespace!r}")
        raise typer.Exit(1)
    if as_json:
        emit([version.model_dump(mode="json") for version in versions])
        return
    print_table(
        [
            {
                "version": version.version,
                "what": f"{version.kind}, rejected" if version.rejected else version.kind,
                "offset": version.offset,
                "when (UTC)": when(version.at),
                "actor": version.actor,
                "thread": version.thread,
                "run": version.run,
                "node": version.node,
                "value": None if version.value is None else compact(version.value),
            }
            for version in versions
        ]
    )


def _print_items(found: Sequence[Item]) -> None:
    print_table(
        [
            {
                "namespace": "/".join(item.namespace),
                "key": item.key,
                "updated (UTC)": when(item.updated_at),
                "value": compact(item.value),
            }
            for item in found
        ]
    )
