"""The ``eventstore`` command on real stores: what it prints, its JSON, its exit codes, its page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from eventstore import EventStore, VersionConflict, acting_as
from eventstore.checkpoint import EventSaver
from eventstore.codec import encode
from eventstore.events import Event, Kind, new_id
from eventstore.keys import encode_item
from eventstore.log import EmbeddedLog
from eventstore.log.base import Record
from projector.cli import app, main
from tests.checkpoint.kit import put

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
MOVING = {"export", "import", "migrate"}
"""Held to their word in ``tests/operations``."""
ON_A_STORE = sorted(set(COMMANDS) - {"demo"} - MOVING)
WRITING = {"restore"}
"""Prints nothing when it has done its work."""
ME = ("alice", "memories")
ARGUMENTS = {
    "get": ("alice/memories", "city"),
    "search": ("alice",),
    "namespaces": (),
    "history": ("alice/memories", "pet"),
    "events": ("--thread", "thursday"),
    "diff": ("3", "6"),
    "changes": ("alice",),
    "restore": ("alice/memories", "pet", "1"),
    "revert": ("--thread", "thursday"),
    "status": (),
    "log": (),
    "threads": (),
    "prune": ("--keep", "1", "--dry-run"),
}


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process, without a terminal, as its entry point does."""

    def run_(*arguments: object) -> Done:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["eventstore", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
            sys.exit(0)
        code = left.value.code
        out, err = capsys.readouterr()
        return Done(0 if code is None else int(code), out, err)

    return run_


def vectors(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 1.0] for text in texts]


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """The store of the page's examples, with vectors, and a put that lost."""
    folder = tmp_path / "memory"
    index = {"dims": 2, "embed": vectors, "fields": ["text"], "model": "lengths"}
    with EventStore.open(folder, index=index, actor="assistant") as store:
        with acting_as(thread="monday"):
            store.put(ME, "city", {"text": "Alice lives in Lisbon.", "kind": "fact"})
            store.put(ME, "pet", {"text": "Alice has a dog.", "kind": "fact"})
            store.put(ME, "mood", {"text": "Alice is tired today."}, ttl=60 * 24)
        with acting_as(thread="thursday"):
            store.put(ME, "city", {"text": "Alice lives in Porto.", "kind": "fact"})
            store.delete(ME, "pet")
        store.put(("bob",), "tea", {"text": "Bob drinks tea."})
        with pytest.raises(VersionConflict):
            store.put(("bob",), "tea", {"text": "Bob drinks coffee."}, expected_version=0)
        with EventSaver.from_store(store) as saver:
            put(saver, "monday", "1", {"n": 1})
            put(saver, "monday", "2", {"n": 2}, parent="1")
    return folder


def test_the_tests_know_every_command() -> None:
    assert set(ARGUMENTS) == set(ON_A_STORE)


@pytest.mark.parametrize("command", sorted(set(ON_A_STORE) - WRITING))
def test_every_command_runs_and_gives_json(run: Run, memory: Path, command: str) -> None:
    table = run(command, memory, *ARGUMENTS[command])
    assert table.code == 0
    assert table.out.strip()
    document = run(command, memory, *ARGUMENTS[command], "--json")
    assert (document.code, document.err) == (0, "")
    lines = [document.out] if command != "changes" else document.out.splitlines()
    assert all(json.loads(line) for line in lines)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_and_its_section(run: Run, command: str) -> None:
    assert run(command, "--help").code == 0
    assert COMMANDS[command].help
    section = re.search(rf"^## eventstore {command}$\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section, f"docs/cli.md has no section on {command}"
    for parameter in COMMANDS[command].params:
        for option in parameter.opts:
            if option.startswith("--") and option != "--help":
                assert option in section[1], f"docs/cli.md does not name {option} of {command}"


def test_the_page_has_no_command_that_does_not_exist() -> None:
    assert set(re.findall(r"^## eventstore (\w+)$", PAGE, re.MULTILINE)) == set(COMMANDS)


def test_get(run: Run, memory: Path) -> None:
    found = run("get", memory, "alice/memories", "city", "--json").json
    assert found["value"] == {"text": "Alice lives in Porto.", "kind": "fact"}
    assert found["namespace"] == list(ME)
    assert found["created_at"] < found["updated_at"]
    missing = run("get", memory, "alice/memories", "pet")
    assert (missing.code, missing.out) == (1, "")
    assert "no memory 'pet'" in missing.err


def test_search(run: Run, memory: Path) -> None:
    def keys(*arguments: object) -> list[str]:
        return [item["key"] for item in run("search", memory, *arguments, "--json").json]

    assert keys() == ["tea", "city", "mood"]
    assert keys("alice") == ["city", "mood"]
    assert keys("alice", "--where", '{"kind": "fact"}') == ["city"]
    assert keys("--limit", 1, "--offset", 1) == ["city"]
    nothing = run("search", memory, "nobody")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "")


