"""Results as tables for people and as JSON for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from rich import box
from rich.table import Table
from rich.text import Text

from benchmarks.cells import BY_NAME, CELLS, Cell, Unit
from benchmarks.figures import Figure, Results, met
from benchmarks.peers import CONTENDERS

_STEPS: Final = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_SIZES: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def main_table(results: Results) -> Table:
    """Every cell of one size: ours, its goal, and each peer with the ratio."""
    names = list(next(iter(results.figures.values())))
    for figures in results.figures.values():
        names.extend(name for name in figures if name not in names)
    ours, peers = names[0], names[1:]
    before, after = results.load_average
    spec = results.spec
    table = Table(
        title=f"{spec.items:,} items, {spec.users:,} users, {spec.dims} dimensions; "
        f"load average {before:.1f} before, {after:.1f} after",
        caption="p50 / p99 of calls, or the median. A ratio above 1: EventStore is that many times better.",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("cell")
    table.add_column(CONTENDERS[ours].title, justify="right")
    table.add_column("goal", justify="right")
    table.add_column("met")
    for name in peers:
        table.add_column(CONTENDERS[name].title, justify="right")
        table.add_column("ratio", justify="right")
    for cell in CELLS:
        figures = results.figures[cell.name]
        row: list[str | Text] = [
            _title(cell, figures[ours]),
            _shown(cell, figures[ours]),
            _goal(cell, results),
            _met(cell, results, ours),
        ]
        for name in peers:
            ratio = results.ratio(cell.name, ours, name)
            row.append(_shown(cell, figures.get(name), name))
            row.append(
                Text("" if ratio is None else f"{ratio:.3g}x", style="red" if ratio and ratio < 1 else "")
            )
        table.add_row(*row)
    return table


def growth_table(several: Sequence[Results]) -> Table:
    """The smallest size beside the largest: how much each cell grows, store by store."""
    first, last = several[0], several[-1]
    names = list(first.figures[CELLS[0].name])
    table = Table(
        title=f"Growth from {first.spec.items:,} to {last.spec.items:,} items",
        caption="How many times more a cell costs. Cells about a user: the user may have grown too, see (n).",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("cell")
    for name in names:
        table.add_column(CONTENDERS[name].title, justify="right")
        table.add_column("x", justify="right")
    for cell in CELLS:
        row: list[str | Text] = [cell.title]
        for name in names:
            pair = [results.figures[cell.name].get(name) for results in (first, last)]
            row.extend(_growth(cell, *pair))
        if any(row[1:]):
            table.add_row(*row)
    return table


def markdown(table: Table) -> str:
    """A table for a page of documentation."""
    rows = list(zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True))
    lines = [[str(column.header) for column in table.columns]]
    lines.append([":---" if column.justify == "left" else "---:" for column in table.columns])
    body = "\n".join(f"| {' | '.join(line)} |" for line in (*lines, *rows))
    return f"### {table.title}\n\n{body}\n"


def as_json(several: Sequence[Results], machine: dict[str, str]) -> dict[str, Any]:
    """Everything that was measured. Times in seconds, sizes in bytes."""
    return {
        "machine": machine,
        "sizes": [
            {
                **dataclasses.asdict(results.spec),
                "users": results.spec.users,
                "load_average": results.load_average,
                "cells": [_cell_json(BY_NAME[name], results) for name in results.figures],
            }
            for results in several
        ],
    }


def _cell_json(cell: Cell, results: Results) -> dict[str, Any]:
    figures = results.figures[cell.name]
    ours = next(iter(figures))
    return {
        "cell": cell.name,
        "unit": cell.unit,
        "goal": None if cell.goal is None else cell.goal.limit_for(results.spec),
        "met": met(cell, results, ours),
        "stores": {
            name: {**dataclasses.asdict(figure), "ratio": results.ratio(cell.name, ours, name)}
            for name, figure in figures.items()
        },
    }


def amount(value: float, unit: Unit) -> str:
    """A quantity with a unit that suits its size."""
    if unit == "per second":
        return f"{value:,.0f}/s"
    steps = _SIZES if unit == "bytes" else _STEPS
    name, step = next(((name, step) for name, step in steps if abs(value) >= step), steps[-1])
    return f"{value / step:.3g} {name}"


def _title(cell: Cell, figure: Figure) -> str:
    return cell.title if figure.candidates is None else f"{cell.title} ({figure.candidates:,})"


def _shown(cell: Cell, figure: Figure | None, name: str | None = None) -> Text:
    if figure is None:
        return Text("")
    if figure.middle is None:
        return Text(figure.reason[:60], style="dim")
    shown = Text(amount(figure.middle, cell.unit))
    if figure.p99 is not None:
        shown.append(f" / {amount(figure.p99, cell.unit)}", style="dim")
    if figure.recall is not None and figure.recall < 1:
        shown.append(f" recall {figure.recall:.3f}")
    if figure.right is not None and figure.right < 1:
        shown.append(f" right {figure.right:.0%}", style="yellow")
    if figure.over:
        shown.append(" over budget, 1 call", style="yellow")
    if figure.reason:
        shown.append(f" {figure.reason}", style="yellow")
    if name is not None and cell.name.startswith("put") and not CONTENDERS[name].durable:
        shown.append(f" {CONTENDERS[name].promise}", style="yellow")
    return shown


def _goal(cell: Cell, results: Results) -> str:
    if cell.goal is None:
        return ""
    sign = "≤" if cell.lower_is_better else "≥"
    recall = f", recall {cell.goal.recall:g}" if cell.goal.recall else ""
    peers = ", first of the durable" if cell.goal.before_durable else ""
    return f"{sign} {amount(cell.goal.limit_for(results.spec), cell.unit)}{recall}{peers}"


def _met(cell: Cell, results: Results, ours: str) -> Text:
    reached = met(cell, results, ours)
    if reached is None:
        return Text("")
    return Text("met", style="green") if reached else Text("not met", style="bold red")


def _growth(cell: Cell, first: Figure | None, last: Figure | None) -> list[str | Text]:
    if first is None or last is None or not first.middle or not last.middle:
        return ["", ""]
    factor = last.middle / first.middle if cell.lower_is_better else first.middle / last.middle
    sizes = [f" ({figure.candidates:,})" if figure.candidates else "" for figure in (first, last)]
    shown = f"{amount(first.middle, cell.unit)}{sizes[0]} → {amount(last.middle, cell.unit)}{sizes[1]}"
    return [shown, f"{factor:.2g}x"]
