"""Values in parts: always exactly the value, and the same parts whether or not an earlier one helps."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from eventstore.checkpoint import EventSaver
from eventstore.checkpoint.contents import Contents, Earlier
from eventstore.checkpoint.events import DIGEST_BYTES, Assembled, Copy, Packed
from eventstore.checkpoint.sealing import Seal
from eventstore.checkpoint.splitting import (
    BLOCK_BYTES,
    LARGEST_PART,
    NESTED_PARTS,
    PART_BYTES,
    WHOLE_BYTES,
    Split,
    digest,
    split,
)
from eventstore.checkpoint.views import CheckpointView, Manifest
from tests.checkpoint.kit import put, values

STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)
NAMES = 500_000
"""Bytes of a value's names at most, up to 17 MB: they stand in every event that names it anew."""

quick = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=400)
    | st.binary(max_size=400)
)
nested = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=9), inner, max_size=8),
    max_leaves=60,
)


def packed(value: Any) -> Packed:
    return Packed(*STRICT.dumps_typed(value))


def is_whole(made: Split, of: Packed) -> None:
    parts = [made.part(number) for number in range(len(made.digests))]
    assert made.head + b"".join(parts) == of.data
    assert made.packed() == of
    assert list(map(digest, parts)) == list(made.digests)
    assert max(map(len, parts), default=0) <= LARGEST_PART


def same_as_anew(before: Packed, after: Packed) -> None:
    """Cut with the help of an earlier value, twice over, and without any."""
    first = split(before)
    made, alone = split(after, before=first), split(after)
    assert made == alone
    is_whole(made, after)
    assert split(before, before=made) == first


@quick
@given(st.binary(max_size=9000), st.sampled_from(["msgpack", "bytes", "null", "json", "msgpack+aes"]))
def test_any_bytes_come_back(data: bytes, tag: str) -> None:
    is_whole(split(Packed(tag, data)), Packed(tag, data))


@quick
@given(nested)
def test_any_nested_value_comes_back(value: Any) -> None:
    is_whole(split(packed(value)), packed(value))


@quick
@given(st.binary(max_size=600), st.data())
def test_a_cut_or_changed_msgpack_comes_back_with_and_without_help(tail: bytes, data: st.DataObject) -> None:
    """Bytes that only begin like msgpack, or whose elements do not end where the value does."""
    whole = packed([{"a": "x" * 90, "b": [1, 2, "y" * 300]}] * 9).data
    cut = data.draw(st.integers(0, len(whole)))
    same_as_anew(Packed("msgpack", whole[:cut]), Packed("msgpack", whole[:cut] + tail))
    same_as_anew(Packed("msgpack", whole), Packed("msgpack", whole[:cut] + tail))
    same_as_anew(Packed("msgpack", whole[:cut] + tail), Packed("msgpack", whole))


EDITS: dict[str, Callable[[list[Any], Any, int], list[Any]]] = {
    "append": lambda items, new, at: [*items, new],
    "append many": lambda items, new, at: [*items, new, at, new, new],
    "trim the front": lambda items, new, at: items[at:],
    "edit": lambda items, new, at: [*items[:at], new, *items[at + 1 :]],
    "insert": lambda items, new, at: [*items[:at], new, *items[at:]],
    "remove": lambda items, new, at: items[:at] + items[at + 1 :],
    "shrink": lambda items, new, at: items[:at],
    "same length, other content": lambda items, new, at: items[:at] + items[at:][::-1],
    "repeat": lambda items, new, at: items + items[:at],
}


@quick
@given(st.lists(nested | st.text(min_size=200, max_size=900), max_size=30), st.data())
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_list_has_the_parts_it_would_have_alone(
    edit: str, items: list[Any], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(items)))
    after = EDITS[edit](items, data.draw(nested), at)
    same_as_anew(packed(items), packed(after))
    same_as_anew(
        packed({str(n): each for n, each in enumerate(items)}),
        packed({str(n): each for n, each in enumerate(after)}),
    )