def test_namespaces(run: Run, memory: Path) -> None:
    assert run("namespaces", memory).out.splitlines() == ["alice/memories", "bob"]
    assert run("namespaces", memory, "*", "--max-depth", 1, "--json").json == [["alice"], ["bob"]]
    assert run("namespaces", memory, "--limit", 1, "--json").json == [["alice", "memories"]]


def test_history(run: Run, memory: Path) -> None:
    versions = run("history", memory, "alice/memories", "pet", "--json").json
    assert [(each["version"], each["kind"], each["thread"]) for each in versions] == [
        (2, "delete", "thursday"),
        (1, "put", "monday"),
    ]
    assert len(run("history", memory, "alice/memories", "pet", "--limit", 1, "--json").json) == 1
    assert "put, rejected" in run("history", memory, "bob", "tea").out
    never = run("history", memory, "alice/memories", "never")
    assert (never.code, never.out) == (1, "")


def test_status(run: Run, memory: Path) -> None:
    report = run("status", memory, "--json").json
    assert (report["end"], report["applied"], report["lag"]) == ("7", "7", 0)
    assert report["memories"] == 3
    assert report["stopped"] is None
    assert report["bytes_on_disk"] > 0


def test_log(run: Run, memory: Path) -> None:
    events = run("log", memory, "--json").json
    assert [event["offset"] for event in events] == list(range(7))
    assert [event["kind"] for event in events] == ["put"] * 4 + ["delete"] + ["put"] * 2
    assert (events[0]["model"], events[0]["vectors"], events[0]["actor"]) == ("lengths/2", 1, "assistant")
    assert (events[2]["ttl_minutes"], events[6]["expected_version"]) == (1440.0, 0)
    assert run("log", memory, "--from", 4, "--limit", 2, "--json").json == events[4:6]
    assert run("log", memory, "--from", 99).out == ""


def test_moments_of_the_past(run: Run, memory: Path) -> None:
    def city(*arguments: object) -> str:
        found = run("get", memory, "alice/memories", "city", *arguments, "--json").json
        return str(found["value"]["text"]).split()[-1]

    at = run("log", memory, "--from", 3, "--limit", 1, "--json").json[0]["at"]
    assert (city(), city("--as-of", 3), city("--as-of", at)) == ("Porto.", "Lisbon.", "Porto.")
    assert len(run("search", memory, "--as-of", 2, "--json").json) == 2
    assert run("namespaces", memory, "--as-of", 5).out.splitlines() == ["alice/memories"]
    report = run("diff", memory, 3, 6, "--json").json
    assert [[each["key"] for each in report[kind]] for kind in ("added", "removed", "changed")] == [
        ["tea"],
        ["pet"],
        ["city"],
    ]
    lines = run("changes", memory, "alice", "--from", 3, "--json").out.splitlines()
    assert [json.loads(line)["position"] for line in lines] == ["4", "5"]


def test_events_by_cause(run: Run, memory: Path) -> None:
    def offsets(*arguments: object) -> list[int]:
        return [event["offset"] for event in run("events", memory, *arguments, "--json").json]

    assert offsets("--thread", "thursday") == [3, 4]
    assert offsets("alice", "--actor", "assistant", "--after", 1) == [2, 3, 4]
    assert offsets("--thread", "nobody") == []


def test_restore_and_revert_write_under_a_name(run: Run, memory: Path) -> None:
    shown = run("revert", memory, "--thread", "thursday")
    assert "would be restored to version 1" in shown.out
    assert "--yes" in shown.err
    assert run("log", memory, "--from", 7).out == ""
    assert run("restore", memory, "alice/memories", "pet", 1, "--by", "ops").code == 0
    done = run("revert", memory, "--thread", "thursday", "--yes", "--by", "ops", "--json").json
    assert [each["key"] for each in done["restored"]] == ["city"]
    written = run("log", memory, "--from", 7, "--json").json
    assert [(event["kind"], event["key"], event["actor"]) for event in written] == [
        ("restore", "pet", "ops"),
        ("restore", "city", "ops"),
    ]
    nothing = run("revert", memory, "--thread", "nobody")
    assert (nothing.code, nothing.out) == (1, "")


