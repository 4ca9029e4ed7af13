"""What a projector says of itself in numbers: its lag, its pace, its last error, in Prometheus' text form.

Lag in seconds is for how long the view has been lacking something that the log had: it is 0 when
all is applied, and it grows while nothing is. It is measured here, by looking at the log's end
again and again, so no clock but this process's own is involved.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from eventstore.log.position import Position
from projector import directories

RATE_SECONDS: Final = 10.0
"""Over how long a time the pace is taken."""
MOST_MARKS: Final = 4_096
_NAME: Final = "eventstore_projector_"


class Mark(NamedTuple):
    """Where a partition ended when it was looked at."""

    end: int
    seen: float
    """Seconds of the monotonic clock."""


class Lag(NamedTuple):
    """How far one partition's view is behind."""

    position: int
    end: int
    seconds: float

    @property
    def records(self) -> int:
        """Offsets that the view lacks."""
        return max(0, self.end - self.position)


class Meter:
    """Follows a position and an end. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._marks: list[deque[Mark]] = []
        self._pace: deque[tuple[float, int]] = deque()
        self._first: Position | None = None
        self._position: Position | None = None
        self._end: Position | None = None

    def observe(self, position: Position, end: Position) -> None:
        """The view stands at one position, the log ends at another, now."""
        now = time.monotonic()
        with self._lock:
            if self._first is None:
                self._first = position
                self._marks = [deque() for _ in position]
            self._position, self._end = position, end
            for marks, at, upto in zip(self._marks, position, end, strict=True):
                if not marks or upto > marks[-1].end:
                    if len(marks) < MOST_MARKS:
                        marks.append(Mark(upto, now))
                    else:
                        marks[-1] = marks[-1]._replace(end=upto)
                while marks and marks[0].end <= at:
                    marks.popleft()
            self._pace.append((now, self._first.behind(position)))
            while now - self._pace[0][0] > RATE_SECONDS:
                self._pace.popleft()

    @property
    def applied(self) -> int:
        """Offsets applied since the start."""
        with self._lock:
            return self._pace[-1][1] if self._pace else 0

    @property
    def rate(self) -> float:
        """Offsets applied per second, lately."""
        with self._lock:
            if len(self._pace) < 2:
                return 0.0
            (since, before), (until, after) = self._pace[0], self._pace[-1]
            return (after - before) / (until - since) if until > since else 0.0

    def lags(self) -> list[Lag]:
        """By partition; empty before the first look."""
        now = time.monotonic()
        with self._lock:
            if self._position is None or self._end is None:
                return []
            return [
                Lag(at, end, now - marks[0].seen if marks else 0.0)
                for at, end, marks in zip(self._position, self._end, self._marks, strict=True)
            ]


class Trouble(NamedTuple):
    """The last thing that went wrong."""

    kind: str
    message: str
    at: float
    """Seconds since the epoch."""


class Facts(NamedTuple):
    """What a scrape finds beside the lag."""

    healthy: bool
    memories: int | None
    quarantined: int | None
    directory: Path | None
    trouble: Trouble | None


class Exposition(Collector):
    """The metrics of one projector."""

    def __init__(self, meter: Meter, facts: Callable[[], Facts]) -> None:
        self._meter = meter
        self._facts = facts
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Everything, in the text form."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing is asked for at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        lags, facts = self._meter.lags(), self._facts()
        yield _gauge("healthy", "1 when the view is caught up and followed.", int(facts.healthy))
        yield _by_partition("lag_records", "Offsets that the view lacks.", [each.records for each in lags])
        yield _by_partition(
            "lag_seconds",
            "For how long the view has been lacking something.",
            [each.seconds for each in lags],
        )
        yield _by_partition("position", "The next offset to apply.", [each.position for each in lags])
        yield _by_partition("log_end", "The log's high-water mark.", [each.end for each in lags])
        applied = CounterMetricFamily(_NAME + "applied_records", "Offsets applied since the start.")
        applied.add_metric([], self._meter.applied)
        yield applied
        yield _gauge("applied_records_per_second", "Offsets applied per second, lately.", self._meter.rate)
        if facts.memories is not None:
            yield _gauge("memories", "Live memories in the view.", facts.memories)
        if facts.quarantined is not None:
            yield GaugeMetricFamily(
                "eventstore_quarantined_events",
                "Events that could not be decoded and were set aside.",
                facts.quarantined,
            )
        if facts.directory is not None:
            yield _gauge("view_bytes", "Size of the view on disk.", directories.size(facts.directory))
        if facts.trouble is not None:
            error = InfoMetricFamily(_NAME + "last_error", "The last thing that went wrong.")
            error.add_metric([], {"type": facts.trouble.kind, "message": facts.trouble.message})
            yield error
            yield _gauge("last_error_timestamp_seconds", "When it went wrong.", facts.trouble.at)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(_NAME + name, text, value)


def _by_partition(name: str, text: str, values: list[int] | list[float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(_NAME + name, text, labels=["partition"])
    for partition, value in enumerate(values):
        family.add_metric([str(partition)], value)
    return family
