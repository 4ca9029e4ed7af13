"""How many bytes of log a conversation takes: counted, so that a change that stores more is noticed."""

from __future__ import annotations

import operator
import random
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

from eventstore.checkpoint import EventSaver, FolderKeys
from tests.checkpoint.kit import checkpoint, config, log_bytes, put, records, rows, text, values

TURNS = 60
NEW_BYTES = 1_200
"""What a turn adds to the conversation, about."""
MOST_BYTES = {"plain": 320_000, "sealed": 380_000}
"""For all turns, of three steps and two tasks each: a fifth more than when this was written."""


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    turns: int


def chat(saver: EventSaver) -> Any:
    def answer(state: Chat) -> Chat:
        chance = random.Random(state.get("turns", 0))
        said = AIMessage(text(chance, NEW_BYTES), id=f"a{state.get('turns', 0)}")
        return {"messages": [said], "turns": state.get("turns", 0) + 1}

    def note(state: Chat) -> Chat:
        return {"notes": [str(state["messages"][-1].content)[:50]]}

    made = StateGraph(Chat)
    made.add_node("answer", answer)
    made.add_node("note", note)
    made.add_edge(START, "answer")
    made.add_edge("answer", "note")
    made.add_edge("note", END)
    return made.compile(checkpointer=saver)


@pytest.mark.parametrize("kind", MOST_BYTES)
def test_a_conversation_takes_log_in_proportion_to_what_is_new(tmp_path: Path, kind: str) -> None:
    """Not to its length times its turns: whole states would take 12 MB."""
    keys = FolderKeys(tmp_path / "keys", bytes(32)) if kind == "sealed" else None
    sizes = []
    with EventSaver.open(tmp_path / "s", keys=keys) as saver:
        graph = chat(saver)
        for turn in range(TURNS):
            said = HumanMessage(text(random.Random(-turn), NEW_BYTES), id=f"h{turn}")
            graph.invoke({"messages": [said]}, {"configurable": {"thread_id": "t"}}, durability="sync")
            sizes.append(log_bytes(tmp_path / "s"))
        assert len(values(saver, "t")["messages"]) == 2 * TURNS
        whole = sum(len(saver.serde.dumps_typed(each.checkpoint)[1]) for each in saver.list(config("t")))
    assert sizes[-1] < MOST_BYTES[kind], sizes[-1]
    assert sizes[-1] < whole / 25
    # The last turns take hardly more than the first ones.
    assert sizes[-1] - sizes[-11] < 1.5 * (sizes[10] - sizes[0])


def test_an_unchanged_channel_is_not_stored_again(tmp_path: Path) -> None:
    """Neither where its version stays, nor where the same value is given a new one."""
    big = random.Random(1).randbytes(1 << 20)
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"big": big, "n": 1})
        before = log_bytes(tmp_path / "s")
        for number in range(2, 12):
            made = checkpoint(str(number), {"big": big, "n": number}, {"big": "1", "n": str(number)})
            saver.put(config("t", "", str(number - 1)), made, {}, {"n": str(number)})
        assert log_bytes(tmp_path / "s") - before < 10 * 600
    before = log_bytes(tmp_path / "s")
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "12", {"big": big, "n": 12}, parent="11")
        saver.put_writes(config("t", "", "12"), [("big", big)], "task")
        put(saver, "t", "13", {"again": big}, parent=None)
        assert log_bytes(tmp_path / "s") - before < 3 * 1_000
        # Parts and all, there is one of it.
        assert sum(map(len, rows(saver).values())) < 1.05 * len(big)


@pytest.mark.parametrize(
    ("kind", "most"),
    [("append", 1_600), ("trim", 1_600), ("edit", 1_600), ("message that was put as a write", 450)],
)
def test_a_change_takes_what_is_new(tmp_path: Path, kind: str, most: int) -> None:
    chance = random.Random(7)
    messages = [HumanMessage(text(chance, 1_000), id=str(number)) for number in range(400)]
    new = HumanMessage(text(chance, 2_000), id="new")
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"messages": messages})
        if kind == "message that was put as a write":
            saver.put_writes(config("t", "", "1"), [("messages", [new])], "task")
        before = log_bytes(tmp_path / "s")
        after = {
            "trim": [*messages[10:], new],
            "edit": [*messages[:200], new, *messages[201:]],
        }.get(kind, [*messages, new])
        put(saver, "t", "2", {"messages": after}, parent="1")
        taken = log_bytes(tmp_path / "s") - before
        assert values(saver, "t") == {"messages": after}
    assert taken < most, taken


STATES: dict[str, dict[str, Any]] = {
    "one value": {"x": random.Random(1).randbytes(1_000_000).hex()},
    "many channels": {f"channel {number}": "v" * 60 for number in range(4_000)} | {"x": "s" * 700_000},
    "lists": {f"list{number}": list(range(number << 20, (number << 20) + 40_000)) for number in range(5)},
    "small elements": {"x": [["y" * 255, number] for number in range(20_000)]},
}


@pytest.mark.parametrize("state", STATES)
def test_no_record_is_larger_than_a_broker_takes(tmp_path: Path, state: str) -> None:
    """Kafka's own default is 1 MB, whatever the topics are made with here."""
    given = STATES[state]
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", given)
        saver.put_writes(config("t", "", "1"), list(given.items())[:900], "task")
        saver.copy_thread("t", "to")
        assert values(saver, "to") == given
    sizes = [len(record.value or b"") for record in records(tmp_path / "s")]
    assert max(sizes) < 1_000_000, sizes
    assert len(sizes) > 4
