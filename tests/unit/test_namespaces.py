"""Which namespaces, keys and listing conditions are accepted, and what the conditions match."""

import enum
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.store.base import InvalidNamespaceError, MatchCondition

from eventstore.errors import InvalidInput, InvalidNamespace, InvalidType, LimitExceeded
from eventstore.namespaces import check_key, check_namespace, compile_conditions, literal_prefix


class Kind(enum.StrEnum):
    """A label that is a str, and more."""

    USERS = "users"


@pytest.mark.parametrize(
    "namespace",
    [("a",), ("a", "b"), ("langgraph",), (" ",), ("*", "%", "_", "/"), ("a\n", "\x01"), ("é",),
     ("e\u0301", "😀"),
     tuple("abcdefghij" * 10), ("x" * 10_000, "é" * 10_000)],
    ids=repr,
)  # fmt: skip
def test_usable_namespaces_are_kept_as_they_are(namespace: Any) -> None:
    assert check_namespace(namespace, empty_ok=False) == namespace
    assert check_namespace(list(namespace), empty_ok=False) == namespace
    assert type(check_namespace(list(namespace), empty_ok=False)) is tuple


def test_labels_become_plain_strings() -> None:
    labels = check_namespace((Kind.USERS, "é"), empty_ok=False) + check_namespace(
        [Kind.USERS], empty_ok=False
    )
    assert labels == ("users", "é", "users")
    assert {type(label) for label in labels} == {str}


def test_the_empty_namespace_is_for_reading_only() -> None:
    assert check_namespace((), empty_ok=True) == check_namespace([], empty_ok=True) == ()
    with pytest.raises(InvalidNamespace, match="empty"):
        check_namespace((), empty_ok=False)


@pytest.mark.parametrize("namespace", ["ab", "", None, 3, b"ab", {"a"}, {"a": 1}, iter(("a",))], ids=repr)
@pytest.mark.parametrize("empty_ok", [True, False])
def test_what_is_no_tuple_is_no_namespace(namespace: Any, empty_ok: bool) -> None:
    with pytest.raises(InvalidNamespace, match="tuple of labels"):
        check_namespace(namespace, empty_ok=empty_ok)


@pytest.mark.parametrize(
    "label, found",
    [(1, "of type int"), (None, "NoneType"), (b"a", "bytes"), (("a",), "tuple"), ("", "empty"),
     ("a.b", "period"), (".", "period"), ("a\0b", "NUL"), ("\0", "NUL"),
     ("\ud800", "Unicode"), ("é.", "period"), ("é\0", "NUL")],
)  # fmt: skip
def test_a_bad_label_is_named_by_its_place(label: Any, found: str) -> None:
    for namespace, at in ((("ok", label), 1), ([label, "ok"], 0), ((label,), 0)):
        with pytest.raises(InvalidNamespaceError, match=f"label {at} .*{found}") as caught:
            check_namespace(namespace, empty_ok=True)
        assert isinstance(caught.value, InvalidNamespace) and isinstance(caught.value, ValueError)


def test_an_empty_label_hidden_by_a_nul_is_still_refused() -> None:
    for namespace in (("a", ""), ("", ""), ("a\0", ""), ("", "a\0b")):
        with pytest.raises(InvalidNamespace):
            check_namespace(namespace, empty_ok=True)


def test_namespaces_have_limits() -> None:
    assert len(check_namespace(("a",) * 256, empty_ok=False)) == 256
    for namespace in (("a",) * 257, ("é",) * 257):
        with pytest.raises(LimitExceeded, match="257 labels"):
            check_namespace(namespace, empty_ok=False)
    check_namespace(("é" * 2**14, "x" * 2**15), empty_ok=False)
    check_namespace(("x" * 2**15, "x" * 2**15), empty_ok=False)
    for namespace in (("x" * 2**15, "x" * 2**15, "y"), ("é" * 2**15, "y")):
        with pytest.raises(LimitExceeded, match="65537 bytes"):
            check_namespace(namespace, empty_ok=False)
    assert issubclass(LimitExceeded, ValueError)


# ------------------------------------------------------------------------ keys


def test_keys_become_plain_strings() -> None:
    for key in (1, None, (1,), 1.5, "", "a.b/\0\n", "ключ", "x" * 2**16, "é" * 2**15):
        assert check_key(key) == str(key)
    assert type(check_key(Kind.USERS)) is str and check_key(Kind.USERS) == "users"