@pytest.mark.parametrize(("limit", "least"), PART_BYTES[:-1])
def test_a_list_that_grows_past_a_step_of_sizes(limit: int, least: int) -> None:
    """From there on parts are larger, so none of those before can be taken over uncut."""
    each = least * 3 // 2
    count = limit // (each + 2)
    while len(packed(["x" * each] * count).data) > limit:
        count -= 1
    items = ["x" * each] * count
    before = packed(items)
    after = packed([*items, "y" * each, "z" * each])
    assert len(after.data) > limit
    same_as_anew(before, after)
    same_as_anew(after, before)


@pytest.mark.parametrize("off", [-1, 0, 1])
@pytest.mark.parametrize(
    "size",
    [WHOLE_BYTES, PART_BYTES[0][1], NESTED_PARTS * PART_BYTES[0][1], BLOCK_BYTES, LARGEST_PART, 1 << 20],
)
def test_sizes_around_every_threshold(size: int, off: int) -> None:
    for value in (
        "x" * (size + off),
        b"x" * (size + off),
        ["x" * (size + off)],
        {"k": [b"x" * (size + off), 1]},
    ):
        is_whole(split(packed(value)), packed(value))
        same_as_anew(packed([value, 1]), packed([value, 1, 2]))


def test_numbers_messages_and_arrays_come_back() -> None:
    messages = [
        HumanMessage("hello " * 40, id="1"),
        AIMessage(
            [{"type": "text", "text": "a" * 300}], tool_calls=[{"id": "c", "name": "n", "args": {"q": 1}}]
        ),
        ToolMessage("x" * 2000, tool_call_id="c"),
    ]
    for value in (
        list(range(100_000)),
        {str(number): number for number in range(20_000)},
        np.arange(300_000, dtype=np.float64),
        [np.ones((30, 40)), {"m": np.zeros(9)}],
        messages * 50,
        {"messages": messages, "docs": [["t" * 600, {"n": [1] * 900}]] * 9},
        "é" * 1_500_000,
        float("nan"),
    ):
        is_whole(split(packed(value)), packed(value))
        same_as_anew(packed([value]), packed([value, value]))


def test_a_message_that_is_given_an_id_shares_its_text() -> None:
    before = split(packed([HumanMessage("long text " * 200)]))
    after = split(packed([HumanMessage("long text " * 200, id="7")]))
    shared = set(before.digests) & set(after.digests)
    assert sum(len(after.part(n)) for n, name in enumerate(after.digests) if name in shared) > 1_900


@pytest.mark.parametrize("levels", [3, 100, 200])
def test_how_deep_a_value_is_does_not_multiply_its_parts(levels: int) -> None:
    value: Any = ["x" * 50] * 10
    for _ in range(levels):
        value = [value]
    assert len(split(packed(value)).digests) < 20


