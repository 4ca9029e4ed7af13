"""What lag and pace mean, and the form of log lines."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from eventstore.log.position import Position
from projector import metrics
from projector.logs import JsonLines, PlainLines
from projector.metrics import Meter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("projector.metrics.time.monotonic", lambda: now[0])
    return now


def test_lag_is_since_when_the_oldest_missing_event_was_seen(clock: list[float]) -> None:
    meter = Meter()
    assert meter.lags() == []
    meter.observe(Position(0, 0), Position(5, 0))
    clock[0] += 2
    meter.observe(Position(0, 0), Position(9, 3))
    clock[0] += 1
    assert [(lag.records, lag.seconds) for lag in meter.lags()] == [(9, 3.0), (3, 1.0)]
    meter.observe(Position(5, 3), Position(9, 3))
    assert [(lag.records, lag.seconds) for lag in meter.lags()] == [(4, 1.0), (0, 0.0)]
    meter.observe(Position(9, 3), Position(9, 3))
    clock[0] += 60
    assert [(lag.records, lag.seconds) for lag in meter.lags()] == [(0, 0.0), (0, 0.0)]


def test_the_pace_is_that_of_the_last_seconds(clock: list[float]) -> None:
    meter = Meter()
    assert (meter.applied, meter.rate) == (0, 0.0)
    meter.observe(Position(100), Position(100))
    for _ in range(5):
        clock[0] += 1
        meter.observe(Position(100 + 50 * int(clock[0] - 100)), Position(1_000))
    assert (meter.applied, meter.rate) == (250, 50.0)
    for _ in range(30):
        clock[0] += 1
        meter.observe(Position(350), Position(1_000))
    assert (meter.applied, meter.rate) == (250, 0.0)


def test_lag_keeps_its_beginning_however_long_it_lasts(clock: list[float]) -> None:
    meter = Meter()
    for second in range(2 * metrics.MOST_MARKS):
        clock[0] = 100.0 + second
        meter.observe(Position(0), Position(second + 1))
    assert meter.lags()[0].seconds == 2 * metrics.MOST_MARKS - 1


def record(**extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "projector.x", "msg": "at %s", "args": ("7",), "levelname": "INFO"})
    vars(made).update(extra)
    return made


def test_log_lines_are_json_with_their_fields() -> None:
    line = json.loads(JsonLines().format(record(position="3,4", seconds=0.5)))
    assert line["message"] == "at 7"
    assert (line["level"], line["logger"]) == ("info", "projector.x")
    assert (line["position"], line["seconds"]) == ("3,4", 0.5)
    assert line["time"].endswith("+00:00")


def test_log_lines_are_one_line_each_errors_included() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        text = JsonLines().format(record(exc_info=sys.exc_info()))
    assert "\n" not in text
    assert "two" in json.loads(text)["exception"]


def test_text_lines_have_the_fields_behind() -> None:
    assert PlainLines().format(record(port=9464)).endswith("projector.x: at 7 port=9464")
