"""Filters: the cases one by one, all operators against an independent reading, and what is refused."""

import datetime
import decimal
import json
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy
import orjson
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from eventstore.errors import InvalidFilter, InvalidType
from eventstore.filters import MAX_DEPTH, compile_filter
from eventstore.values import decode_value, encode_value

# ------------------------------------------------------------------ the meaning, written the long way


def kind(part: Any) -> str:
    if isinstance(part, bool):
        return "boolean"
    if isinstance(part, (int, float)):
        return "number"
    if isinstance(part, (list, tuple)):
        return "array"
    return {str: "string", dict: "object", type(None): "null"}[type(part)]


def same(one: Any, other: Any) -> bool:
    if kind(one) != kind(other):
        return False
    if kind(one) == "array":
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if kind(one) == "object":
        return sorted(one) == sorted(other) and all(same(one[key], other[key]) for key in one)
    return one == other


def holds(filter: Any, document: dict[str, Any]) -> bool:
    return all(entry_holds(key, operand, document) for key, operand in (filter or {}).items())


def entry_holds(key: Any, operand: Any, document: dict[str, Any]) -> bool:
    if key == "$and":
        return all(holds(each, document) for each in operand)
    if key == "$or":
        return any(holds(each, document) for each in operand)
    if key == "$not":
        return not holds(operand, document)
    if not isinstance(operand, Mapping):
        return key in document and same(document[key], operand)
    if not operand:
        return True
    if all(name.startswith("$") for name in operand):
        return all(operator_holds(name, wanted, key, document) for name, wanted in operand.items())
    return kind(document.get(key)) == "object" and holds(operand, document[key])


def operator_holds(name: str, wanted: Any, key: Any, document: dict[str, Any]) -> bool:
    if name == "$exists":
        return (key in document) == wanted
    if key not in document:
        return False
    stored = document[key]
    if name in ("$eq", "$ne"):
        return same(stored, wanted) == (name == "$eq")
    if name in ("$in", "$nin"):
        return any(same(stored, each) for each in wanted) == (name == "$in")
    if name == "$contains":
        parts = wanted if kind(wanted) == "array" else [wanted]
        return kind(stored) == "array" and all(any(same(x, part) for x in stored) for part in parts)
    if kind(stored) != kind(wanted):
        return False
    return {
        "$gt": stored > wanted,
        "$gte": stored >= wanted,
        "$lt": stored < wanted,
        "$lte": stored <= wanted,
    }[name]


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, 0.5, 2**53, 2**53 + 1, float(2**53), 2**64, float(2**64)]),
    st.sampled_from(["", "a", "b", "A", "é", "e\u0301", '"', "\\", "\x00\x1f\x7f", "\u2028😀", "1"]),
)
STORED = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xy"), inner, max_size=2)
    ),
    max_leaves=5,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["f", "g", "h.i", 'q"\\é']), STORED, max_size=4)
OPERANDS = st.one_of(STORED, st.just(math.nan), st.just([math.nan]), st.tuples(PLAIN))
OPERATORS = st.one_of(
    st.tuples(st.sampled_from(["$eq", "$ne", "$contains"]), OPERANDS),
    st.tuples(
        st.sampled_from(["$gt", "$gte", "$lt", "$lte"]),
        st.one_of(
            st.integers(-2, 2),
            st.sampled_from([0.5, 2**53, 2**64, math.nan, math.inf, -math.inf, "", "a", "é"]),
        ),
    ),
    st.tuples(st.sampled_from(["$in", "$nin"]), st.lists(OPERANDS, max_size=4)),
    st.tuples(st.just("$exists"), st.booleans()),
)
CONDITIONS = st.one_of(
    st.lists(OPERATORS, max_size=3).map(dict),
    OPERANDS.filter(lambda operand: not isinstance(operand, dict)),
)
NESTED = st.recursive(
    CONDITIONS,
    lambda inner: st.dictionaries(st.sampled_from("xy"), inner, min_size=1, max_size=2),
    max_leaves=3,
)
FIELDS = st.dictionaries(st.sampled_from(["f", "g", "h.i", 'q"\\é']), NESTED, max_size=3)
FILTERS = st.recursive(
    FIELDS,
    lambda inner: st.tuples(
        FIELDS,
        st.dictionaries(st.sampled_from(["$and", "$or"]), st.lists(inner, max_size=3), max_size=2),
        st.one_of(st.just({}), st.fixed_dictionaries({"$not": inner})),
    ).map(lambda parts: {**parts[0], **parts[1], **parts[2]}),
    max_leaves=4,
)


