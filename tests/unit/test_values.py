"""Values: exactly back, or refused with the place and never the content."""

import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import sys
import types
import uuid
from typing import Any

import numpy
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventstore.errors import InvalidInput, InvalidType
from eventstore.values import MAX_DEPTH, MAX_DIGITS, decode_value, encode_value

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
EDGES = [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**18, -(10**18), 10**19, 10**400]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([*EDGES, *(-n for n in EDGES)]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [1.0, -0.0, 1e16, 1e22, 1e308, 5e-324, 2.0**63, 2.0**64, -(2.0**70), 0.00012345678901234567]
    ),
    TEXT,
    st.sampled_from(["null", "NaN", "12345678901234567890123", ":-9999999999999999999,", ":[1e999]"]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)
VALUES = st.dictionaries(TEXT, JSON, max_size=5)


def exact(value: Any) -> Any:
    """Everything that must survive: types, floats bit by bit, the order of keys."""
    if isinstance(value, dict):
        return ("dict", [(key, exact(part)) for key, part in value.items()])
    if isinstance(value, (list, tuple)):
        return ("list", [exact(part) for part in value])
    return (type(value), value.hex() if isinstance(value, float) else value)


def nested(levels: int, innermost: Any = None) -> Any:
    """A value of so many levels, objects and lists in turn, the value itself included."""
    part = {} if innermost is None else innermost
    for level in range(levels - 1, 0, -1):
        part = {"a": part} if level % 2 else [part]
    return part


@given(VALUES)
@example({"a": {"b": [2**64, 1.0, None]}, "c": float(2**64)})
def test_a_value_comes_back_exactly(value: Any) -> None:
    data = encode_value(value)
    assert exact(decode_value(data)) == exact(value)
    assert exact(json.loads(data)) == exact(value)


@given(VALUES)
def test_other_spellings_of_json_are_read_exactly(value: Any) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert exact(decode_value(text.encode())) == exact(value)