@pytest.mark.parametrize("each", [250, 1_000])
@pytest.mark.parametrize("size", [900_000, 5_000_000, 17_000_000])
def test_the_names_of_a_value_are_few(size: int, each: int) -> None:
    """Of lists of small lists most of all, which have a head and a rest to be named."""
    made = split(packed([["y" * each, number] for number in range(size // (each + 10))]))
    assert len(made.digests) * (2 + DIGEST_BYTES) < NAMES


@pytest.mark.parametrize("number", range(8))
def test_what_is_described_and_folded_is_read_back(number: int) -> None:
    """Descriptions of values in a row, each continuing the one before, against parts kept in a dict."""
    chance = random.Random(number)
    view = _Parts()
    contents = Contents(lambda: cast(CheckpointView, view), kept_bytes=chance.choice([0, 1 << 20]))
    seal = Seal() if number % 2 else Seal(bytes(32))
    items: list[Any] = []
    earlier: Earlier | None = None
    for _ in range(40):
        items = EDITS[chance.choice(list(EDITS))](
            items[-60:], ["x" * chance.randrange(300), chance.random()], chance.randrange(len(items) + 1)
        )
        value = packed(items)
        description = contents.describe("t", seal, whole=chance.random() < 0.2)
        described, made = description.described(value, earlier)
        if not isinstance(described, Assembled) or made is None:
            assert described == value
            earlier = None
            continue
        name = view.fold(
            described,
            [(p.digest or digest(p.data), p.data) for p in description.take_parts()],
            seal.closes,
        )
        assert name == made.name()
        if chance.random() < 0.7:
            contents.keep("t", made)
        assert contents.read("t", name, lambda: seal) == value
        earlier = contents.earlier("t", name)


class _Parts:
    """A view of values alone."""

    def __init__(self) -> None:
        self.by_name: dict[bytes, bytes] = {}
        self.values: dict[bytes, Manifest] = {}

    def fold(self, value: Assembled, parts: list[tuple[bytes, bytes]], sealed: bool) -> bytes:
        self.by_name.update(parts)
        earlier = self.values[value.after].digests if value.after is not None else ()
        names: list[bytes] = []
        for piece in value.pieces:
            if isinstance(piece, Copy):
                assert piece.parts > 0
                names += earlier[piece.first : piece.first + piece.parts]
            else:
                names.append(parts[piece][0] if isinstance(piece, int) else piece)
        assert all(name in self.by_name for name in names)
        name = Split(value.tag, value.head, b"", (), tuple(names)).name()
        self.values[name] = Manifest(value.tag, value.head, sealed, tuple(names))
        return name

    def manifest(self, thread: str, value: bytes) -> Manifest | None:
        return self.values.get(value)

    def parts(self, thread: str, digests: list[bytes]) -> list[bytes | None]:
        return [self.by_name.get(name) for name in digests]

    def has_part(self, thread: str, name: bytes) -> bool:
        return name in self.by_name


def test_extension_types_and_foreign_maps_are_cut_like_others() -> None:
    """A delta channel's snapshot is an extension that holds a list."""
    inner = msgpack.packb([f"{number} " + "z" * 90 for number in range(50)])
    for code in (7, 5):
        value = Packed("msgpack", msgpack.packb(msgpack.ExtType(code, inner)))
        is_whole(split(value), value)
        assert (len(split(value).digests) > 20) is (code == 7)


@pytest.mark.parametrize("tail", [b"\xc1" * 50, b"\xdd\xff\xff\xff\xff", b"\xda\xff", b""])
@pytest.mark.parametrize("size", [100, 300_000])
def test_an_element_that_only_begins_like_a_list(tail: bytes, size: int) -> None:
    """What an extension holds is anybody's; found to be no msgpack halfway, it is cut like any bytes."""
    inner = b"\x9f" + msgpack.packb("y" * 300) + msgpack.packb("z" * size) + tail
    items = ["a" * 70, msgpack.ExtType(5, inner), "b" * 300, msgpack.ExtType(6, inner * 2), 1]
    value = Packed("msgpack", msgpack.packb(items))
    is_whole(split(value), value)
    same_as_anew(value, Packed("msgpack", msgpack.packb([*items, "c"])))


def test_values_of_every_size_through_the_saver(tmp_path: Path) -> None:
    """What stands in the event, what is cut, and what travels in records of its own; read back unkept."""
    given = {
        "tiny": 1,
        "small": "x" * 60,
        "inline": "x" * 70,
        "blocks": "b" * 10_000,
        "large": b"\x00\xff" * 700_000,
        "list": list(range(30_000)),
        "none": None,
        "empty": [],
        "blank": "",
    }
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", given)
        assert values(saver, "t") == given
    with EventSaver.open(tmp_path / "s") as saver:
        assert values(saver, "t") == given
        put(
            saver,
            "t",
            "2",
            given | {"large": given["large"] + b"more", "list": [*given["list"], 1]},
            parent="1",
        )
    with EventSaver.open(tmp_path / "s") as saver:
        assert values(saver, "t", "1") == given
        assert values(saver, "t") == given | {"large": given["large"] + b"more", "list": [*given["list"], 1]}
