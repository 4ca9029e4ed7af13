"""The key codec: injective, ordered as tuples, whole-label prefixes, reversible."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.errors import InvalidInput
from eventstore.keys import (
    after,
    ancestors,
    decode_item,
    decode_namespace,
    encode_item,
    encode_namespace,
    escape,
    namespace_end,
    unescape,
)

# Text that is likely to collide: separators, neighbours of separators, and multi-byte characters.
TEXT = st.one_of(
    st.text(st.sampled_from("\x00\x01\x02\x03ab\x7f\x80é\uffff😀"), max_size=5),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
)
NAMESPACES = st.lists(TEXT, max_size=4).map(tuple)
ITEMS = st.tuples(NAMESPACES, TEXT)
BYTES = st.one_of(st.binary(max_size=8), st.lists(st.sampled_from([0, 1, 2, 255]), max_size=6).map(bytes))


@given(ITEMS)
def test_an_item_comes_back_exactly(item: tuple[tuple[str, ...], str]) -> None:
    data = encode_item(*item)
    assert decode_item(data) == item
    assert data[: namespace_end(data)] == encode_namespace(item[0])
    assert decode_namespace(encode_namespace(item[0])) == item[0]


@given(st.lists(ITEMS, min_size=2, max_size=12))
def test_byte_order_is_the_order_of_labels_then_keys(items: list[tuple[tuple[str, ...], str]]) -> None:
    assert sorted(items) == sorted(items, key=lambda item: encode_item(*item))


@given(ITEMS, ITEMS)
def test_two_items_never_share_bytes(one: Any, other: Any) -> None:
    assert (encode_item(*one) == encode_item(*other)) is (one == other)


@given(NAMESPACES, NAMESPACES, TEXT)
def test_a_byte_prefix_is_a_prefix_of_whole_labels(
    short: tuple[str, ...], long: tuple[str, ...], key: str
) -> None:
    inside = long[: len(short)] == short
    assert encode_namespace(long).startswith(encode_namespace(short)) is inside
    assert encode_item(long, key).startswith(encode_namespace(short)) is inside


@pytest.mark.parametrize(
    "one, other",
    [
        ((("a", "bc"), "k"), (("ab", "c"), "k")),
        ((("a",), "bk"), (("ab",), "k")),
        ((("a", "b"), "k"), (("a",), "\x02b\x00\x01k")),
        (((), "\x02a\x00\x01k"), (("a",), "k")),
        ((("a\x00",), ""), (("a", ""), "")),
        ((("\x01",), ""), (("\x00",), "\x02")),
    ],
)
def test_label_boundaries_never_meet(one: Any, other: Any) -> None:
    assert encode_item(*one) != encode_item(*other)
    assert decode_item(encode_item(*one)) == one and decode_item(encode_item(*other)) == other


def test_memories_sort_before_those_of_child_namespaces() -> None:
    assert encode_item(("a",), "\U0010ffff") < encode_item(("a", ""), "")


def test_the_layout_is_fixed() -> None:
    assert encode_item(("a", "b\x00\x01"), "k\x00") == b"\x02a\x00\x02b\x01\x01\x01\x02\x00\x01k\x00"
    assert encode_item((), "k") == b"\x01k"
    assert encode_namespace(()) == b""


@given(NAMESPACES)
def test_prefixes_are_the_encoded_ancestors(namespace: tuple[str, ...]) -> None:
    found = ancestors(encode_namespace(namespace))
    assert found == tuple(encode_namespace(namespace[:n]) for n in range(len(namespace) + 1))


@given(BYTES, BYTES)
def test_escaping_keeps_order_and_prefixes_and_is_reversible(one: Any, other: Any) -> None:
    assert unescape(escape(one)) == one
    assert b"\x00" not in escape(one)
    assert (escape(one) < escape(other)) is (one < other)
    assert escape(one + other).startswith(escape(one))
    assert escape(one + other) == escape(one) + escape(other)


@given(BYTES, BYTES)
def test_after_is_above_all_with_the_prefix_and_nothing_else(prefix: bytes, other: Any) -> None:
    end = after(prefix)
    assert end is None or prefix + other < end
    if not other.startswith(prefix) and other > prefix:
        assert end is not None and other >= end


def test_nothing_is_after_the_last_bytes() -> None:
    assert after(b"") is None and after(b"\xff\xff") is None
    assert after(b"a\xff") == b"b"


@pytest.mark.parametrize(
    "data",
    [b"", b"a", b"\x00", b"\x02a", b"\x02a\x00", b"a\x00\x01k", b"\x02a\x00\x00\x01k",
     b"\x02\x01\x03\x00\x01k",
     b"\x02\xff\x00\x01k", b"\x02a\x00\x01\xff", b"\x02a\x01\x00\x01k"],
)  # fmt: skip
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_item(data)


@pytest.mark.parametrize("data", [b"\x02", b"\x00", b"\x02a", b"a\x00", b"\x02a\x00\x01", b"\x02a\x00\x00"])
def test_other_bytes_are_no_namespace(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        decode_namespace(data)


@given(st.binary(max_size=10))
def test_whatever_decodes_encodes_to_the_same_bytes(data: bytes) -> None:
    try:
        item = decode_item(data)
    except InvalidInput:
        return
    assert encode_item(*item) == data


def test_more_namespaces_than_the_caches_hold() -> None:
    names = [("many", str(n)) for n in range(40_000)]
    encoded = [encode_namespace(name) for name in names]
    assert [decode_namespace(data) for data in encoded] == names
    assert encode_namespace(names[0]) == encoded[0]
    ordered = sorted(encoded)
    assert all(low < high for low, high in pairwise(ordered))


def test_a_long_namespace_is_encoded_alike_each_time() -> None:
    namespace = tuple("x" * 300 for _ in range(100))
    assert encode_namespace(namespace) == encode_namespace(namespace)
    assert decode_namespace(encode_namespace(namespace)) == namespace