@given(FILTERS, st.lists(DOCUMENTS, min_size=1, max_size=8))
def test_filters_agree_with_the_reading(filter: Any, documents: list[dict[str, Any]]) -> None:
    compiled = compile_filter(filter)
    for document in documents:
        data = encode_value(document)
        wanted = holds(filter, document)
        assert (compiled is None or compiled.matches(decode_value(data))) is wanted
        if wanted and compiled is not None:
            by_json = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
            assert all(needle in data and needle in by_json for needle in compiled.precheck)


@given(DOCUMENTS, st.data())
def test_filters_made_from_a_document_match_it(document: dict[str, Any], data: st.DataObject) -> None:
    """Random filters seldom match; these do, so that the precheck is tried on matches."""
    assume(document)
    key = data.draw(st.sampled_from(sorted(document)))
    stored = document[key]
    forms = [{key: {"$eq": stored}}, {key: {"$in": [3.25, stored]}}, {"$and": [{key: {"$eq": stored}}]}]
    if not isinstance(stored, dict):
        forms.append({key: stored})
    for form in forms:
        compiled = compile_filter(form)
        assert compiled.matches(document)
        assert all(needle in encode_value(document) for needle in compiled.precheck)
        assert not compile_filter({"$not": form}).matches(document)


# --------------------------------------------------------------------------- cases

DOCS = {
    "int5": {"f": 5}, "float5": {"f": 5.0}, "neg": {"f": -3}, "one": {"f": 1}, "zero": {"f": 0},
    "true": {"f": True}, "false": {"f": False}, "str5": {"f": "5"}, "strx": {"f": "x"}, "null": {"f": None},
    "missing": {"g": 1}, "list": {"f": [1, 2]}, "flags": {"f": [True]}, "dict": {"f": {"b": 1, "c": 2}},
    "dictb": {"f": {"b": 1}}, "emptydict": {"f": {}}, "emptylist": {"f": []}, "objects": {"f": [{"b": 1}]},
}  # fmt: skip
PRESENT = set(DOCS) - {"missing"}
EVERYTHING = set(DOCS)

CASES = [
    ({"f": 5}, {"int5", "float5"}),
    ({"f": True}, {"true"}),
    ({"f": 1}, {"one"}),
    ({"f": 0.0}, {"zero"}),
    ({"f": -0.0}, {"zero"}),
    ({"f": None}, {"null"}),
    ({"zz": None}, set()),
    ({"f": (1, 2)}, {"list"}),
    ({"f": [1]}, set()),
    ({"f": [1]}, set()),
    ({"f": [{"$gt": 0}]}, set()),
    ({"f": [{"b": 1.0}]}, {"objects"}),
    ({"f": {"b": 1}}, {"dict", "dictb"}),
    ({"f": {"b": {"$gte": 1}, "c": 2}}, {"dict"}),
    ({"f": {"b": {}}}, {"dict", "dictb", "emptydict"}),
    ({"f": {"b": {"$exists": False}}}, {"emptydict"}),
    ({"f": {"$eq": {"b": 1}}}, {"dictb"}),
    ({"f": {"$eq": {"c": 2, "b": 1}}}, {"dict"}),
    ({"f": {"$eq": {}}}, {"emptydict"}),
    ({"f": {"$ne": 5}}, PRESENT - {"int5", "float5"}),
    ({"f": {"$ne": None}}, PRESENT - {"null"}),
    ({"f": {"$ne": 1}}, PRESENT - {"one"}),
    ({"zz": {"$ne": 1}}, set()),
    ({"f": {"$gt": 0}}, {"int5", "float5", "one"}),
    ({"f": {"$gte": 1, "$lt": 5.5, "$ne": 1}}, {"int5", "float5"}),
    ({"f": {"$gt": "4"}}, {"str5", "strx"}),
    ({"f": {"$lt": math.inf}}, {"int5", "float5", "neg", "one", "zero"}),
    ({"f": {"$lte": math.nan}}, set()),
    ({"f": math.nan}, set()),
    ({"f": {"$in": [math.nan]}}, set()),
    ({"f": {"$ne": math.nan}}, PRESENT),
    ({"f": {"$in": [1, "x", None]}}, {"one", "strx", "null"}),
    ({"f": {"$in": [True, [1, 2], {"b": 1}]}}, {"true", "list", "dictb"}),
    ({"f": {"$in": ()}}, set()),
    ({"f": {"$nin": []}}, PRESENT),
    ({"f": {"$nin": [1, "x"]}}, PRESENT - {"one", "strx"}),
    ({"f": {"$exists": True}}, PRESENT),
    ({"f": {"$exists": False}}, {"missing"}),
    ({"f": {"$contains": 1}}, {"list"}),
    ({"f": {"$contains": True}}, {"flags"}),
    ({"f": {"$contains": [2, 1.0]}}, {"list"}),
    ({"f": {"$contains": {"b": 1}}}, {"objects"}),
    ({"f": {"$contains": []}}, {"list", "flags", "emptylist", "objects"}),
    ({"$or": [{"f": 5}, {"g": 1}]}, {"int5", "float5", "missing"}),
    ({"$or": []}, set()),
    ({"$not": {}}, set()),
    ({"$not": {"$or": []}}, EVERYTHING),
    ({"$not": {"f": {"$exists": True}}}, {"missing"}),
    ({"$and": [{"f": {"$gt": 0}}, {"$not": {"f": 1}}, {}]}, {"int5", "float5"}),
    ({"g": 1, "$or": [{"f": 1}, {"f": {"$exists": False}}]}, {"missing"}),
]


