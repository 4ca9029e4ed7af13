"""The ``eventstore`` command: look into a store and its log, tables for people, JSON for programs.

Exit codes: 0 done, 1 not found, 2 wrong usage or an error that says what to do.
"""

from __future__ import annotations

import sys

import typer

from eventstore.errors import EventStoreError
from projector.cli import demo, items, log, past, threads, transfer
from projector.cli.output import complain

app = typer.Typer(
    name="eventstore",
    help="Look into an event-sourced memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("get")(items.get)
app.command("search")(items.search)
app.command("namespaces")(items.namespaces)
app.command("history")(items.history)
app.command("events")(past.events)
app.command("diff")(past.diff)
app.command("changes")(past.changes)
app.command("restore")(past.restore)
app.command("revert")(past.revert)
app.command("threads")(threads.threads)
app.command("prune")(threads.prune)
app.command("status")(log.status)
app.command("log")(log.show)
app.command("export")(transfer.write_out)
app.command("import")(transfer.read_in)
app.command("migrate")(transfer.copy_from)
app.command("demo")(demo.run)


def main() -> None:
    """Run the command line; errors of this project become one line and exit code 2."""
    try:
        app()
    except EventStoreError as error:
        complain(f"{type(error).__name__}: {error}")
        sys.exit(2)