@given(st.dictionaries(TEXT, st.one_of(TEXT, st.integers(-9, 9), st.none()), max_size=4))
def test_the_bytes_are_compact_json(value: Any) -> None:
    assert encode_value(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def test_large_integers_are_written_beside_everything_else() -> None:
    value = {"b": "é\n", "a": [2**64, -(2**63) - 1, 1.5, {"x": 10**30}]}
    text = (
        b'{"b":"\xc3\xa9\\n","a":[18446744073709551616,-9223372036854775809,1.5,{"x":1' + b"0" * 30 + b"}]}"
    )
    assert encode_value(value) == text


def test_integers_have_a_limit_that_every_reader_shares() -> None:
    longest = {"x": [10**MAX_DIGITS - 1, 1 - 10**MAX_DIGITS]}
    assert decode_value(encode_value(longest)) == longest
    for number in (10**MAX_DIGITS, -(10**MAX_DIGITS)):
        with pytest.raises(InvalidInput, match=r'value\["x"\] is an integer of more than 4300 digits'):
            encode_value({"x": number})
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(InvalidInput, match="4300 digits"):
            encode_value({"x": 10**MAX_DIGITS})
    finally:
        sys.set_int_max_str_digits(before)


# ----------------------------------------------------------- what is accepted


class Colour(str, enum.Enum):  # noqa: UP042  # the older spelling is what most code has
    """A str all the same."""

    RED = "red"


class Loud(str):
    """A str that shows itself otherwise."""

    def __str__(self) -> str:
        return "LOUD"


class Size(enum.IntEnum):
    """An int all the same."""

    BIG = 3


class Metres(float):
    """A float that shows itself otherwise."""

    def __repr__(self) -> str:
        return "a metre"


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [types.MappingProxyType({"a": 1}), collections.UserDict({"a": 1}), collections.OrderedDict(a=1),
     collections.defaultdict(int, a=1), collections.ChainMap({"a": 1})],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_any_mapping_becomes_a_dict(value: Any) -> None:
    assert exact(decode_value(encode_value(value))) == exact({"a": 1})
    assert exact(decode_value(encode_value({"x": [value]}))) == exact({"x": [{"a": 1}]})


@pytest.mark.parametrize(
    "part, stored",
    [
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        (Colour.RED, "red"),
        (Loud("x"), "x"),
        (Size.BIG, 3),
        (Metres(1.5), 1.5),
        ({Colour.RED: 1}, {"red": 1}),
        (type("Names", (list,), {})([1]), [1]),
    ],
    ids=repr,
)
def test_subclasses_are_stored_as_the_plain_type(part: Any, stored: Any) -> None:
    assert exact(decode_value(encode_value({"x": part}))) == exact({"x": stored})


def test_the_value_is_not_changed_or_kept() -> None:
    inner = collections.UserDict(a=[2**70])
    value = {"x": inner}
    data = encode_value(value)
    assert value == {"x": inner} and inner.data == {"a": [2**70]}
    inner["a"].append(1)
    assert decode_value(data) == {"x": {"a": [2**70]}}
    assert decode_value(data)["x"] is not decode_value(data)["x"]


def test_a_part_may_stand_in_two_places() -> None:
    part = [1, 2**70]
    assert decode_value(encode_value({"a": part, "b": part})) == {"a": part, "b": part}


@pytest.mark.parametrize("innermost", [{}, {"x": 2**70}, {"x": None}, collections.UserDict()])
def test_nesting_has_one_limit(innermost: Any) -> None:
    value = nested(MAX_DEPTH, innermost)
    assert decode_value(encode_value(value)) == value
    for levels in (MAX_DEPTH + 1, MAX_DEPTH + 2, MAX_DEPTH + 10, 1200, 100_000):
        with pytest.raises(InvalidInput, match="nested deeper than 250 levels"):
            encode_value(nested(levels, innermost))


# ------------------------------------------------------------ what is refused


@dataclasses.dataclass
class Record:
    """Not a mapping."""

    secret: str = "s3cret"


class Plain(enum.Enum):
    """orjson would write its value."""

    SECRET = "s3cret"


NOT_JSON = [
    b"s3cret", bytearray(b"s3cret"), {"s3cret"}, frozenset(), object(), 1j, decimal.Decimal("1.5"),
    datetime.datetime(2024, 1, 2), datetime.date(2024, 1, 2), datetime.time(1), datetime.timedelta(1),
    uuid.UUID(int=1), Record(), Plain.SECRET, orjson.Fragment(b'"s3cret"'), collections.UserList([1]),
    range(3),
    numpy.float64(1.5), numpy.float32(1.5), numpy.int64(1), numpy.bool_(True), numpy.str_("s3cret"),
    numpy.array([1.0]), str, len, iter([1]),
]  # fmt: skip


@pytest.mark.parametrize("bad", NOT_JSON, ids=lambda bad: type(bad).__name__)
@pytest.mark.parametrize("more", [{}, {"big": 2**70}, {"null": None}], ids=["plain", "big", "null"])
def test_other_types_are_refused_with_the_place(bad: Any, more: dict[str, Any]) -> None:
    name = type(bad).__qualname__
    for value, place in (
        ({"x": bad}, 'value["x"]'),
        ({"ok": [], "a": [0, 1, 2, {"b": bad}]}, 'value["a"][3]["b"]'),
        ({"a": (0, [bad])}, 'value["a"][1][0]'),
    ):
        with pytest.raises(InvalidType) as caught:
            encode_value({**more, **value})
        text = str(caught.value)
        assert text.startswith(f"{place} is a") and name in text and "s3cret" not in text
        assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("bad", [42, "abc", [1, 2], [("a", 1)], None, Record(), (), {"a"}], ids=repr)
def test_a_value_must_be_a_mapping(bad: Any) -> None:
    with pytest.raises(InvalidType, match="a value is a mapping"):
        encode_value(bad)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, Metres(math.nan)])
@pytest.mark.parametrize("more", [{}, {"big": 2**70}, {"null": None}], ids=["plain", "big", "null"])
def test_numbers_that_json_lacks_are_refused(number: Any, more: dict[str, Any]) -> None:
    for value, place in (
        ({"x": number}, r'\["x"\]'),
        ({"a": [{"b": [1.0, number]}]}, r'\["a"\]\[0\]\["b"\]\[1\]'),
    ):
        with pytest.raises(InvalidInput, match=f"value{place} is NaN or infinite"):
            encode_value({**more, **value})


