"""What a state may hold: nothing that is loaded constructs an object nobody asked for."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt, Send
from pydantic import BaseModel

from eventstore.checkpoint import EventSaver
from eventstore.errors import InvalidInput
from tests.checkpoint.kit import config, events, everything, put, values

PERMISSIVE = JsonPlusSerializer(allowed_msgpack_modules=True)
made: list[str] = []
"""Classes whose constructors ran."""


@dataclasses.dataclass
class Point:
    x: int
    y: int

    def __post_init__(self) -> None:
        made.append("Point")


class Person(BaseModel):
    name: str

    def __init__(self, **data: Any) -> None:
        made.append("Person")
        super().__init__(**data)


class Color(enum.Enum):
    RED = "red"


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Path]:
    """A thread written by a saver that lets any class through."""
    with EventSaver.open(tmp_path / "s", serde=PERMISSIVE) as saver:
        state = {"point": Point(1, 2), "people": [Person(name="Ann")], "color": Color.RED}
        put(saver, "t", "1", state)
        saver.put_writes(config("t", "", "1"), [("point", Point(3, 4))], "task")
        assert values(saver, "t") == state
    made.clear()
    yield tmp_path / "s"


@pytest.mark.filterwarnings("ignore")
def test_a_class_that_is_not_allowed_comes_back_as_plain_data(written: Path) -> None:
    with EventSaver.open(written) as saver:
        found = saver.get_tuple(config("t"))
        assert found is not None
        state = found.checkpoint["channel_values"]
        assert state["point"] == {"x": 1, "y": 2}
        assert state["people"] == [{"name": "Ann"}]
        assert state["color"] == "red"
        assert found.pending_writes == [("task", "point", {"x": 3, "y": 4})]
        assert list(saver.list(config("t"))) == [found]
        saver.copy_thread("t", "to")
    assert made == []


@pytest.mark.filterwarnings("ignore")
def test_a_copy_keeps_what_it_does_not_load(written: Path) -> None:
    with EventSaver.open(written) as saver:
        saver.copy_thread("t", "to")
    with EventSaver.open(written, allowed_types=[Point, Person, Color]) as saver:
        assert values(saver, "to")["point"] == Point(1, 2)


def test_allowed_types_are_let_through_and_no_others(written: Path) -> None:
    with EventSaver.open(written, allowed_types=[Point]) as saver:
        state = values(saver, "t")
        assert state["point"] == Point(1, 2)
        assert state["people"] == [{"name": "Ann"}]
        made.clear()
        values(saver, "t")
        assert made == ["Point", "Point"], "its write was loaded, too"
    with EventSaver.open(written, allowed_types=[Point, Person, Color]) as saver:
        assert values(saver, "t") == {
            "point": Point(1, 2), "people": [Person(name="Ann")], "color": Color.RED,
        }  # fmt: skip


def test_a_serde_of_ones_own_decides_by_itself(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="allowed_types"):
        EventSaver.open(tmp_path / "s", serde=PERMISSIVE, allowed_types=[Point])


def test_nothing_is_pickled(tmp_path: Path) -> None:
    """What cannot be written down is refused, and nothing of the checkpoint is there."""
    state = {
        "messages": [HumanMessage("hi"), AIMessage([{"type": "text", "text": "hello"}])],
        "array": np.arange(6).reshape(2, 3),
        "set": {1, 2},
        "path": Path("a") / "b",
        "send": Send("node", {"n": 1}),
        "interrupt": Interrupt(value="?", id="i"),
        "exception": ValueError("no"),
    }
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", state)
        found = values(saver, "t")
        for unwritable in (lambda: 1, object(), open):
            with pytest.raises(TypeError):
                put(saver, "t", "2", {"n": 1, "x": unwritable}, parent="1")
            with pytest.raises(TypeError):
                saver.put_writes(config("t", "", "1"), [("n", 1), ("x", unwritable)], "task")
        assert len(everything(saver)) == 1
        assert everything(saver)[0].pending_writes == []
    assert found["messages"] == state["messages"]
    assert np.array_equal(found["array"], np.arange(6).reshape(2, 3))
    assert found["send"] == state["send"]
    assert found["interrupt"] == state["interrupt"]
    for event in events(tmp_path / "s"):
        assert "pickle" not in repr(event)


@pytest.mark.parametrize("value", [None, 0, "", [], {}, False, b"", 0.0, [None], "\x00", "\U0001f600"])
def test_values_that_are_next_to_nothing(tmp_path: Path, value: Any) -> None:
    """A value that is falsy is one; a channel without a value has none."""
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"x": value}, versions={"x": 1, "gone": 1})
        saver.put_writes(config("t", "", "1"), [("x", value)], "task")
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": value}
        assert found.pending_writes == [("task", "x", value)]


def test_a_saver_cloned_with_more_types_is_the_same_saver(tmp_path: Path) -> None:
    """LangGraph clones it when a graph is compiled."""
    with EventSaver.open(tmp_path / "s") as saver:
        clone: Any = saver.with_allowlist([(__name__, "Point")])
        put(clone, "t", "1", {"point": Point(1, 2)})
        assert values(clone, "t") == {"point": Point(1, 2)}
        assert saver.get_tuple(config("t")) is not None
        assert clone._engine is saver._engine
