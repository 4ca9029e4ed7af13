"""The benchmark of savers: each is measured and ends with the same state, and what is missing is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import checkpoints
from benchmarks.checkpoints import CALLS, KILLS, Measured


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Measured]:
    folder = tmp_path_factory.mktemp("benchmark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "CALLS", dict.fromkeys(CALLS, 3))
        patch.setattr(checkpoints, "KILLS", 1)
        measured = checkpoints.measure(3, server=None, directory=folder)
    assert list(folder.iterdir()) == []
    return measured


def test_every_saver_is_measured_and_right(found: dict[str, Measured]) -> None:
    assert checkpoints.wrong(found) == []
    for name, each in found.items():
        if name == "postgres":
            assert each.reason == "not asked for" and not each.calls
            continue
        assert each.figures["messages"] == 12
        assert {act: len(times) for act, times in each.calls.items() if act in CALLS} == dict.fromkeys(
            CALLS, 2
        )
        assert all(seconds > 0 for times in each.calls.values() for seconds in times)
        assert ("resume after a kill" in each.calls) == (name != "memory")
        assert ("on disk, bytes" in each.figures) == (name != "memory")
    ours = found["eventsaver"].figures
    assert ours["on disk, bytes"] == ours["log, bytes"] + ours["view, bytes"] > 0
    assert KILLS > 1


def test_another_state_is_told(found: dict[str, Measured]) -> None:
    other = {**found, "sqlite": Measured(figures={"messages": 11.0})}
    assert checkpoints.wrong(other) == ["sqlite"]


def test_the_command_prints_and_writes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: dict[str, Measured],
) -> None:
    monkeypatch.setattr(checkpoints, "measure", lambda turns, **_: found)
    assert checkpoints.main(["--turns", "3", "--postgres", "none", "--json", str(tmp_path / "out.json")]) == 0
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["turns"] == 3
    assert set(written["savers"]["eventsaver"]["p50"]) >= set(CALLS)
    shown = capsys.readouterr().out
    assert "EventSaver" in shown and "without PostgresSaver: not asked for" in shown
