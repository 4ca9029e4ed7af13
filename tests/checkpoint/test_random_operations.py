"""Any sequence of operations, against a model of dicts, LangGraph's own saver, and a rebuild from the log."""

from __future__ import annotations

import copy
import random
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import ERROR, INTERRUPT, RESUME, get_checkpoint_metadata
from langgraph.checkpoint.memory import InMemorySaver

from eventstore.checkpoint import EventSaver, FolderKeys, enveloping
from eventstore.checkpoint.events import Drop
from tests.checkpoint.kit import (
    checkpoint,
    config,
    events,
    everything,
    grown,
    rebuilt,
    rows,
    runtime_of,
    text,
    uncollected,
    values,
)
from tests.checkpoint.model import Model

THREADS = ["a", "b", "a\x00", "a:b"]
NAMESPACES = ["", "inner|x", "\x00"]
CHANNELS = ["messages", "count", "note", "\x01\x00", "big", "__pregel_tasks"]
SPECIAL = [ERROR, INTERRUPT, RESUME, "__scheduled__"]
TASKS = ["t1", "t2", "t10"]
RUNS = ["r1", "r2", None]
MASTER = bytes(32)


class Act:
    """One saver and the model of it, acting alike."""

    def __init__(self, folder: Path, seed: int, keys: FolderKeys | None) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.keys = keys
        self.model = Model()
        self.saver = EventSaver.open(folder, keys=keys)
        self.number = 0

    # ------------------------------------------------------------------ what there is to choose from

    def place(self) -> tuple[str, str]:
        return self.chance.choice(THREADS), self.chance.choice(NAMESPACES)

    def id(self, thread: str, namespace: str) -> str | None:
        found = [at[2] for at in self.model.kept if at[:2] == (thread, namespace)]
        return self.chance.choice(found) if found else None

    def new_id(self) -> str:
        self.number += 1
        # Not every one is above those before: ids of another clock, or copies.
        return f"{self.number + self.chance.choice([0, 0, 0, 500, -3]):06d}"

    def value(self, before: Any) -> Any:
        what = self.chance.randrange(9)
        if isinstance(before, list) and what < 5:
            return grown(self.chance, [each for each in before if isinstance(each, str)])
        return [
            lambda: [text(self.chance) for _ in range(self.chance.randrange(30))],
            lambda: text(self.chance, 9_000),
            lambda: None,
            lambda: self.chance.choice([0, "", [], {}, False]),
            lambda: {"k": [text(self.chance, 700)] * 3, "n": self.chance.random()},
            lambda: [HumanMessage(text(self.chance), id="1")],
            lambda: self.chance.randbytes(self.chance.choice([10, 900, 5_000])),
            lambda: self.chance.randbytes(900_000) if self.chance.random() < 0.1 else list(range(400)),
            lambda: {"s": {1, 2, 3}, "t": [1, "two"]},
        ][what]()

    # ------------------------------------------------------------------ acts

    def put(self) -> None:
        thread, namespace = self.place()
        chance = self.chance
        parent = self.id(thread, namespace) if chance.random() < 0.85 else chance.choice([None, "missing"])
        before = self.model.kept.get((thread, namespace, parent or ""))
        old = {} if before is None else before.checkpoint
        channels: dict[str, Any] = dict(old.get("channel_values", {}))
        versions: dict[str, Any] = dict(old.get("channel_versions", {}))
        new: dict[str, Any] = {}
        for channel in chance.sample(CHANNELS, chance.randrange(len(CHANNELS))):
            versions[channel] = self.version(versions.get(channel))
            if chance.random() < 0.9:
                # Of the others only the version tells that they are not the parent's.
                new[channel] = versions[channel]
            if chance.random() < 0.15:
                channels.pop(channel, None)
            else:
                channels[channel] = self.value(channels.get(channel))
        if channels and chance.random() < 0.1:
            # LangGraph may leave out what has not changed.
            channels.pop(chance.choice(list(channels)))
        if versions and chance.random() < 0.05:
            versions.pop(chance.choice(list(versions)))
        again = self.id(thread, namespace) if chance.random() < 0.08 else None
        at = again or self.new_id()
        if at == parent:
            return
        made = checkpoint(at, channels, versions)
        metadata: dict[str, Any] = {"source": "loop", "step": chance.randrange(3), "parents": {}}
        run = chance.choice(RUNS)
        if run is not None:
            metadata["run_id"] = run
        if chance.random() < 0.03:
            metadata["note"] = chance.randbytes(20_000)
        given = config(thread, namespace, parent)
        self.model.put(
            (thread, namespace, at), parent, made, get_checkpoint_metadata(given, cast(Any, metadata)), new
        )
        answer = self.saver.put(given, copy.deepcopy(made), cast(Any, metadata), new)
        assert answer == config(thread, namespace, at)

    def version(self, before: Any) -> Any:
        if self.chance.random() < 0.2:
            return self.chance.randrange(4)  # those of two forks may be equal
        return f"{self.number:08x}.{self.chance.getrandbits(24):06x}"

    def put_writes(self) -> None:
        thread, namespace = self.place()
        chance = self.chance
        at = (
            self.id(thread, namespace)
            if chance.random() < 0.8
            else f"{self.number + chance.randrange(4):06d}"
        )
        if at is None:
            return
        count = 1_100 if chance.random() < 0.01 else chance.randrange(4)
        writes = [
            (
                chance.choice(CHANNELS + SPECIAL if count < 9 else CHANNELS),
                self.value(None) if count < 9 else number,
            )
            for number in range(count)
        ]
        task, path = chance.choice(TASKS), chance.choice(["", "~x", "~y"])
        known = self.model.writes.get((thread, namespace, at), {})
        path = next((path for (of, _), (path, _, _) in known.items() if of == task), path)
        self.model.put_writes((thread, namespace, at), writes, task, path)
        self.saver.put_writes(config(thread, namespace, at), writes, task, path)

    def delete_thread(self) -> None:
        thread, _ = self.place()
        self.model.delete_thread(thread)
        self.saver.delete_thread(thread)

    def prune(self) -> None:
        thread, _ = self.place()
        self.model.prune(thread)
        self.saver.prune([thread])

    def delete_for_runs(self) -> None:
        runs = self.chance.sample(["r1", "r2", "r3"], 2)[: self.chance.randrange(1, 3)]
        self.model.delete_for_runs(runs)
        self.saver.delete_for_runs(runs)

    def copy_thread(self) -> None:
        source, to = self.chance.choices(THREADS, k=2)
        self.model.copy_thread(source, to)
        self.saver.copy_thread(source, to)

    def reopen(self) -> None:
        self.saver.close()
        self.saver = EventSaver.open(self.folder, keys=self.keys)

    # ------------------------------------------------------------------ comparisons

    def compare_some(self) -> None:
        thread, namespace = self.place()
        chance = self.chance
        at = chance.choice([None, self.id(thread, namespace), "missing"])
        found = self.saver.get_tuple(config(thread, namespace, at))
        expected = self.model.get(thread, namespace, at)
        assert (None if found is None else tuple(found)) == expected
        limit = chance.choice([None, 0, 1, 3])
        before = chance.choice([None, self.id(thread, namespace)])
        filter = chance.choice([None, {"step": 1}, {"run_id": "r1"}, {"run_id": None}, {"step": 9}])
        within = chance.choice([(None, None), (thread, None), (thread, namespace)])
        given = None if within[0] is None else config(thread)
        if given is not None and within[1] is None:
            del given["configurable"]["checkpoint_ns"]
        elif given is not None:
            given = config(thread, namespace)
        listed = self.saver.list(
            given, filter=filter, limit=limit, before=None if before is None else config("any", "", before)
        )
        assert [tuple(each) for each in listed] == self.model.list(*within, filter, before, limit)

    def compare_all(self) -> None:
        assert [tuple(each) for each in everything(self.saver)] == self.model.list()
        counts = {each.thread: each.checkpoints for each in runtime_of(self.saver).checkpoints.threads()}
        assert counts == Counter(at[0] for at in self.model.kept)
        for thread in THREADS:
            for namespace in NAMESPACES:
                for at in self.model.writes:
                    if at not in self.model.kept and at[:2] == (thread, namespace):
                        assert self.saver.get_tuple(config(*at)) is None


