"""Commands about views: rebuild, retry, verify, status, snapshot, start-from.

They look at log and view directories from outside, so they work beside processes that have the
store open, and none of them takes a view directory from those.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.logging import RichHandler

from eventstore.status import QuarantinedEvent
from projector.cli.items import Json
from projector.cli.output import complain, emit, print_quarantine, print_table
from projector.integrity import Report, verify_at
from projector.rebuild import Rebuilt, rebuild_at
from projector.retry import retry_at
from projector.snapshot import start_from, take_at
from projector.standing import Standing, standing

Store = Annotated[str, typer.Argument(help="Folder of the store, or kafka://host:port/topic.")]
Views = Annotated[Path | None, typer.Option(help="Where the views are, if not in their usual place.")]
Folder = Annotated[Path, typer.Argument(help="Folder of the snapshot.")]
INTERRUPTED = 130


def rebuild(
    store: Store,
    views: Views = None,
    view: Annotated[int | None, typer.Option(min=0, help="Only the view directory of this number.")] = None,
    quarantine: Annotated[
        bool, typer.Option("--quarantine", help="Set events aside that cannot be applied, and go on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Build views anew from the log, beside those in use, and exchange them.

    Ctrl-C stops it; the next rebuild continues.
    """
    say_more()
    try:
        with _without_collector():
            done = rebuild_at(store, views=views, number=view, quarantine=quarantine)
    except KeyboardInterrupt:
        complain("stopped; the next rebuild continues from there")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        emit(_rebuilt_json(done))
        return
    _print_rebuilt(done)
    if not done:
        complain("there is no view to rebuild; the next open makes one")


def retry(store: Store, views: Views = None, as_json: Json = False) -> None:
    """Apply the events that were set aside, by a rebuild, if every one of them can be decoded by now."""
    say_more()
    try:
        with _without_collector():
            done = retry_at(store, views=views)
    except KeyboardInterrupt:
        complain("stopped; nothing is lost, retry again")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        emit({**done.model_dump(mode="json"), "rebuilt": _rebuilt_json(done.rebuilt)})
    else:
        print_quarantine(done.still)
        _print_rebuilt(done.rebuilt)
        if done.still:
            complain(f"{len(done.still)} of {done.quarantined} events still cannot be applied")
        elif not done.quarantined:
            complain("no event is set aside")
    raise typer.Exit(done.exit_code)


def _rebuilt_json(done: Sequence[Rebuilt]) -> list[dict[str, Any]]:
    return [{**each.model_dump(mode="json"), "rate": each.rate} for each in done]


def _print_rebuilt(done: Sequence[Rebuilt]) -> None:
    print_table(
        [
            {
                "view": each.directory,
                "outcome": each.outcome,
                "position": each.position,
                "events": each.events,
                "continued": each.continued or None,
                "quarantined": each.quarantined or None,
                "seconds": round(each.seconds, 1),
                "events/s": round(each.rate),
            }
            for each in done
        ]
    )


def verify(store: Store, views: Views = None, as_json: Json = False) -> None:
    """Read the whole log, and hold every view against a replay of it."""
    say_more()
    with _without_collector():
        reports = verify_at(store, views=views)
    if as_json:
        emit([{**report.model_dump(), "exit_code": report.exit_code} for report in reports])
    else:
        print_table([_verified(report) for report in reports])
        for report in reports:
            _name_the_first(report)
    raise typer.Exit(max(report.exit_code for report in reports))


def status(store: Store, views: Views = None, as_json: Json = False) -> None:
    """Print where the log ends, and of each view where it stands and who has it."""
    found = standing(store, views=views)
    if as_json:
        emit(found.model_dump(mode="json"))
    else:
        _print_standing(found)
    beside = None if found.checkpoints is None else found.checkpoints.problem
    problems = [problem for problem in (found.problem, beside) if problem is not None]
    for problem in problems:
        complain(problem)
    if problems:
        raise typer.Exit(2)


def _print_standing(found: Standing) -> None:
    logs = [found] if found.checkpoints is None else [found, found.checkpoints]
    print_table(
        [{"log": each.log, "log id": each.log_id, "end": each.end, "bytes": each.bytes} for each in logs]
    )
    print_table(
        [
            {
                "view": each.directory,
                "position": each.position,
                "lag": each.lag,
                "memories": each.memories,
                "threads": each.threads,
                "quarantined": each.quarantined or None,
                "owner": each.owner,
                "rebuild": each.rebuild,
                "bytes": each.bytes,
                "problem": each.problem,
            }
            for log in logs
            for each in log.views
        ]
    )
    for log in logs:
        print_quarantine(_together(log))


def snapshot(store: Store, folder: Folder, views: Views = None, as_json: Json = False) -> None:
    """Copy a view into a folder, to start from later; a snapshot there is replaced."""
    say_more()
    made = take_at(store, folder, views=views)
    if as_json:
        emit(made.model_dump())
        return
    print_table(
        [{"folder": str(folder), "position": made.position, "files": len(made.files), "bytes": made.size}]
    )


def start(store: Store, folder: Folder, views: Views = None) -> None:
    """Put a snapshot in the place of a view that no process has; the next open catches up from it."""
    if start_from(folder, store, views=views) is None:
        complain("the snapshot was not used; views are made from the log as ever")
        raise typer.Exit(1)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Folding makes no cycles of objects; looking for them takes a tenth of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def say_more() -> None:
    """Progress where there is no terminal, and warnings, go to standard error."""
    logger = logging.getLogger("projector")
    if not logger.handlers:
        handler = RichHandler(console=Console(stderr=True), show_path=False, markup=False)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)


def _verified(report: Report) -> dict[str, Any]:
    return {
        "view": report.view or "none",
        "result": ("clean", "differs", "log damaged")[report.exit_code],
        "position": report.position,
        "log end": report.end,
        "records read": report.records,
        "rows compared": sum(report.rows.values()),
        "differences": sum(report.differences.values()),
        "seconds": round(report.seconds, 1),
    }


def _name_the_first(report: Report) -> None:
    if report.damage is not None:
        complain(f"LogDamaged: {report.damage}")
    first = report.first
    if first is None:
        return
    memory = "/".join([*(first.namespace or []), *([] if first.key is None else [first.key])])
    about = f" of {memory}" if memory else ""
    place = f" at {first.position}" if first.position else ""
    complain(
        f"first difference, in {first.family}{about}{place}: expected {first.expected}, found {first.found}"
    )


def _together(found: Standing) -> list[QuarantinedEvent]:
    """What any view has set aside; mostly they have the same."""
    listed = {(each.partition, each.offset): each for view in found.views for each in view.quarantine}
    return [each for _, each in sorted(listed.items())]
