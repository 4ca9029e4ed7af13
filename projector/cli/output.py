"""How commands print: tables that fit what is in them, or one JSON document.

What memories say is data: it is never read as markup, and characters that would steer the
terminal are shown escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eventstore.status import QuarantinedEvent

_UNBOUNDED = 1_000_000


def emit(document: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def emit_line(document: Any) -> None:
    """One JSON document on one line, at once."""
    print(json.dumps(document, ensure_ascii=False), flush=True)


def complain(text: str) -> None:
    """One line on standard error."""
    Console(stderr=True).print(plain(text), soft_wrap=True)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the same columns; a column that is empty throughout is left out.

    On a terminal cells are folded to its width; elsewhere each row stays on one line. No rows
    print nothing.
    """
    if not rows:
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=_UNBOUNDED)
    table = Table()
    used = [name for name in rows[0] if any(row[name] not in (None, "") for row in rows)]
    for name in used:
        # Folded, never cut: half a key is of no use. Values are what people came to read.
        table.add_column(name, overflow="fold", min_width=24 if name == "value" else None)
    for row in rows:
        table.add_row(*(Text("" if row[name] is None else plain(str(row[name]))) for name in used))
    console.print(table)


def plain(text: str) -> str:
    """Text without characters that would steer a terminal; those are shown as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_quarantine(events: Sequence[QuarantinedEvent]) -> None:
    """A table of events that were set aside."""
    print_table(
        [
            {
                "partition": each.partition,
                "offset": each.offset,
                "when (UTC)": when(each.at),
                "memory": None if each.key is None else "/".join([*(each.namespace or ()), each.key]),
                "set aside because": each.reason,
            }
            for each in events
        ]
    )


def when(at: datetime) -> str:
    """A time of the log, to the millisecond; the log's times are UTC."""
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def compact(value: Any) -> str:
    """A value on one line."""
    return json.dumps(value, ensure_ascii=False)