def test_keys_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(InvalidInput, match="Unicode"):
        check_key("a\ud800")
    for key in ("x" * (2**16 + 1), "é" * (2**15 + 1)):
        with pytest.raises(LimitExceeded, match="the limit is 65536"):
            check_key(key)


# ------------------------------------------------------------------ conditions


def prefix(*path: str) -> MatchCondition:
    return MatchCondition("prefix", path)


def suffix(*path: str) -> MatchCondition:
    return MatchCondition("suffix", path)


def meets(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    """The rule, written the long way."""
    size = len(condition.path)
    if len(namespace) < size:
        return False
    part = namespace[:size] if condition.match_type == "prefix" else namespace[len(namespace) - size :]
    return all(wanted in ("*", label) for wanted, label in zip(condition.path, part, strict=True))


LABELS = st.sampled_from(["a", "b", "ab", "*"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=5).map(tuple)
CONDITIONS = st.lists(
    st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), st.lists(LABELS, max_size=3).map(tuple)),
    max_size=4,
).map(tuple)


@given(CONDITIONS, st.lists(NAMESPACES, min_size=1, max_size=12))
def test_conditions_agree_with_the_rule(conditions: Any, namespaces: list[tuple[str, ...]]) -> None:
    matches = compile_conditions(conditions)
    for namespace in namespaces:
        wanted = all(meets(namespace, condition) for condition in conditions)
        assert (matches is None or matches(namespace)) is wanted
        if wanted:
            start = literal_prefix(conditions)
            assert namespace[: len(start)] == start


@pytest.mark.parametrize(
    "condition, matching, other",
    [
        (prefix("a"), ("a", "b"), ("b", "a")),
        (suffix("a"), ("b", "a"), ("a", "b")),
        (suffix("b", "a"), ("b", "a"), ("a",)),
        (prefix("a", "*"), ("a", "b"), ("a",)),
        (suffix("a", "*"), ("x", "a", "b"), ("a",)),
        (prefix("*"), ("*",), ()),
        (prefix("a+"), ("a+",), ("aa",)),
    ],
)
def test_one_condition(condition: MatchCondition, matching: tuple[str, ...], other: tuple[str, ...]) -> None:
    matches = compile_conditions((condition,))
    assert matches is not None and matches(matching) and not matches(other)


def test_no_constraint_is_no_function() -> None:
    for conditions in (None, (), [], (prefix(), suffix()), (MatchCondition("prefix", []),)):
        assert compile_conditions(conditions) is None
        assert literal_prefix(conditions) == ()


@pytest.mark.parametrize(
    "conditions, start",
    [
        ((prefix("a", "b"),), ("a", "b")),
        ((prefix("a", "*", "c"),), ("a",)),
        ((prefix("*", "b"), prefix("a")), ("a", "b")),
        ((prefix("*", "b"), prefix("a", "*", "c")), ("a", "b", "c")),
        ((prefix("*", "b"),), ()),
        ((prefix("a", "b"), prefix("a", "c")), ("a",)),
        ((suffix("a"),), ()),
        ((suffix("z"), prefix("a")), ("a",)),
    ],
)
def test_where_a_scan_may_start(conditions: Any, start: tuple[str, ...]) -> None:
    assert literal_prefix(conditions) == start


def test_a_list_of_labels_is_a_path_too() -> None:
    matches = compile_conditions([MatchCondition("suffix", ["*", "f"])])
    assert matches(("a", "f")) and not matches(("f",))


@pytest.mark.parametrize("read", [compile_conditions, literal_prefix])
def test_malformed_conditions_are_refused(read: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidInput, match=r"match_conditions\[1\] has an unknown match type"):
        read((prefix("a"), MatchCondition("infix", ("a",))))
    with pytest.raises(InvalidInput, match="unknown match type"):
        read((MatchCondition(["prefix"], ("a",)),))
    with pytest.raises(InvalidNamespace):
        read((MatchCondition("prefix", "ab"),))
    with pytest.raises(InvalidNamespace, match="label 1"):
        read((prefix("a", "b.c"),))
    for bad in ("prefix", prefix("a"), 3, iter([prefix("a")]), {"prefix": ("a",)}, [("prefix", ("a",))]):
        with pytest.raises(InvalidType, match="match_conditions"):
            read(bad)
