"""Threads looked at and thinned out: from Python, by the command, and in another process's place."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.base import CipherProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from eventstore import EventStore
from eventstore.checkpoint import EventSaver, FolderKeys
from eventstore.checkpoint.upkeep import Thinned
from eventstore.errors import CheckpointSealed, CheckpointUnreadable, InvalidInput, InvalidType
from tests.checkpoint.kit import put, rows, runtime_of, uncollected
from tests.checkpoint_ops.conftest import Run
from tests.checkpoint_ops.kit import agent, config, talk
from tests.scenarios.kit import ROOT

LONG = "y" * 700


def ids(saver: EventSaver, thread: str, namespace: str = "") -> list[str]:
    return [each.checkpoint for each in saver.checkpoints(thread) if each.namespace == namespace]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two threads of an agent; the second one waits for a person."""
    folder = tmp_path / "place"
    with EventStore.open(folder) as store, EventSaver.from_store(store) as saver:
        graph = agent(saver, store)
        talk(graph, "t:1", ["hello", "again"])
        talk(graph, "t2", ["question"], approve=False)
    return folder


# ------------------------------------------------------------------ looking


def test_threads_are_told_the_last_active_first(place: Path) -> None:
    with EventSaver.open(place) as saver:
        last, first = saver.threads()
        assert (first.thread, last.thread) == ("t:1", "t2")
        assert (first.interrupts, last.interrupts) == (0, 1)
        assert (first.namespaces, last.namespaces) == (2, 2)
        assert first.checkpoints == len(list(saver.list(config("t:1"))))
        assert first.created_at < first.updated_at < last.created_at
        assert not first.sealed
        assert first.bytes == runtime_of(saver).checkpoints.size("t:1")
        assert saver.threads(limit=1) == [last]
        assert asyncio.run(saver.athreads()) == [last, first]


def test_checkpoints_of_a_thread_are_those_that_list_gives(place: Path) -> None:
    with EventSaver.open(place) as saver:
        told = saver.checkpoints("t:1")
        listed = list(saver.list(config("t:1")))
        assert {(each.namespace, each.checkpoint) for each in told} == {
            (found.config["configurable"]["checkpoint_ns"], found.checkpoint["id"]) for found in listed
        }
        assert [each.checkpoint for each in told] == sorted((each.checkpoint for each in told), reverse=True)
        by_id = {found.checkpoint["id"]: found for found in listed}
        for each in told:
            found = by_id[each.checkpoint]
            assert (each.step, each.source) == (found.metadata["step"], found.metadata["source"])
            assert (each.channels, each.writes) == (
                len(found.checkpoint["channel_values"]),
                len(found.pending_writes or ()),
            )
            parent = found.parent_config
            assert each.parent == (None if parent is None else parent["configurable"]["checkpoint_id"])
        assert saver.checkpoints("t:1", limit=2) == told[:2]
        assert saver.checkpoints("nobody") == []
        assert asyncio.run(saver.acheckpoints("t:1")) == told


def test_an_interrupt_waits_until_its_task_has_come_to_an_end(tmp_path: Path) -> None:
    with EventSaver.open(tmp_path / "place") as saver:
        where = put(saver, "t", "1", {"a": 1})
        saver.put_writes(where, [("__interrupt__", "?")], "task-1")
        saver.put_writes(where, [("__interrupt__", "?")], "task-2")
        assert saver.threads()[0].interrupts == 2
        saver.put_writes(where, [("__resume__", "yes")], "task-1")
        assert saver.threads()[0].interrupts == 2
        saver.put_writes(where, [("a", 2)], "task-1")
        assert saver.threads()[0].interrupts == 1
        put(saver, "t", "2", {"a": 2}, parent="1")
        assert saver.threads()[0].interrupts == 0


