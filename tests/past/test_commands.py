"""The command line on the past, beside a process that has the store open."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from eventstore import EventStore, acting_as
from eventstore.errors import InvalidInput, NoSuchMoment
from projector.cli import app
from tests.logs import OpenStore, embedded_only
from tests.scenarios.kit import ROOT

ME = ("users", "me")
pytestmark = embedded_only


@pytest.fixture
def store(open_store: OpenStore) -> Iterator[EventStore]:
    """Open for as long as the commands run."""
    store = open_store()
    store.put(ME, "tea", {"likes": "green"})
    with acting_as("intruder", run="bad", thread="t9"):
        store.put(ME, "tea", {"likes": "none", "why": ["x"]})
        store.put(ME, "lie", {"n": 1})
    yield store


@pytest.fixture
def run(store: EventStore, tmp_path: Path) -> Any:
    def run_(command: str, *arguments: str, code: int = 0) -> Result:
        done = CliRunner().invoke(app, [command, str(tmp_path / "store"), *arguments])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, done.output
        return done

    return run_


def test_reads_as_of(store: EventStore, run: Any) -> None:
    at = store.history(ME, "tea")[1].at
    for moment in ("1", at.isoformat(), at.isoformat().replace("+00:00", "Z")):
        got = json.loads(run("get", "users/me", "tea", "--as-of", moment, "--json").stdout)
        assert got["value"] == {"likes": "green"}
        found = json.loads(run("search", "users", "--as-of", moment, "--json").stdout)
        assert [each["key"] for each in found] == ["tea"]
    run("get", "users/me", "lie", "--as-of", "1", code=1)
    assert run("namespaces", "--as-of", "1").stdout == "users/me\n"
    assert run("namespaces", "--as-of", "0").stdout == ""
    where = run("search", "--where", '{"likes": "none"}', "--as-of", "1", "--json")
    assert json.loads(where.stdout) == []


def test_moments_that_cannot_be(run: Any) -> None:
    with pytest.raises(NoSuchMoment, match="end of the log, which is 3"):
        run("get", "users/me", "tea", "--as-of", "4")
    with pytest.raises(InvalidInput, match="time zone"):
        run("get", "users/me", "tea", "--as-of", "2026-03-01T12:00")
    assert "neither a position" in run("get", "users/me", "tea", "--as-of", "monday", code=2).output
    with pytest.raises(InvalidInput, match="--since takes a time"):
        run("events", "--since", "3")


def test_events(run: Any) -> None:
    found = json.loads(run("events", "users", "--run", "bad", "--json").stdout)
    assert [(each["key"], each["offset"], each["actor"]) for each in found] == [
        ("tea", 1, "intruder"),
        ("lie", 2, "intruder"),
    ]
    table = run("events", "--limit", "1").stdout
    assert "users/me/tea" in table and "green" in table and "lie" not in table
    assert [each["offset"] for each in json.loads(run("events", "--after", "1", "--json").stdout)] == [2]
    assert run("events", "--until", "2020-01-01T00:00Z").stdout == ""


def test_diff(run: Any) -> None:
    table = run("diff", "1", "3").stdout
    assert "users/me/lie" in table and '"green"' in table and '["x"]' in table
    found = json.loads(run("diff", "1", "3", "users", "--json").stdout)
    assert found["changed"][0]["fields"][0] == {
        "path": ["likes"],
        "kind": "changed",
        "before": "green",
        "after": "none",
    }


def test_changes(run: Any) -> None:
    lines = run("changes", "--json", "--from", "1").stdout.splitlines()
    assert [json.loads(line)["position"] for line in lines] == ["2", "3"]
    assert run("changes", "users").stdout.splitlines()[2].endswith('put  users/me/lie  {"n": 1}')


def test_changes_follow_until_interrupted(store: EventStore, tmp_path: Path) -> None:
    code = "from projector.cli import main; main()"
    command = [sys.executable, "-c", code, "changes", str(tmp_path / "store"), "-f", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        for _ in range(3):
            following.stdout.readline()
        store.put(ME, "late", {"n": 2})
        assert json.loads(following.stdout.readline())["key"] == "late"
        following.send_signal(2)
        assert following.wait(10) == 0


def test_restore(store: EventStore, run: Any) -> None:
    run("restore", "users/me", "tea", "1", "--by", "operator")
    time.sleep(0.05)
    newest = store.history(ME, "tea")[0]
    assert (newest.kind, newest.restores, newest.actor) == ("restore", 1, "operator")
    with pytest.raises(InvalidInput, match="no version 9"):
        run("restore", "users/me", "tea", "9")


def test_revert_shows_first(store: EventStore, run: Any) -> None:
    shown = run("revert", "--run", "bad")
    assert "would be restored to version 1" in shown.stdout and "would be deleted" in shown.stdout
    assert store.status().end == "3"
    report = json.loads(run("revert", "--run", "bad", "--yes", "--by", "operator", "--json").stdout)
    assert [each["key"] for each in report["restored"] + report["deleted"]] == ["tea", "lie"]
    assert store.get(ME, "lie") is None
    assert store.get(ME, "tea").value == {"likes": "green"}  # type: ignore[union-attr]
    assert store.history(ME, "tea")[0].actor == "operator"
    run("revert", "--run", "bad", "--yes", code=1)
    with pytest.raises(InvalidInput, match="needs a cause"):
        run("revert")