@pytest.mark.parametrize("filter, names", CASES, ids=repr)
def test_case(filter: Any, names: set[str]) -> None:
    compiled = compile_filter(filter)
    assert {name for name, document in DOCS.items() if compiled.matches(document)} == names
    assert {name for name, document in DOCS.items() if holds(filter, document)} == names


@pytest.mark.parametrize(
    "filter",
    [None, {}, {"f": {}}, {"$and": []}, {"$and": [{}, {"f": {}}]}, {"$or": [{"f": 1}, {}]},
     {"$or": [{"$and": []}]}],
)  # fmt: skip
def test_a_filter_without_constraint_is_none(filter: Any) -> None:
    assert compile_filter(filter) is None


def test_large_integers_compare_exactly() -> None:
    big = 2**53
    for wanted, other in (
        ({"f": big + 1}, big),
        ({"f": {"$gt": big}}, big),
        ({"f": {"$in": [big + 1]}}, big),
    ):
        matches = compile_filter(wanted).matches
        assert matches({"f": big + 1}) and not matches({"f": other}) and not matches({"f": float(big)})
    assert compile_filter({"f": {"$gt": 1.5, "$lt": math.inf}}).matches({"f": 10**400})


def test_keys_are_literal_fields() -> None:
    for key in ("a.b", "a b'\"$", "", "é\n\0", "role') = 'admin' OR 1=1 --", "x" * 5000):
        matches = compile_filter({key: 1}).matches
        assert matches({key: 1}) and not matches({"a": {"b": 1}}) and not matches({})


def test_any_mapping_is_a_filter() -> None:
    filter = types.MappingProxyType({"f": types.MappingProxyType({"$gt": 1})})
    assert compile_filter(filter).matches({"f": 2})


def test_later_changes_by_the_caller_change_nothing() -> None:
    operands = {"list": [1, {"a": [2]}], "in": ["x"], "nested": {"a": 1}, "and": [{"t": "x"}]}
    filter = {
        "list": operands["list"],
        "in": {"$in": operands["in"]},
        "nested": operands["nested"],
        "$and": operands["and"],
    }
    document = {"list": [1, {"a": [2]}], "in": "x", "nested": {"a": 1}, "t": "x"}
    compiled = compile_filter(filter)
    operands["list"][1]["a"].append(3)
    operands["in"][0] = "y"
    operands["nested"]["a"] = 2
    operands["and"].append({"t": "y"})
    filter["more"] = 1
    assert compiled.matches(document)


# ------------------------------------------------------------------------ precheck


