"""The ``projector`` command: what can be thrown away and made again, looked after.

Exit codes: 0 done and clean, 1 a view differs, an event still cannot be decoded or a snapshot was
not used, 2 wrong usage, a damaged log, or an error that says what to do, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import sys

import typer

from eventstore.errors import EventStoreError
from projector.cli import reembed, run, views
from projector.cli.output import complain

app = typer.Typer(
    name="projector",
    help="Look after the views of an event-sourced memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.command("status")(views.status)
app.command("rebuild")(views.rebuild)
app.command("retry")(views.retry)
app.command("verify")(views.verify)
app.command("reembed")(reembed.reembed)
app.command("snapshot")(views.snapshot)
app.command("start-from")(views.start)


def main() -> None:
    """Run the command line; errors of this project become one line and exit code 2."""
    try:
        app()
    except EventStoreError as error:
        complain(f"{type(error).__name__}: {error}")
        sys.exit(2)
