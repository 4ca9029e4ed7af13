"""Commands about the past: events, diff, changes, restore, revert.

The first three only read. What restore and revert write is one event for each memory, under
the name of whoever runs them; revert shows what it would do unless told ``--yes``.
"""

from __future__ import annotations

import contextlib
import getpass
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import typer

from eventstore.difference import ChangedMemory, FieldChange, Memory
from eventstore.errors import InvalidInput
from eventstore.history import Version
from eventstore.undo import Revert, RevertConflict, Undone
from projector.cli.items import Json, Key, Limit, Namespace, Store, labels, moment_of, open_existing
from projector.cli.output import compact, complain, emit, emit_line, plain, print_table, when

Run = Annotated[str | None, typer.Option("--run", help="Only what this run wrote.")]
Thread = Annotated[str | None, typer.Option("--thread", help="Only what this thread wrote.")]
Actor = Annotated[str | None, typer.Option("--actor", help="Only what this actor wrote.")]
Since = Annotated[str | None, typer.Option("--since", help="From this time on, such as 2026-03-01T12:00Z.")]
Until = Annotated[str | None, typer.Option("--until", help="Up to this time.")]
Moment = Annotated[
    str, typer.Argument(help="A position, a time such as 2026-03-01T12:00Z, or checkpoint:THREAD[:ID].")
]
By = Annotated[str | None, typer.Option("--by", help="Who does it, for the history; default: your login.")]


def events(
    store: Store,
    prefix: Namespace = "",
    run: Run = None,
    thread: Thread = None,
    actor: Actor = None,
    since: Since = None,
    until: Until = None,
    after: Annotated[int | None, typer.Option(min=0, help="Only behind this offset.")] = None,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """Print what happened to memories, oldest first, by cause and time."""
    with open_existing(store) as opened:
        found = opened.events(
            labels(prefix),
            run_id=run,
            thread_id=thread,
            actor=actor,
            since=_time(since, "--since"),
            until=_time(until, "--until"),
            limit=limit,
            after=after,
        )
    if as_json:
        emit([version.model_dump(mode="json") for version in found])
    else:
        print_table([_version(version) for version in found])


def diff(store: Store, before: Moment, after: Moment, prefix: Namespace = "", as_json: Json = False) -> None:
    """Print what two moments differ in, field by field."""
    with open_existing(store) as opened:
        found = opened.diff(moment_of(before), moment_of(after), labels(prefix))
    if as_json:
        emit(found.model_dump(mode="json"))
        return
    rows = [
        *(_whole("added", each, None, each.value) for each in found.added),
        *(_whole("removed", each, each.value, None) for each in found.removed),
        *(_field(each, field) for each in found.changed for field in each.fields),
    ]
    print_table(sorted(rows, key=lambda row: str(row["memory"])))


def changes(
    store: Store,
    prefix: Namespace = "",
    start: Annotated[str, typer.Option("--from", help="Position or time to begin at.")] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new ones; Ctrl-C ends it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document a line.")] = False,
) -> None:
    """Print changes in the order of the log, each with the position to go on from."""
    with open_existing(store) as opened, contextlib.suppress(KeyboardInterrupt):
        for change in opened.changes(labels(prefix), moment_of(start) if start else None, follow=follow):
            if as_json:
                emit_line(change.model_dump(mode="json"))
                continue
            value = "" if change.value is None else compact(change.value)
            memory = "/".join([*change.namespace, change.key])
            what = f"{change.kind} (rejected)" if change.rejected else change.kind
            print(plain(f"{change.position}  {when(change.at)}  {what}  {memory}  {value}"), flush=True)


def restore(
    store: Store,
    namespace: Namespace,
    key: Key,
    version: Annotated[int, typer.Argument(min=1, help="Version whose value is to stand again.")],
    by: By = None,
) -> None:
    """Put back one version of a memory, as a new version."""
    with open_existing(store, actor=by or getpass.getuser()) as opened:
        opened.restore(labels(namespace), key, version)


def revert(
    store: Store,
    prefix: Namespace = "",
    run: Run = None,
    thread: Thread = None,
    actor: Actor = None,
    since: Since = None,
    until: Until = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; otherwise it is only shown.")] = False,
    by: By = None,
    as_json: Json = False,
) -> None:
    """Undo what a run, thread or actor wrote; memories others wrote to since are left alone."""
    with open_existing(store, actor=by or getpass.getuser()) as opened:
        report = opened.revert(
            labels(prefix),
            run_id=run,
            thread_id=thread,
            actor=actor,
            since=_time(since, "--since"),
            until=_time(until, "--until"),
            dry_run=not yes,
        )
    if as_json:
        emit(report.model_dump(mode="json"))
    else:
        print_table([*_reverted(report)])
    if not (report.restored or report.deleted or report.conflicts):
        complain("nothing to undo")
        raise typer.Exit(1)
    if report.dry_run and not as_json:
        complain("this is what would happen; --yes does it")


def _time(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    found = moment_of(text)
    if not isinstance(found, datetime):
        raise InvalidInput(f"{option} takes a time, such as 2026-03-01T12:00Z, not {text!r}")
    return found


def _version(version: Version) -> dict[str, Any]:
    return {
        "offset": version.offset,
        "when (UTC)": when(version.at),
        "what": f"{version.kind}, rejected" if version.rejected else version.kind,
        "memory": "/".join([*version.namespace, version.key]),
        "version": version.version,
        "actor": version.actor,
        "thread": version.thread,
        "run": version.run,
        "value": None if version.value is None else compact(version.value),
    }


def _whole(what: str, memory: Memory, before: Any, after: Any) -> dict[str, Any]:
    return {
        "what": what,
        "memory": "/".join([*memory.namespace, memory.key]),
        "field": None,
        "before": None if before is None else compact(before),
        "after": None if after is None else compact(after),
    }


def _field(memory: ChangedMemory, field: FieldChange) -> dict[str, Any]:
    return {
        "what": "changed",
        "memory": "/".join([*memory.namespace, memory.key]),
        "field": "/".join(map(str, field.path)),
        "before": None if field.kind == "added" else compact(field.before),
        "after": None if field.kind == "removed" else compact(field.after),
    }


def _reverted(report: Revert) -> Iterable[dict[str, Any]]:
    verb = "would be " if report.dry_run else ""
    for each in report.restored:
        yield _undone(f"{verb}restored to version {each.restored}", each)
    for each in report.deleted:
        yield _undone(f"{verb}deleted", each)
    for conflict in report.conflicts:
        versions = ", ".join(map(str, conflict.later))
        yield _undone(f"left alone: others wrote version {versions}", conflict)


def _undone(what: str, memory: Undone | RevertConflict) -> dict[str, Any]:
    return {
        "memory": "/".join([*memory.namespace, memory.key]),
        "undone": ", ".join(map(str, memory.undone)),
        "what": what,
    }
