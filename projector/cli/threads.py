"""Commands about checkpoints: threads, prune.

They open the checkpoints beside whatever else has them open, as the commands about memories do. A
place without checkpoints has no threads, and is not given any.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from eventstore.checkpoint import EventSaver, ThreadKeys
from eventstore.checkpoint.place import find_beside
from eventstore.checkpoint.retention import Age, Thinned
from eventstore.checkpoint.survey import Thread, ThreadCheckpoint
from eventstore.config import StoreConfig
from eventstore.connection import parse
from projector.cli.items import Json, Limit, time_of
from projector.cli.output import complain, emit, print_table, when
from projector.places import Place as LogPlace
from projector.places import as_it_is, open_log, require
from projector.standing import sets_aside

Place = Annotated[str, typer.Argument(help="Folder of the store, or kafka://host:port/topic.")]
Views = Annotated[Path | None, typer.Option(help="Where the views are, if not in their usual place.")]
Keys = Annotated[
    str | None, typer.Option(help="module:factory of the threads' keys, a function without arguments.")
]

_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGE: Final = re.compile(r"(\d+)([mhdw])")


def threads(
    place: Place,
    thread: Annotated[str | None, typer.Argument(help="Only this thread: its checkpoints.")] = None,
    limit: Limit = 100,
    views: Views = None,
    keys: Keys = None,
    as_json: Json = False,
) -> None:
    """List threads, the last active first; or the checkpoints of one, newest first."""
    with _open(place, views, keys) as saver:
        if thread is None:
            _show_threads([] if saver is None else saver.threads(limit=limit), as_json)
            return
        found = [] if saver is None else saver.checkpoints(thread, limit=limit)
    if not found:
        complain(f"there is no checkpoint of thread {thread!r}")
        raise typer.Exit(1)
    _show_checkpoints(found, as_json)


def prune(
    place: Place,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Keep so many of the newest checkpoints of each namespace.")
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Remove checkpoints older than 30d, 12h, or a time.")
    ] = None,
    delete_idle: Annotated[
        str | None,
        typer.Option(help="Remove threads whole whose last checkpoint is older than 90d, or a time."),
    ] = None,
    thread: Annotated[
        list[str] | None, typer.Option("--thread", help="Only this thread; may be repeated.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would go, and change nothing.")
    ] = False,
    views: Views = None,
    keys: Keys = None,
    as_json: Json = False,
) -> None:
    """Remove checkpoints by number and age, and idle threads; the newest of each namespace stays."""
    if keep is None and older_than is None and delete_idle is None:
        raise typer.BadParameter("say what is to go: --keep, --older-than or --delete-idle")
    with _open(place, views, keys) as saver:
        done = (
            []
            if saver is None
            else saver.thin_out(
                thread,
                keep=keep,
                older_than=None if older_than is None else _age(older_than, "--older-than"),
                delete_idle=None if delete_idle is None else _age(delete_idle, "--delete-idle"),
                dry_run=dry_run,
            )
        )
    if as_json:
        emit(_pruned_json(done, dry_run))
        return
    print_table([_pruned(each) for each in done])
    gone, freed = sum(each.dropped for each in done), sum(each.bytes for each in done)
    verb = "would go" if dry_run else "went"
    complain(f"{gone} checkpoints {verb}, {freed} bytes of the view" if done else "nothing to remove")


@contextmanager
def _open(place: str, views: Path | None, keys: str | None) -> Iterator[EventSaver | None]:
    """The checkpoints of a place, ``None`` where there never were any.

    Where views have set events aside, a command does so, too: it may be given a view of its own.
    """
    parsed = parse(place)
    require(parsed)
    if not _has_checkpoints(as_it_is(parsed)):
        yield None
        return
    config = StoreConfig(on_undecodable="quarantine" if sets_aside(place, views=views) else "stop")
    with EventSaver.open(place, views=views, keys=keys_of(keys), config=config) as saver:
        yield saver


def _has_checkpoints(place: LogPlace) -> bool:
    source = open_log(place, StoreConfig())
    try:
        found = find_beside(source, StoreConfig().segment_bytes)
    finally:
        source.close()
    if found is not None:
        found.close()
    return found is not None


def keys_of(name: str | None) -> ThreadKeys | None:
    """The keys that a factory of one's own gives."""
    if name is None:
        return None
    module, _, attribute = name.partition(":")
    try:
        made: ThreadKeys = getattr(importlib.import_module(module), attribute)()
    except (ModuleNotFoundError, AttributeError, ValueError, TypeError) as error:
        raise typer.BadParameter(f"--keys {name!r} gives no keys: {error}") from error
    return made


def _age(text: str, option: str) -> Age:
    found = _AGE.fullmatch(text)
    if found is not None:
        return timedelta(**{_UNITS[found[2]]: int(found[1])})
    return time_of(text, f"neither an age, such as 30d or 12h, nor, for {option},")


def _show_threads(found: Sequence[Thread], as_json: bool) -> None:
    if as_json:
        emit([each.model_dump(mode="json") for each in found])
        return
    print_table(
        [
            {
                "thread": each.thread,
                "checkpoints": each.checkpoints,
                "namespaces": each.namespaces,
                "interrupts": each.interrupts or None,
                "sealed": "yes" if each.sealed else None,
                "bytes": each.bytes,
                "first (UTC)": when(each.created_at),
                "last (UTC)": when(each.updated_at),
            }
            for each in found
        ]
    )


def _show_checkpoints(found: Sequence[ThreadCheckpoint], as_json: bool) -> None:
    if as_json:
        emit([each.model_dump(mode="json") for each in found])
        return
    print_table(
        [
            {
                "namespace": each.namespace,
                "checkpoint": each.checkpoint,
                "parent": each.parent,
                "step": each.step,
                "source": each.source,
                "when (UTC)": when(each.at),
                "run": each.run,
                "channels": each.channels,
                "writes": each.writes or None,
                "interrupts": each.interrupts or None,
                "memories at": each.position,
                "sealed": "yes" if each.sealed else None,
            }
            for each in found
        ]
    )


def _pruned(each: Thinned) -> dict[str, Any]:
    return {
        "thread": each.thread,
        "what": "the whole thread" if each.whole else "checkpoints",
        "gone": each.dropped,
        "of them hidden": each.hidden or None,
        "kept": each.kept,
        "bytes": each.bytes,
    }


def _pruned_json(done: Sequence[Thinned], dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "checkpoints": sum(each.dropped for each in done),
        "bytes": sum(each.bytes for each in done),
        "threads": [each.model_dump(mode="json") for each in done],
    }