CHOICES = {
    Act.put: 45,
    Act.put_writes: 25,
    Act.compare_some: 25,
    Act.prune: 3,
    Act.delete_for_runs: 2,
    Act.copy_thread: 3,
    Act.delete_thread: 2,
    Act.reopen: 2,
}


@pytest.mark.parametrize("seed", range(7))
def test_a_saver_answers_as_the_model_does(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its view is, to the last byte, what the log makes of an empty folder."""
    if seed > 3:
        monkeypatch.setattr(enveloping, "RECORD_BYTES", 400)  # then most events are larger than a record
    keys = FolderKeys(tmp_path / "keys", MASTER) if seed % 3 == 0 else None
    act = Act(tmp_path / "s", seed, keys)
    for _ in range(150):
        act.chance.choices(list(CHOICES), list(CHOICES.values()))[0](act)
    act.compare_all()
    live = rows(act.saver)
    act.saver.close()
    act.saver = rebuilt(act.folder, keys=keys)
    assert rows(act.saver) == live
    act.compare_all()
    for thread in THREADS:
        # A checkpoint of no further use, so that the prune has something to do in any thread.
        act.saver.put(config(thread), checkpoint("0", {"x": "y" * 99}), {}, {"x": 1})
        act.model.put((thread, "", "0"), None, checkpoint("0", {"x": "y" * 99}), {}, {"x": 1})
        act.saver.put(config(thread), checkpoint("9", {}), {}, {})
        act.model.put((thread, "", "9"), None, checkpoint("9", {}), {}, {})
        act.saver.prune([thread])
        act.model.prune(thread)
    assert uncollected(act.saver, THREADS) == []
    act.compare_all()
    act.saver.close()
    assert any(isinstance(event, Drop) for event in events(act.folder))


@pytest.mark.parametrize("seed", range(3))
def test_langgraphs_own_saver_answers_alike(tmp_path: Path, seed: int) -> None:
    """As LangGraph calls it: every value has a version that no other has, and parents are there."""
    chance = random.Random(seed)
    theirs = InMemorySaver()
    with EventSaver.open(tmp_path / "s") as ours:
        known: dict[tuple[str, str], list[Any]] = {}
        for number in range(80):
            thread, namespace = chance.choice(THREADS), chance.choice(NAMESPACES)
            before = known.setdefault((thread, namespace), [])
            parent = chance.choice(before) if before else None
            if chance.random() < 0.6 or parent is None:
                made = checkpoint(f"{number:04d}", {}, {})
                if parent is not None:
                    made["channel_values"] = dict(parent["channel_values"])
                    made["channel_versions"] = dict(parent["channel_versions"])
                new: dict[str, Any] = {}
                for channel in chance.sample(CHANNELS, chance.randrange(len(CHANNELS))):
                    new[channel] = f"{number:08x}.{channel}"
                    old = made["channel_values"].pop(channel, [])
                    if chance.random() < 0.9:
                        made["channel_values"][channel] = (
                            grown(chance, old) if isinstance(old, list) else [text(chance)]
                        )
                made["channel_versions"] = {**made["channel_versions"], **new}
                metadata: Any = {"source": "loop", "step": number % 4, "parents": {}}
                given = config(thread, namespace, None if parent is None else parent["id"])
                for saver in (ours, theirs):
                    saver.put(given, copy.deepcopy(made), metadata, new)
                before.append(made)
            elif chance.random() < 0.95:
                writes = [
                    (chance.choice(CHANNELS + SPECIAL), text(chance)) for _ in range(chance.randrange(1, 14))
                ]
                task = chance.choice(TASKS)
                for saver in (ours, theirs):
                    saver.put_writes(config(thread, namespace, parent["id"]), writes, task, "~p" + task)
            else:
                for saver in (ours, theirs):
                    saver.delete_thread(thread)
                known = {place: each for place, each in known.items() if place[0] != thread}
            if number % 8 == 0:
                for place in known:
                    mine, yours = ours.get_tuple(config(*place)), theirs.get_tuple(config(*place))
                    assert mine == yours
                step = {"step": chance.randrange(4)}
                for options in (
                    {},
                    {"filter": step},
                    {"limit": 2},
                    {"before": config("x", "", f"{number // 2:04d}")},
                ):
                    mine_all = list(ours.list(config(thread), **cast(Any, options)))
                    assert mine_all == list(theirs.list(config(thread), **cast(Any, options)))


def test_an_unchanged_value_is_inherited_through_what_went(tmp_path: Path) -> None:
    """Prune takes the checkpoint that brought a value, and those that inherited it keep it."""
    with EventSaver.open(tmp_path / "s") as saver:
        big = ["x" * 500] * 20
        first = checkpoint("1", {"big": big, "n": 1})
        saver.put(config("t"), first, {}, first["channel_versions"])
        for number in range(2, 6):
            versions = {"big": "1", "n": str(number)}
            made = checkpoint(str(number), {"n": number}, versions)
            saver.put(config("t", "", str(number - 1)), made, {}, {"n": str(number)})
        saver.prune(["t"])
        assert values(saver, "t") == {"big": big, "n": 5}
        assert uncollected(saver, ["t"]) == []


@pytest.mark.parametrize("seed", range(5))
def test_what_stays_of_a_delta_channel_is_rebuilt_as_before(tmp_path: Path, seed: int) -> None:
    """Prunes, removed runs, a copy: whatever checkpoint is still there has the history it had."""
    chance = random.Random(seed)

    def history(saver: EventSaver, thread: str, id: str) -> Any:
        found = saver.get_tuple(config(thread, "", id))
        assert found is not None
        # A channel whose value is there is not asked for its history.
        channels = [each for each in "de" if each not in found.checkpoint["channel_values"]]
        asked = saver.get_delta_channel_history(config=config(thread, "", id), channels=channels)
        return found.checkpoint, found.metadata, found.pending_writes, asked

    with EventSaver.open(tmp_path / "s") as saver:
        known: dict[str, Any] = {}
        for number in range(70):
            id = f"{number:04d}"
            parent = chance.choice(sorted(known)[-3:]) if known and chance.random() < 0.95 else None
            given: dict[str, Any] = {"n": number}
            counters = {}
            for channel in "de":
                if chance.random() < 0.2:
                    given[channel] = [text(chance)]
                else:
                    counters[channel] = [1, 1]
            metadata: Any = {"source": "loop", "step": number, "parents": {}, "run_id": chance.choice("xyz")}
            if counters:
                metadata["counters_since_delta_snapshot"] = counters
            made = checkpoint(id, given)
            saver.put(config("t", "", parent), made, metadata, made["channel_versions"])
            for channel in "de":
                if chance.random() < 0.6:
                    saver.put_writes(config("t", "", id), [(channel, text(chance))], f"task{channel}")
            known[id] = history(saver, "t", id)
            for each in known:
                if each == parent or chance.random() < 0.2:
                    known[each] = history(saver, "t", each)
            what = chance.random()
            if what < 0.06:
                saver.prune(["t"])
            elif what < 0.1:
                saver.delete_for_runs([chance.choice("xyz")])
            elif what < 0.12:
                saver.copy_thread("t", "copy")
                for each in ids_of(saver, "copy"):
                    assert history(saver, "copy", each) == history(saver, "t", each)
                saver.delete_thread("copy")
            there = ids_of(saver, "t")
            known = {each: seen for each, seen in known.items() if each in there}
            for each, seen in known.items():
                assert history(saver, "t", each) == seen
        live = rows(saver)
    with rebuilt(tmp_path / "s") as saver:
        assert rows(saver) == live
        for each, seen in known.items():
            assert history(saver, "t", each) == seen


def ids_of(saver: EventSaver, thread: str) -> set[str]:
    return {each.checkpoint["id"] for each in saver.list(config(thread))}
