"""Operations as callers give them, checked and in the form the store works with.

Everything that can be wrong with a batch is found here, before any of it is read, embedded or
appended. The rules are those of LangGraph's ``BaseStore`` and, where its stores differ, the
ones written down in ``docs/guarantees.md``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, SupportsIndex, cast

from langgraph.store.base import GetOp, ListNamespacesOp, Op, PutOp, SearchOp

from eventstore.embedding import check_paths
from eventstore.errors import InvalidInput, InvalidType, LimitExceeded
from eventstore.filters import Filter, compile_filter
from eventstore.keys import encode_item, encode_namespace
from eventstore.namespaces import check_key, check_namespace, compile_conditions, literal_prefix
from eventstore.ttl import check_ttl
from eventstore.turns import EVERY_STEPS, in_turns
from eventstore.values import encode_value

NO_LIMIT = 2**62
INLINE_ROWS: Final = 100
"""Listings of up to this many memories are answered on the event loop: they take less time
than the hop to a thread."""
INLINE_OPS: Final = 16
"""The same for the operations of a batch, which are checked and encoded where it is called."""


class Get(NamedTuple):
    """Read one memory."""

    key: bytes
    refresh: bool
    namespace: tuple[str, ...]
    name: str
    """The key as it was given."""


class Search(NamedTuple):
    """Read memories under a prefix."""

    prefix: bytes
    filter: Filter | None
    limit: int
    offset: int
    query: str | None
    refresh: bool


class Namespaces(NamedTuple):
    """List namespaces."""

    prefix: bytes
    matches: Callable[[tuple[str, ...]], bool] | None
    max_depth: int | None
    limit: int
    offset: int


class Put(NamedTuple):
    """Write one memory, or delete it when ``value`` is ``None``."""

    key: bytes
    value: bytes | None
    indexing: tuple[str, ...] | bool | None
    ttl: float | None
    expected_version: int | None
    given: Mapping[str, Any] | None = None
    """What ``value`` is the JSON of."""


Step = Get | Search | Namespaces | Put


class Conditional(NamedTuple):
    """A ``PutOp`` with the version its memory must have."""

    op: PutOp
    expected_version: int


def check(ops: Iterable[Op | Conditional], max_value_bytes: int) -> list[Step]:
    """The batch's steps in order. Raises the first thing wrong with any of them."""
    return [_step(op, max_value_bytes) for op in in_turns(ops, EVERY_STEPS)]


def check_get(op: GetOp) -> Get:
    """A single read, for the path that is taken most."""
    name = check_key(op.key)
    namespace = check_namespace(op.namespace, empty_ok=True)
    return Get(encode_item(namespace, name), bool(op.refresh_ttl), namespace, name)


def _step(op: Op | Conditional, max_value_bytes: int) -> Step:
    if isinstance(op, GetOp):
        return check_get(op)
    if isinstance(op, PutOp):
        return _put(op, None, max_value_bytes)
    if isinstance(op, SearchOp):
        return _search(op)
    if isinstance(op, ListNamespacesOp):
        return _namespaces(op)
    if isinstance(op, Conditional):
        return _put(op.op, op.expected_version, max_value_bytes)
    raise InvalidType(f"a batch takes GetOp, PutOp, SearchOp and ListNamespacesOp, not {type(op).__name__}")


def _put(op: PutOp, expected_version: object, max_value_bytes: int) -> Put:
    # Deleting under the empty namespace finds nothing, so it is allowed as reading there is.
    namespace = check_namespace(op.namespace, empty_ok=op.value is None)
    key = encode_item(namespace, check_key(op.key))
    if expected_version is not None:
        expected_version = check_count(expected_version, "expected_version")
    if op.value is None:
        return Put(key, None, None, None, expected_version)
    index: Any = op.index
    if index is not None and index is not False:
        if index is True:
            raise InvalidType(
                "index takes a list of paths, False for nothing, or None for the default; not True"
            )
        index = check_paths(index, "index")
    ttl = check_ttl(op.ttl)
    data = encode_value(op.value)
    if len(data) > max_value_bytes:
        raise LimitExceeded(
            f"the value takes {len(data)} bytes as JSON; the limit is {max_value_bytes} "
            "(config max_value_bytes). Split it, or keep the bulk elsewhere and remember where"
        )
    return Put(key, data, index, ttl, expected_version, op.value)


def _search(op: SearchOp) -> Search:
    if op.query is not None and not isinstance(op.query, str):
        raise InvalidType(f"query is a string or None, not {type(op.query).__name__}")
    if op.filter is not None and not isinstance(op.filter, Mapping):
        raise InvalidType(f"filter is a mapping or None, not {type(op.filter).__name__}")
    return Search(
        encode_namespace(check_namespace(op.namespace_prefix, empty_ok=True)),
        compile_filter(op.filter),
        check_count(op.limit, "limit"),
        check_count(op.offset, "offset"),
        op.query or None,
        bool(op.refresh_ttl),
    )


def _namespaces(op: ListNamespacesOp) -> Namespaces:
    conditions = op.match_conditions or ()
    max_depth = op.max_depth
    if max_depth is not None:
        max_depth = check_count(max_depth, "max_depth")
        if max_depth < 1:
            raise InvalidInput("max_depth must be at least 1; leave it out for whole namespaces")
    # One literal prefix is a range of the namespaces view; nothing is left to match.
    by_range = len(conditions) == 1 and conditions[0].match_type == "prefix" and "*" not in conditions[0].path
    matches = compile_conditions(conditions)
    return Namespaces(
        encode_namespace(literal_prefix(conditions)),
        None if by_range else matches,
        max_depth,
        check_count(op.limit, "limit"),
        check_count(op.offset, "offset"),
    )


def check_count(number: object, name: str) -> int:
    """A non-negative int; anything beyond 2**62 means no limit."""
    if isinstance(number, bool):
        raise InvalidType(f"{name} is an int, not a bool")
    try:
        value = operator.index(cast(SupportsIndex, number))
    except TypeError:
        raise InvalidType(f"{name} is an int, not {type(number).__name__}") from None
    if value < 0:
        raise InvalidInput(f"{name} must not be negative; got {value}")
    return min(value, NO_LIMIT)


def is_quick(step: Step) -> bool:
    """Whether a step is answered in less time than a hop to a thread takes."""
    if isinstance(step, Search):
        return step.filter is None and step.query is None and step.offset + step.limit <= INLINE_ROWS
    return not isinstance(step, Namespaces)