def test_sealed_threads_are_told_without_their_key(tmp_path: Path, run: Run) -> None:
    keys = FolderKeys(tmp_path / "keys", b"k" * 32)
    with EventSaver.open(tmp_path / "place", keys=keys) as saver:
        put(saver, "t", "1", {"a": LONG})
        put(saver, "t", "2", {"a": LONG + LONG}, parent="1")
        assert [each.step for each in saver.checkpoints("t")] == [1, 1]
    with EventSaver.open(tmp_path / "place") as saver:
        assert [(each.sealed, each.step) for each in saver.checkpoints("t")] == [(True, None)] * 2
        assert saver.threads()[0].sealed
        with pytest.raises(CheckpointSealed):
            saver.thin_out(keep=1)
        assert saver.thin_out(delete_idle=timedelta(0))[0].whole
    (tmp_path / "factory.py").write_text(
        "from eventstore.checkpoint import FolderKeys\n"
        f"def keys(): return FolderKeys({str(tmp_path / 'keys')!r}, b'k' * 32)\n"
    )
    with EventSaver.open(tmp_path / "place", keys=keys) as saver:
        put(saver, "u", "1", {"a": LONG})
        put(saver, "u", "2", {"a": LONG}, parent="1")
    sys.path.insert(0, str(tmp_path))
    try:
        told = run("eventstore", "threads", tmp_path / "place", "u", "--keys", "factory:keys", "--json").json
        assert [each["step"] for each in told] == [1, 1]
        done = run("eventstore", "prune", tmp_path / "place", "--keep", 1, "--keys", "factory:keys", "--json")
        assert done.json["checkpoints"] == 1
        assert keys.get("u") is not None
        run("eventstore", "prune", tmp_path / "place", "--delete-idle", "0m", "--keys", "factory:keys")
        assert keys.get("u") is None
        refused = run("eventstore", "threads", tmp_path / "place", "--keys", "factory:none")
        assert refused.code == 2 and "factory:none" in refused.err
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("factory", None)


