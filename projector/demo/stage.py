"""How the demonstration looks: everything printed is printed here.

Plain text when the output is not a terminal; nothing depends on colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from eventstore import Version

console = Console(highlight=False, soft_wrap=False)


def title() -> None:
    """What is about to happen."""
    console.print(
        Panel(
            "An agent learns in one process, which ends. Another process, in another thread, remembers by "
            "meaning. Then one memory changes, and its past is still there.\n\n"
            "[dim]No language model runs here: a plain rule picks the sentences worth keeping, and answers "
            "quote the memory they rest on. The embedding model, the LangGraph graph and the store are real. "
            "No server, no download.[/]",
            title="[bold]eventstore[/]: memory whose source of truth is a log",
            padding=(1, 2),
            width=min(console.width, 96),
        )
    )


def act(number: int, name: str, about: str) -> None:
    """Open one part of the demonstration."""
    console.print()
    console.rule(f"[bold]{number}  {name}[/]", align="left", style="cyan")
    console.print(Text(about, style="dim"))
    console.print()


def says(who: str, text: str) -> None:
    """A line of the conversation."""
    agent = who == "agent"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=7, justify="right")
    grid.add_column()
    grid.add_row(Text(who, style="bold green" if agent else "bold yellow"), Text(text))
    console.print(grid)


def note(text: str) -> None:
    """What the store did, in small print below a line."""
    console.print(Padding(Text(text, style="dim"), (0, 0, 0, 9), expand=False))


def remark(text: str) -> None:
    """A word to the reader."""
    console.print()
    console.print(Text(text, style="italic"))


def history(key: str, versions: Sequence[Version]) -> None:
    """Every version of one memory, newest first."""
    table = Table(title=f"history of “{key}”", title_justify="left", title_style="bold", show_lines=True)
    table.add_column("version", justify="right")
    table.add_column("what, when, and who")
    for one in versions:
        text = one.value["text"] if one.value is not None else "(no value)"
        table.add_row(
            str(one.version),
            Group(
                Text(f"{one.kind}: {text}", style="bold"),
                Text(f"at      {one.at:%Y-%m-%d %H:%M:%S.%f} UTC"),
                Text(f"thread  {one.thread}, node {one.node}, by {one.actor}"),
                Text(f"run     {one.run}"),
            ),
        )
    console.print(table)


def memories(rows: Iterable[tuple[str, str, int]]) -> None:
    """Key, text and number of versions of every memory."""
    table = Table(title="what Maya's agent knows", title_justify="left", title_style="bold")
    table.add_column("key", style="cyan", overflow="fold")
    table.add_column("memory")
    table.add_column("versions", justify="right")
    for key, text, versions in rows:
        table.add_row(key, text, str(versions))
    console.print(table)


def farewell(data: Path, python: str) -> None:
    """Where the data is, and how to look at it again."""
    console.print()
    console.rule("[bold]Look again[/]", align="left", style="cyan")
    console.print("The log and its views are in")
    console.print(f"  {data}", style="bold", soft_wrap=True)
    console.print("Ask it something of your own, or list what it knows, from a new process each time:")
    for command in ('ask "What is my job?"', "memories"):
        console.print(f"  {python} -m projector.demo {command} --data {data}", soft_wrap=True)
    console.print("Or read the log itself, event by event:")
    console.print(f"  {Path(python).with_name('eventstore')} log {data}", soft_wrap=True)