def test_what_cannot_be_decoded_is_shown_among_what_can(run: Run, memory: Path) -> None:
    log = EmbeddedLog.open(memory / "log")
    records = [
        Record(encode_item(("x",), "k"), b"{}", (("type", b"put/99"),)),
        Record(b"no key of ours", None, ()),
        encode(Event(Kind.PUT, encode_item(("x",), "k"), new_id(), b"{}")),
    ]
    log.append([log.prepare([each]) for each in records])
    log.close()
    done = run("log", memory, "--json")
    assert (done.code, done.err) == (0, "")
    assert [event["kind"] for event in done.json[6:]] == ["put", None, None, "put"]
    newer, foreign, last = done.json[7:]
    assert (newer["offset"], newer["namespace"], newer["key"], newer["bytes"]) == (7, ["x"], "k", 2)
    assert "99" in newer["undecodable"]
    assert (foreign["offset"], foreign["key"], foreign["bytes"]) == (8, None, None)
    assert foreign["undecodable"].startswith("a record without a type header")
    assert last["undecodable"] is None and set(newer) == set(foreign) == set(last)
    table = run("log", memory, "--from", 6).out
    assert table.count("undecodable") == 2 and "without a type header" in table
    assert "because" not in run("log", memory, "--limit", 5).out
    assert "offset 7" in run("status", memory, "--json").json["stopped"]
    assert run("get", memory, "bob", "tea").code == 0


def test_a_damaged_log_is_named(run: Run, memory: Path) -> None:
    (segment,) = (memory / "log").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b"Lisbon")] ^= 1
    segment.write_bytes(bytes(data))
    for command in ("log", "status"):
        done = run(command, memory)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("LogDamaged: ")
        assert segment.name in done.err
        assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("search", "STORE", "--where", "{"), "not JSON"),
        (("search", "STORE", "--where", "[1]"), "InvalidType"),
        (("search", "STORE", "--where", '{"a": {"$no": 1}}'), "InvalidFilter"),
        (("search", "STORE", "--limit", "0"), "--limit"),
        (("history", "STORE", "a", "b", "--limit", "-1"), "--limit"),
        (("log", "STORE", "--from", "-1"), "--from"),
        (("namespaces", "STORE", "--max-depth", "0"), "--max-depth"),
        (("get", "STORE", "a.b", "c"), "period"),
        (("get", "STORE", "a", "b", "--as-of", "99"), "NoSuchMoment"),
        (("diff", "STORE", "1", "yesterday"), "yesterday"),
        (("revert", "STORE"), "revert needs a cause"),
        (("restore", "STORE", "bob", "tea", "9"), "no version 9"),
        (("get", "STORE", "a"), "key"),
        (("history", "nowhere", "a", "b"), "no store"),
        (("log", "nowhere"), "no store"),
        (("nonsense",), "nonsense"),
    ],
)
def test_wrong_usage_is_2_and_says_what_is_wrong(
    run: Run, memory: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = run(*(str(memory) if argument == "STORE" else argument for argument in arguments))
    assert done.code == 2
    assert says.lower() in done.err.lower()
    assert "Traceback" not in done.err
    assert done.out == ""
    assert not Path("nowhere").exists()


def test_what_memories_say_is_neither_markup_nor_a_command_to_the_terminal(run: Run, tmp_path: Path) -> None:
    with EventStore.open(tmp_path / "odd") as store:
        store.put(("a [red]b[/x]", "\x1b[2J"), "[/k]\x07", {"text": "[bold]see[/bold] [/nothing]"})
    for command in (
        ("search", tmp_path / "odd"),
        ("namespaces", tmp_path / "odd"),
        ("log", tmp_path / "odd"),
        ("get", tmp_path / "odd", "a [red]b[", "x]"),
    ):
        done = run(*command)
        assert "\x1b" not in done.out + done.err
        assert "\x07" not in done.out + done.err
    shown = run("search", tmp_path / "odd").out
    assert "[bold]see[/bold] [/nothing]" in shown
    assert "[/k]\\x07" in shown


def test_reading_changes_nothing_in_the_log(run: Run, memory: Path) -> None:
    before = {path: path.read_bytes() for path in (memory / "log").glob("*.seg")}
    for command in set(ON_A_STORE) - WRITING:
        run(command, memory, *ARGUMENTS[command])
    run("get", memory, "alice/memories", "mood")
    assert {path: path.read_bytes() for path in (memory / "log").glob("*.seg")} == before


def test_beside_a_store_that_is_open(memory: Path) -> None:
    """As installed, in a process of its own, while this one has the store open."""
    script = Path(sys.executable).with_name("eventstore")
    with EventStore.open(memory) as store:
        store.put(("carol",), "hello", {"text": "from the other one"})
        done = subprocess.run(
            [script, "get", memory, "carol", "hello", "--json"], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["value"] == {"text": "from the other one"}
        store.put(("carol",), "again", {"text": "still writing"})
    assert (memory / "views" / "1").is_dir()
