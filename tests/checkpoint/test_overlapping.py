"""Prunes, deletes and puts by others, at exactly the wrong moment of a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eventstore.checkpoint import EventSaver
from eventstore.checkpoint.events import Assembled, Copy, Packed, Part, Put, Where, encode
from eventstore.checkpoint.views import Row, Stored
from tests.checkpoint.hooks import Hooked
from tests.checkpoint.kit import (
    checkpoint,
    config,
    events,
    ids,
    put,
    rows,
    runtime_of,
    uncollected,
    values,
)

BIG = ["b" * 300] * 40


@pytest.mark.parametrize("of", ["views", "other"])
@pytest.mark.parametrize("what", ["prune", "delete", "put again"])
def test_a_put_whose_parent_goes_meanwhile_is_sent_again_in_full(
    open_saver: Callable[..., EventSaver], tmp_path: Path, what: str, of: str
) -> None:
    """It was to name its parent's values; the fold rejects it, and nobody sees anything of that."""
    other = open_saver(of)
    serde = Hooked()
    saver = open_saver(serde=serde)
    put(saver, "t", "1", {"big": BIG, "n": 0})
    put(saver, "t", "2", {"big": BIG, "n": 0}, parent="1")
    acts: dict[str, Callable[[], object]] = {
        "prune": lambda: (put(other, "t", "3", {"n": 3}), other.prune(["t"])),
        "delete": lambda: other.delete_thread("t"),
        "put again": lambda: put(other, "t", "2", {"n": 9}),
    }
    serde.at_dump = acts[what]
    made = checkpoint("4", {"big": [*BIG, "more"], "n": "now", "kept": None}, {"big": "4", "n": "4"})
    saver.put(config("t", "", "2"), made, {}, {"big": "4", "n": "4"})
    expected = {"big": [*BIG, "more"], "n": "now"}
    assert values(saver, "t", "4") == expected | {"kept": None}
    assert values(other, "t", "4") == values(saver, "t", "4")
    sent = [event for event in events(tmp_path / "s") if isinstance(event, Put) and event.at.id == "4"]
    assert len(sent) == 2
    assert rows(open_saver("fresh")) == rows(saver) == rows(other)
    put(saver, "t", "5", {}, parent="4")
    saver.prune(["t"])
    assert uncollected(saver, ["t"]) == []


@pytest.mark.parametrize("large", [False, True])
def test_writes_that_name_what_goes_meanwhile_are_sent_again(
    open_saver: Callable[..., EventSaver], large: bool
) -> None:
    other = open_saver("other")
    serde = Hooked()
    saver = open_saver(serde=serde)
    value = "w" * (1_500_000 if large else 3_000)
    put(saver, "t", "1", {"x": value})
    serde.at_dump = lambda: other.delete_thread("t")
    saver.put_writes(config("t", "", "2"), [("x", value), ("y", "now")], "task")
    put(saver, "t", "2", {"n": 1})
    for each in (saver, other):
        found = each.get_tuple(config("t"))
        assert found is not None
        assert found.pending_writes == [("task", "x", value), ("task", "y", "now")]


def test_what_is_read_is_of_one_moment(open_saver: Callable[..., EventSaver]) -> None:
    """Not the values from before a delete with the writes from behind it."""
    other = open_saver("other")
    serde = Hooked()
    saver = open_saver(serde=serde)

    def fill() -> None:
        put(other, "t", "1", {"n": "now", "big": BIG})
        other.put_writes(config("t", "", "1"), [("x", 1)], "task")

    fill()
    serde.at_load = lambda: (other.delete_thread("t"), saver.setup(), saver.list(config("t")))
    assert saver.get_tuple(config("t")) is None
    fill()
    serde.at_load = lambda: (other.delete_thread("t"), saver.list(config("t")))
    assert list(saver.list(config("t"))) == []
    fill()
    serde.at_load = lambda: (put(other, "t", "1", {"n": 2}), saver.list(config("t")))
    assert values(saver, "t") == {"n": 2}