def test_json_escapes_are_spelled_alike_by_both_encoders() -> None:
    """The precheck is right only while orjson and json write every character with the same bytes."""
    text = "".join(chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    assert orjson.dumps(text) == json.dumps(text, ensure_ascii=False).encode()
    for point in range(0x2100):
        short = "x" + chr(point)
        assert orjson.dumps(short) == json.dumps(short, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "filter, needles",
    [
        ({"k": "v"}, (b'"k":"v"',)),
        ({"k": {"$eq": "v"}, "n": 1}, (b'"k":"v"',)),
        ({"k": {"$eq": "v", "$gt": "a"}}, (b'"k":"v"',)),
        ({"$and": [{"k": "v"}, {"$and": [{"l": "\n"}]}], "k": "v"}, (b'"k":"v"', b'"l":"\\n"')),
        ({"k": "v", "$or": [{"a": "1"}, {"a": "2"}], "$not": {"b": "3"}}, (b'"k":"v"',)),
        ({"k": {"in": "v"}}, ()),
        (
            {"k": {"$ne": "v"}, "l": {"$in": ["v"]}, "m": ["v"], "n": {"$contains": "v"}, "o": {"$gte": "v"}},
            (),
        ),
        ({"k": 1, "l": 1.0, "m": None, "n": True, "o": {"$eq": {"a": "b"}}}, ()),
    ],
)
def test_precheck_holds_what_must_occur(filter: Any, needles: tuple[bytes, ...]) -> None:
    assert compile_filter(filter).precheck == needles


# ------------------------------------------------------------------------- refusals

MALFORMED = [
    ({"f": {"$foo": 1}}, 'filter["f"]["$foo"]: unknown operator; allowed are $eq, $ne, $gt'),
    ({"f": {"$": 1}}, 'filter["f"]["$"]: unknown operator'),
    ({"f": {"$and": [{"g": 1}]}}, 'filter["f"]["$and"]: unknown operator'),
    ({"f": {"$not": {"$gt": 1}}}, "put it around the field"),
    ({"f": {"$gt": 1, "b": 2}}, 'filter["f"] mixes operators with field names'),
    ({"f": {"$gt": 1, 2: 2}}, 'filter["f"] mixes operators'),
    ({"f": {"a": {"$foo": 1}}}, 'filter["f"]["a"]["$foo"]: unknown operator'),
    ({"$nand": []}, 'filter["$nand"]: unknown combinator'),
    ({"$gt": 1}, 'filter["$gt"]: unknown combinator'),
    ({"$and": [{"f": 1}, {"$where": "1"}]}, 'filter["$and"][1]["$where"]: unknown combinator'),
    ({"$and": {"f": 1}}, 'filter["$and"] is of type dict; $and takes a list of filters'),
    ({"$or": 3}, 'filter["$or"] is of type int; $or takes a list'),
    ({"$or": "ab"}, 'filter["$or"] is of type str'),
    ({"$and": [{"f": 1}, 3]}, 'filter["$and"][1] is of type int'),
    ({"$or": [None]}, 'filter["$or"][0] is of type NoneType'),
    ({"$not": [{"f": 1}]}, 'filter["$not"] is of type list; $not takes a filter'),
    ({"$not": None}, 'filter["$not"] is of type NoneType'),
    ({1: 2}, "filter has a key of type int"),
    ({"f": {1: 2}}, 'filter["f"] has a key of type int'),
    ({"$or": [{}, {"f": {"$gt": None}}]}, 'filter["$or"][1]["f"]["$gt"] is of type NoneType'),
    ({"f": {"$gt": True}}, 'filter["f"]["$gt"] is of type bool; $gt takes a number or a string'),
    ({"f": {"$lte": [1]}}, "$lte takes a number or a string"),
    ({"f": {"$gte": {"a": 1}}}, "$gte takes a number or a string"),
    ({"f": {"$in": 1}}, 'filter["f"]["$in"] is of type int; $in takes a list of values'),
    ({"f": {"$nin": "abc"}}, "$nin takes a list of values"),
    ({"f": {"$in": {"a": 1}}}, "$in takes a list of values"),
    ({"f": {"$exists": 1}}, 'filter["f"]["$exists"] is of type int; $exists takes True or False'),
    ({"f": {"$exists": None}}, "$exists takes True or False"),
    ({"f": "\ud800"}, 'filter["f"] is not valid Unicode'),
    ({"\ud800": 1}, "not valid Unicode"),
]


@pytest.mark.parametrize("filter, text", MALFORMED, ids=[text for _, text in MALFORMED])
def test_malformed_filters_are_refused(filter: Any, text: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        compile_filter(filter)
    assert text in str(caught.value) and isinstance(caught.value, ValueError)


OTHER = [
    datetime.datetime(2024, 1, 1),
    b"a",
    {1},
    object(),
    decimal.Decimal(1),
    1j,
    range(2),
]


@pytest.mark.parametrize("operand", OTHER, ids=lambda operand: type(operand).__name__)
def test_operands_must_be_json(operand: Any) -> None:
    for filter, place in (
        ({"f": operand}, 'filter["f"]'),
        ({"f": [1, {"a": operand}]}, 'filter["f"][1]["a"]'),
        ({"f": {"a": {"b": operand}}}, 'filter["f"]["a"]["b"]'),
        ({"f": {"$eq": {"a": [operand]}}}, 'filter["f"]["$eq"]["a"][0]'),
        ({"f": {"$gt": operand}}, 'filter["f"]["$gt"]'),
        ({"f": {"$in": operand}}, 'filter["f"]["$in"]'),
        ({"f": {"$nin": [1, operand]}}, 'filter["f"]["$nin"][1]'),
        ({"f": {"$contains": operand}}, 'filter["f"]["$contains"]'),
        ({"f": {"$exists": operand}}, 'filter["f"]["$exists"]'),
        ({"$and": operand}, 'filter["$and"]'),
        ({"$or": [{}, operand]}, 'filter["$or"][1]'),
        ({"$not": operand}, 'filter["$not"]'),
    ):
        with pytest.raises(InvalidType) as caught:
            compile_filter(filter)
        assert str(caught.value).startswith(f"{place} is ") and isinstance(caught.value, TypeError)


def test_numpy_numbers_are_no_operands() -> None:
    for operand in (numpy.float64(1.0), {"$gt": numpy.float64(1.0)}, {"$in": [numpy.int64(1)]}):
        with pytest.raises(InvalidType, match="numpy"):
            compile_filter({"f": operand})


@pytest.mark.parametrize("filter", ["f", 3, [{"f": 1}], [("f", 1)], True, b""], ids=repr)
def test_a_filter_is_a_mapping(filter: Any) -> None:
    with pytest.raises(InvalidType, match="filter is a mapping or None"):
        compile_filter(filter)


def deep(levels: int, wrap: Callable[[Any], Any]) -> Any:
    part: Any = 1
    for _ in range(levels):
        part = wrap(part)
    return part


WRAPS = {
    "nested": lambda part: {"a": part},
    "not": lambda part: {"$not": part if isinstance(part, dict) else {"a": part}},
    "and": lambda part: {"$and": [part if isinstance(part, dict) else {"a": part}]},
    "or": lambda part: {"$or": [part if isinstance(part, dict) else {"a": part}] * 2},
    "list": lambda part: [part],
}


@pytest.mark.parametrize("name", WRAPS)
def test_deep_filters_are_refused_clearly(name: str) -> None:
    levels = 8 if name == "or" else MAX_DEPTH // 2 - 1
    part = deep(levels, WRAPS[name])
    filter = {"f": part} if name == "list" else part
    document: dict = {"f": part} if name == "list" else deep(levels, WRAPS["nested"])
    assert compile_filter(filter).matches(document) is holds(filter, document)
    for levels in (MAX_DEPTH + 1, 1200, 20_000):
        part = deep(levels, WRAPS[name])
        with pytest.raises(InvalidFilter, match="nested deeper than 100 levels"):
            compile_filter({"f": part} if name == "list" else part)


def test_cyclic_filters_are_refused_clearly() -> None:
    whole: dict = {}
    whole["$and"] = [whole, whole]
    negated: dict = {}
    negated["$not"] = negated
    nested: dict = {}
    nested["a"] = nested
    operand: list = []
    operand.append(operand)
    for filter in (whole, negated, nested, {"f": operand}, {"f": {"$eq": nested}}, {"f": {"$in": operand}}):
        with pytest.raises(InvalidFilter, match="contains itself"):
            compile_filter(filter)


def test_errors_do_not_repeat_operands() -> None:
    for filter in (
        {"f": {"$gt": ["s3cret"]}},
        {"f": {"$in": "s3cret"}},
        {"f": {"$eq": b"s3cret"}},
        {"$or": "s3cret"},
    ):
        with pytest.raises((InvalidFilter, InvalidType)) as caught:
            compile_filter(filter)
        assert "s3cret" not in str(caught.value)