@pytest.mark.parametrize("key", [1, None, True, 1.5, ("s3cret",), b"s3cret", Plain.SECRET, Size.BIG])
def test_keys_that_are_no_strings_are_refused(key: Any) -> None:
    for value, place in (
        ({key: "a"}, "value"),
        ({"x": [{key: 1}]}, 'value["x"][0]'),
        ({key: 2**70}, "value"),
    ):
        with pytest.raises(InvalidType) as caught:
            encode_value(value)
        assert str(caught.value).startswith(f"{place} has a key that is a") and "s3cret" not in str(
            caught.value
        )


def test_half_a_surrogate_pair_is_refused() -> None:
    for value in ({"x": "\ud800"}, {"x": "\ud800", "y": 2**70}):
        with pytest.raises(InvalidInput, match=r'value\["x"\] is not valid Unicode'):
            encode_value(value)
    with pytest.raises(InvalidInput, match=r'a key of value\["x"\] is not valid Unicode'):
        encode_value({"x": {"\udfff": 1}})
    with pytest.raises(InvalidInput, match="a key of value is not valid Unicode"):
        encode_value({"\udfff": 1})


def test_cycles_are_refused() -> None:
    loop: dict = {}
    loop["self"] = loop
    ring: dict = {"a": [{}, {}]}
    ring["a"][1]["b"] = ring["a"]
    wide: dict = {}
    wide.update({str(n): wide for n in range(50)})
    proxy: dict = {}
    proxy["p"] = types.MappingProxyType(proxy)
    for value in (loop, ring, wide, {"x": 2**70, "y": loop}, {"e": Plain.SECRET, "y": ring["a"]}):
        with pytest.raises((InvalidInput, InvalidType)):
            encode_value(value)
    for value in (loop, ring, wide, proxy):
        with pytest.raises(InvalidInput, match="value contains itself"):
            encode_value(value)


def test_a_long_key_is_cut_in_the_error() -> None:
    with pytest.raises(InvalidType) as caught:
        encode_value({"k" * 10_000: b""})
    assert len(str(caught.value)) < 300


# -------------------------------------------------------------------- decoding


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"null", b"[1]", b'"x"', b"12345678901234567890123", b"[12345678901234567890123 ]",
     b'{"a":NaN}', b'{"a":1e999}', b'{"a":"\xff"}', b"\xff\xfe{\x00}\x00", b'{"a":1}x',
     b'{"a":NaN,"b":12345678901234567890123}', b'{"a":1e999,"b":12345678901234567890123}',
     b'{"a":"\\ud800","b":12345678901234567890123}', b'{"b":12345678901234567890123,}',
     b'{"a":"\xff","b":12345678901234567890123}', b'{"b":' + b"1" * 5000 + b"}",
     b'{"b":12345678901234567890123,"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
     b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput, match="stored bytes that are not a value"):
        decode_value(data)


def test_an_error_about_stored_bytes_keeps_them_to_itself() -> None:
    with pytest.raises(InvalidInput) as caught:
        decode_value(b'{"password":"s3cret"')
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.parametrize("number", [*EDGES[:8], *(-n for n in EDGES[:8])])
@pytest.mark.parametrize(
    "shape", ['{"a":%s}', '{"a":[%s]}', '{"a":[0,%s,0]}', '{"b":0,"a":%s,"c":0}', '{"a": %s }']
)
def test_integers_around_64_bits_stay_integers(number: Any, shape: str) -> None:
    text = shape % number
    assert exact(decode_value(text.encode())) == exact(json.loads(text))


@pytest.mark.parametrize(
    "number", ["18446744073709551616.0", "18446744073709551616e0", "0." + "1" * 30, "1e30"]
)
def test_long_floats_stay_floats(number: Any) -> None:
    assert exact(decode_value(f'{{"a":{number}}}'.encode())) == exact({"a": float(number)})


def test_digits_inside_text_are_text() -> None:
    value = {"phone": "0" * 40, "list": ",123456789012345678901,", "[99999999999999999999]": -1}
    assert decode_value(encode_value(value)) == value