def test_the_newest_that_goes_meanwhile_gives_way_to_the_one_before(
    open_saver: Callable[..., EventSaver], monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = open_saver()
    put(saver, "t", "1", {"n": 1})
    put(saver, "t", "2", {"n": 2}, parent="1", metadata={"run_id": "r"})
    view: Any = runtime_of(saver).checkpoints
    page = view.page

    def then_gone(*arguments: Any) -> Any:
        found = page(*arguments)
        monkeypatch.undo()
        saver.delete_for_runs(["r"])
        return found

    monkeypatch.setattr(view, "page", then_gone)
    assert values(saver, "t") == {"n": 1}


def test_what_runs_did_may_be_gone_when_it_is_to_be_removed(
    open_saver: Callable[..., EventSaver], monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = open_saver()
    for thread in ("t", "u"):
        put(saver, thread, "1", {"n": 1}, metadata={"run_id": "r"})
        put(saver, thread, "2", {"n": 2}, parent="1")
    view: Any = runtime_of(saver).checkpoints
    of_run = view.run

    def then_gone(run: str) -> Any:
        found = of_run(run)
        monkeypatch.undo()
        saver.delete_thread("t")
        return found

    monkeypatch.setattr(view, "run", then_gone)
    saver.delete_for_runs(["r"])
    assert [ids(saver, "t"), ids(saver, "u")] == [[], ["2"]]


def test_the_history_of_a_channel_whose_thread_goes_meanwhile(open_saver: Callable[..., EventSaver]) -> None:
    other = open_saver("other")
    serde = Hooked()
    saver = open_saver(serde=serde)
    put(other, "t", "1", {"d": BIG})
    other.put_writes(config("t", "", "1"), [("d", "now")], "task")
    put(other, "t", "2", {"n": 1}, parent="1")
    whole = saver.get_delta_channel_history(config=config("t"), channels=["d"])
    assert whole == {"d": {"writes": [("task", "d", "now")], "seed": BIG}}
    fresh = open_saver("third", serde=serde)
    serde.at_load = lambda: (other.delete_thread("t"), fresh.list(config("t")))
    assert fresh.get_delta_channel_history(config=config("t"), channels=["d"]) == {"d": {"writes": []}}


@pytest.mark.parametrize("what", ["prune", "delete"])
def test_a_copy_of_a_thread_that_goes_meanwhile(
    open_saver: Callable[..., EventSaver], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied was there at one moment: checkpoints and their writes, or none of them."""
    other, saver = open_saver("other"), open_saver()
    put(other, "t", "1", {"big": BIG}, metadata={"run_id": "r"})
    other.put_writes(config("t", "", "1"), [("x", 1)], "task")
    put(other, "t", "2", {"big": [*BIG, what]}, parent="1")
    packed = saver._engine.reading.packed
    acts: list[Callable[[], object]] = [
        partial(other.delete_thread, "t") if what == "delete" else partial(other.prune, ["t"])
    ]

    def act_first(row: Row, stored: Stored, what: bytes = b"") -> Packed:
        if what == b"metadata" and acts:
            acts.pop()()
            saver.list(config("t"))
        return packed(row, stored, what)

    monkeypatch.setattr(saver._engine.reading, "packed", act_first)  # acts in the midst of a read
    saver.copy_thread("t", "to")
    assert not acts
    assert ids(saver, "to") == ([] if what == "delete" else ["2"])
    assert rows(saver) == rows(other)


def test_a_prune_keeps_what_a_fork_put_meanwhile_is_rebuilt_from(
    open_saver: Callable[..., EventSaver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delta channel's value is in the writes of ancestors, and the prune did not know of the child."""
    other, saver = open_saver("other"), open_saver()
    put(saver, "t", "1", {"d": ["seed"]})
    saver.put_writes(config("t", "", "1"), [("d", "one")], "task")
    put(saver, "t", "2", {"n": 2}, parent="1", metadata={"counters_since_delta_snapshot": {"d": [1, 1]}})
    saver.put_writes(config("t", "", "2"), [("d", "two")], "task")
    put(saver, "t", "3", {"d": ["whole"]}, parent="2")
    append = saver._engine.append
    delta = {"counters_since_delta_snapshot": {"d": [2, 2]}}

    def late(given: Any) -> None:
        put(other, "t", "4", {"n": 4}, parent="2", metadata=delta)
        append(given)

    monkeypatch.setattr(saver._engine, "append", late)
    saver.prune(["t"])
    monkeypatch.undo()
    for each in (saver, other):
        assert ids(each, "t") == ["4", "3"]
        assert each.get_delta_channel_history(config=config("t"), channels=["d"]) == {
            "d": {"writes": [("task", "d", "one"), ("task", "d", "two")], "seed": ["seed"]}
        }
    put(saver, "t", "5", {"d": ["whole"]}, parent="4")
    saver.prune(["t"])
    assert len([key for key in rows(saver) if key.startswith(b"c")]) == 1
    assert uncollected(saver, ["t"]) == []


def test_a_value_that_is_only_remembered_is_not_there(open_saver: Callable[..., EventSaver]) -> None:
    """Whether an event counts must not depend on what a reader has in memory: a rebuild has nothing."""
    saver = open_saver()
    put(saver, "t", "1", {"big": BIG})
    runtime = runtime_of(saver)
    (row,) = runtime.checkpoints.of_thread("t")
    name = row.values["big"]
    assert isinstance(name, bytes)
    manifest = runtime.checkpoints.manifest("t", name)
    assert manifest is not None
    parts = tuple(Part(data) for data in runtime.checkpoints.parts("t", manifest.digests) if data is not None)
    saver.delete_thread("t")
    named = Assembled(manifest.tag, manifest.head, name, (Copy(0, len(parts)),))
    assert isinstance(row.body, Packed) and isinstance(row.metadata, Packed)
    late = Put(Where("t", "", "2"), None, None, row.body, row.metadata, (), (("big", named),), parts)
    written = runtime.write(runtime.prepare([encode(late)]))
    assert [outcome.reason for outcome in written.outcomes.values()] == ["rejected"]
    assert saver.get_tuple(config("t")) is None
    assert rows(open_saver("fresh")) == rows(saver)
