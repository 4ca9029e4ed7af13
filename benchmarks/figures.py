"""From slices to figures: medians over turns, percentiles over calls, ratios turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from benchmarks.cells import BY_NAME, Cell
from benchmarks.measure import Slice
from benchmarks.peers import CONTENDERS
from benchmarks.workload import Spec

ROUNDING: Final = 0.0005
"""A recall that prints as the one asked for is the one asked for."""


@dataclass(frozen=True)
class Figure:
    """What one store reached in one cell, or why there is no figure."""

    middle: float | None = None
    """Median over the turns; of calls, the median of each turn's median."""
    p99: float | None = None
    count: int = 0
    right: float | None = None
    recall: float | None = None
    candidates: int | None = None
    over: bool = False
    reason: str = ""
    by_turn: tuple[float, ...] = ()

    @classmethod
    def of(cls, slices: Sequence[Slice]) -> Figure:
        failed = [each.error for each in slices if each.error]
        if failed:
            return cls(reason=failed[0])
        middles = tuple(_middle(each) for each in slices if each.times or each.value is not None)
        if not middles:
            return cls(reason=next((each.note for each in slices if each.note), "not run"))
        times = [time for each in slices for time in each.times]
        return cls(
            middle=float(np.median(middles)),
            p99=float(np.percentile(times, 99)) if len(times) > 1 else None,
            count=len(times) or len(middles),
            right=_mean([each.right for each in slices]),
            recall=_mean([each.recall for each in slices]),
            candidates=slices[0].candidates,
            over=any(each.over for each in slices),
            reason=next((each.note for each in slices if each.note), ""),
            by_turn=middles,
        )


@dataclass
class Results:
    """All figures of one size."""

    spec: Spec
    figures: dict[str, dict[str, Figure]] = field(default_factory=dict)
    """By cell, then by store."""
    load_average: tuple[float, float] = (0.0, 0.0)
    """Of the machine over a minute, before and after."""

    def ratio(self, cell: str, ours: str, peer: str) -> float | None:
        """How many times better ours is: the median of the ratios of turns that belong together."""
        mine, theirs = self.figures[cell].get(ours), self.figures[cell].get(peer)
        if mine is None or theirs is None:
            return None
        pairs = [(a, b) for a, b in zip(mine.by_turn, theirs.by_turn, strict=False) if a > 0 and b > 0]
        if not pairs:
            return None
        return float(np.median([b / a if BY_NAME[cell].lower_is_better else a / b for a, b in pairs]))


def met(cell: Cell, results: Results, ours: str) -> bool | None:
    """Whether a goal is met; None where there is none, or nothing was measured."""
    figure = results.figures[cell.name][ours]
    if cell.goal is None or figure.middle is None:
        return None
    limit = cell.goal.limit_for(results.spec)
    enough = figure.middle <= limit if cell.lower_is_better else figure.middle >= limit
    exact = cell.goal.recall == 0 or (figure.recall or 0.0) >= cell.goal.recall - ROUNDING
    right = figure.right is None or figure.right == 1.0
    return enough and exact and right and not (cell.goal.before_durable and _beaten(cell, results, ours))


def _beaten(cell: Cell, results: Results, ours: str) -> bool:
    """Whether a durable peer was better."""
    durable = [name for name in results.figures[cell.name] if name != ours and CONTENDERS[name].durable]
    ratios = [results.ratio(cell.name, ours, name) for name in durable]
    return any(ratio is not None and ratio < 1 for ratio in ratios)


def _middle(each: Slice) -> float:
    return float(np.median(each.times)) if each.value is None else each.value


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return float(np.mean(known)) if known else None
