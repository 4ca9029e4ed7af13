"""How commands print: tables that fit what is in them, or one JSON document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table


def emit(document: Any) -> None:
    """One JSON document on standard output."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with the same columns; a column that is empty throughout is left out."""
    used = [name for name in (rows[0] if rows else ()) if any(row[name] not in (None, "") for row in rows)]
    table = Table()
    for name in used:
        # Only values may be long; the rest is worth more in one piece.
        table.add_column(name, no_wrap=name != "value", overflow="fold" if name == "value" else "ellipsis")
    for row in rows:
        table.add_row(*("" if row[name] is None else str(row[name]) for name in used))
    Console().print(table)


def when(at: datetime) -> str:
    """A time of the log, to the millisecond; the log's times are UTC."""
    return at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def compact(value: Any) -> str:
    """A value on one line."""
    return json.dumps(value, ensure_ascii=False)