class Reversing(CipherProtocol):
    """Stands in for a cipher: what it gives cannot be read by who does not have it."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "reversed", plaintext[::-1]

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext[::-1]


def test_threads_of_another_serializer_are_told_and_not_thinned_out_by_guess(tmp_path: Path) -> None:
    serde = EncryptedSerializer(Reversing())
    with EventSaver.open(tmp_path / "place", serde=serde) as saver:
        put(saver, "t", "1", {"a": LONG})
        put(saver, "t", "2", {"a": LONG}, parent="1")
    with EventSaver.open(tmp_path / "place") as saver:
        assert [each.step for each in saver.checkpoints("t")] == [None, None]
        with pytest.raises(CheckpointUnreadable, match=r"metadata .* encrypted .* serde"):
            saver.thin_out(keep=1)
    with EventSaver.open(tmp_path / "place", serde=serde) as saver:
        assert saver.thin_out(keep=1)[0].dropped == 1


# ------------------------------------------------------------------ thinning out


def test_by_number_in_each_namespace(place: Path) -> None:
    with EventSaver.open(place) as saver:
        namespaces = {each.namespace for each in saver.checkpoints("t:1")}
        before = {namespace: ids(saver, "t:1", namespace) for namespace in namespaces}
        others = saver.checkpoints("t2")
        (done,) = saver.thin_out(["t:1"], keep=2)
        assert {namespace: ids(saver, "t:1", namespace) for namespace in namespaces} == {
            namespace: found[:2] for namespace, found in before.items()
        }
        assert done.dropped == sum(max(0, len(found) - 2) for found in before.values())
        assert (done.whole, done.kept) == (False, len(saver.checkpoints("t:1")))
        assert saver.checkpoints("t2") == others
        assert saver.thin_out(["t:1"], keep=2) == []
        assert uncollected(saver, ["t:1"]) == []


def test_a_dry_run_says_exactly_what_then_goes(place: Path) -> None:
    with EventSaver.open(place) as saver:
        size = {thread.thread: thread.bytes for thread in saver.threads()}
        before = rows(saver)
        told = saver.thin_out(keep=1, dry_run=True)
        assert rows(saver) == before
        done = saver.thin_out(keep=1)
        assert told == done
        left = {thread.thread: thread.bytes for thread in saver.threads()}
        assert {each.thread: size[each.thread] - left[each.thread] for each in done} == {
            each.thread: each.bytes for each in done
        }
        assert all(each.bytes > 0 for each in done)


def test_by_age_and_the_newest_always_stays(place: Path) -> None:
    with EventSaver.open(place) as saver:
        told = [each for each in saver.checkpoints("t:1") if not each.namespace]
        cut = told[2].at
        assert saver.thin_out(["t:1"], older_than=timedelta(hours=1)) == []
        saver.thin_out(["t:1"], older_than=cut)
        assert [each for each in saver.checkpoints("t:1") if not each.namespace] == [
            each for each in told if each.at >= cut
        ]
        saver.thin_out(older_than=timedelta(0))
        for thread in ("t:1", "t2"):
            left = saver.checkpoints(thread)
            assert len(left) == len({each.namespace for each in left}) == 2


def test_number_and_age_are_each_reason_enough(tmp_path: Path) -> None:
    with EventSaver.open(tmp_path / "place") as saver:
        for number in range(6):
            put(saver, "t", str(number), {"a": number}, parent=str(number - 1) if number else None)
        told = {each.checkpoint: each.at for each in saver.checkpoints("t")}
        saver.thin_out(keep=4, older_than=told["3"])
        assert ids(saver, "t") == ["5", "4", "3"]
        saver.thin_out(keep=2, older_than=told["1"])
        assert ids(saver, "t") == ["5", "4"]


def test_idle_threads_go_whole(place: Path) -> None:
    with EventSaver.open(place) as saver:
        last, first = saver.threads()
        (done,) = saver.thin_out(delete_idle=last.created_at)
        assert (done.thread, done.whole, done.kept) == ("t:1", True, 0)
        assert done.dropped == first.checkpoints
        assert done.bytes >= first.bytes
        assert [each.thread for each in saver.threads()] == ["t2"]
        assert saver.get_tuple(config("t:1")) is None


def test_a_thinned_thread_goes_on(place: Path) -> None:
    with EventSaver.open(place) as saver:
        graph = agent(saver)
        before = graph.get_state(config("t2")).values
        saver.thin_out(keep=1)
        assert graph.get_state(config("t2")).values == before
        assert graph.get_state(config("t2")).next == ("ask",)
        talk(graph, "t2", ["more"])
        assert graph.get_state(config("t2")).next == ()


def test_the_coroutine_does_the_same(place: Path) -> None:
    async def thin() -> list[Thinned]:
        async with EventSaver.open(place) as saver:
            return await saver.athin_out(keep=1, dry_run=True)

    with EventSaver.open(place) as saver:
        assert asyncio.run(thin()) == saver.thin_out(keep=1)


@pytest.mark.parametrize(
    ("given", "kind", "says"),
    [
        ({}, InvalidInput, "keep, older_than or delete_idle"),
        ({"keep": 0}, InvalidInput, "at least 1"),
        ({"older_than": timedelta(-1)}, InvalidInput, "older_than"),
        ({"older_than": datetime(2026, 1, 1)}, InvalidInput, "time zone"),
        ({"delete_idle": "30d"}, InvalidType, "delete_idle"),
        ({"keep": 1, "thread_ids": "t"}, InvalidType, "thread_ids"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(
    place: Path, given: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with EventSaver.open(place) as saver:
        before = rows(saver)
        with pytest.raises(kind, match=says):
            saver.thin_out(**given)
        assert rows(saver) == before


# ------------------------------------------------------------------ commands


def test_threads_command(run: Run, place: Path) -> None:
    with EventSaver.open(place) as saver:
        threads, told = saver.threads(), saver.checkpoints("t:1")
    assert run("eventstore", "threads", place, "--json").json == [
        each.model_dump(mode="json") for each in threads
    ]
    assert run("eventstore", "threads", place, "t:1", "--json", "--limit", 3).json == [
        each.model_dump(mode="json") for each in told[:3]
    ]
    table = run("eventstore", "threads", place).out
    assert "t:1" in table and "interrupts" in table
    missing = run("eventstore", "threads", place, "nobody")
    assert (missing.code, missing.out) == (1, "")
    assert "nobody" in missing.err


def test_a_place_without_checkpoints_has_no_threads_and_is_given_none(run: Run, tmp_path: Path) -> None:
    EventStore.open(tmp_path / "plain").close()
    done = run("eventstore", "threads", tmp_path / "plain", "--json")
    assert (done.code, done.json) == (0, [])
    assert run("eventstore", "prune", tmp_path / "plain", "--keep", 1, "--json").json["threads"] == []
    assert run("eventstore", "log", tmp_path / "plain", "--checkpoints").code == 2
    assert not (tmp_path / "plain" / "checkpoints").exists()
    assert run("projector", "status", tmp_path / "plain", "--json").json["checkpoints"] is None
    assert run("eventstore", "threads", tmp_path / "nowhere").code == 2
    assert not (tmp_path / "nowhere").exists()


def test_prune_command(run: Run, place: Path) -> None:
    with EventSaver.open(place) as saver:
        told = saver.thin_out(keep=1, dry_run=True)
        count = {thread.thread: thread.checkpoints for thread in saver.threads()}
    shown = run("eventstore", "prune", place, "--keep", 1, "--dry-run", "--json").json
    assert shown == {
        "dry_run": True,
        "checkpoints": sum(each.dropped for each in told),
        "bytes": sum(each.bytes for each in told),
        "threads": [each.model_dump(mode="json") for each in told],
    }
    assert "would go" in run("eventstore", "prune", place, "--keep", 1, "--dry-run").err
    assert run("eventstore", "prune", place, "--older-than", "1d", "--json").json["threads"] == []
    done = run("eventstore", "prune", place, "--keep", 1, "--thread", "t:1")
    assert done.code == 0 and "t:1" in done.out and "t2" not in done.out
    with EventSaver.open(place) as saver:
        left = {thread.thread: thread.checkpoints for thread in saver.threads()}
    assert (left["t2"], left["t:1"]) == (count["t2"], 2)
    whole = run("eventstore", "prune", place, "--delete-idle", datetime.now(UTC).isoformat(), "--json").json
    assert [(each["thread"], each["whole"]) for each in whole["threads"]] == [("t2", True), ("t:1", True)]
    nothing = run("eventstore", "prune", place, "--keep", 1)
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "nothing to remove\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--keep"),
        (("--keep", "0"), "--keep"),
        (("--older-than", "soon"), "30d"),
        (("--delete-idle", "2026-01-01"), "time zone"),
    ],
)
def test_prune_refuses_what_it_cannot_mean(
    run: Run, place: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = run("eventstore", "prune", place, *arguments)
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err


def test_beside_a_process_that_has_the_place_open(place: Path) -> None:
    """As installed, in processes of their own, while this one has the place open and goes on."""
    script = "from projector.cli import main; main()"

    def command(*arguments: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", script, *map(str, arguments)]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)

    with EventSaver.open(place) as saver:
        graph = agent(saver)
        talk(graph, "t3", ["new"])
        done = command("threads", place, "--json")
        assert done.returncode == 0, done.stderr
        assert '"t3"' in done.stdout
        assert command("prune", place, "--keep", 1).returncode == 0
        assert len(saver.checkpoints("t3")) == 2
        talk(graph, "t3", ["and on"])
        assert graph.get_state(config("t3")).next == ()


# ------------------------------------------------------------------ the past


def test_memories_as_a_checkpoint_saw_them(run: Run, place: Path) -> None:
    with EventSaver.open(place) as saver:
        told = [each for each in saver.checkpoints("t:1") if not each.namespace]
    first = next(each.checkpoint for each in told if each.step == 1)

    def turn(*arguments: object) -> int:
        return int(run("eventstore", "get", place, "agent", "turn", *arguments, "--json").json["value"]["n"])

    with EventStore.open(place) as store:
        assert turn("--checkpoint", f"t:1:{first}") == 1
        seen = store.as_of(config("t:1")).get(("agent",), "turn")
    assert seen is not None
    assert turn("--checkpoint", "t:1") == turn("--as-of", "checkpoint:t:1") == seen.value["n"] == 4
    assert run("eventstore", "search", place, "agent", "--checkpoint", "t:1", "--json").json[0]["value"] == {
        "n": 4
    }
    assert run("eventstore", "namespaces", place, "--checkpoint", "t:1").out == "agent\n"
    found = run("eventstore", "diff", place, f"checkpoint:t:1:{first}", "checkpoint:t:1", "--json").json
    assert [(each["key"], each["fields"][0]["after"]) for each in found["changed"]] == [("turn", 4)]
    later = run("eventstore", "changes", place, "--from", f"checkpoint:t:1:{first}", "--json").out
    assert [line.count('"n"') for line in later.splitlines()] == [1, 1]


def test_checkpoints_of_the_past_that_are_not_there(run: Run, place: Path) -> None:
    done = run("eventstore", "search", place, "--checkpoint", "nobody")
    assert done.code == 2 and done.err.startswith("NoSuchMoment: ")
    both = run("eventstore", "search", place, "--checkpoint", "t2", "--as-of", "1")
    assert both.code == 2 and "two moments" in both.err


def test_a_thread_that_went_on_meanwhile_is_not_idle_any_more(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going through many threads takes its time; what is decided is decided of each as it is then."""
    with EventSaver.open(place) as saver, EventSaver.open(place) as other:
        cut = datetime.now(UTC)
        delete = saver._engine.delete

        def deleted(thread: str) -> None:
            delete(thread)
            talk(agent(other), "t:1", ["I am back"])

        monkeypatch.setattr(saver._engine, "delete", deleted)
        done = saver.thin_out(delete_idle=cut)
        assert [each.thread for each in done] == ["t2"]
        assert [each.thread for each in saver.threads()] == ["t:1"]
