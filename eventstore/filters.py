"""The meaning of a search filter.

A filter is checked whole before anything is read, so a malformed one is an error even where
nothing would be compared, and is compiled to a function of a decoded value. In short:

* An entry's key is one literal top-level field; all entries must hold. A condition is a value
  (equality), a dict of operators, or a dict of conditions on the fields of a nested object.
* A missing field meets no condition, not even ``$ne`` or ``None``; only ``{"$exists": False}``.
* Equality is that of JSON: ``1 == 1.0``, but ``True`` is not ``1``; lists and objects compare
  whole, and nothing inside a list is an operator. An operand object compares exactly under ``$eq``.
* Ranges compare number with number and string with string; any other pair does not match.
* ``$and``, ``$or`` and ``$not`` combine whole filters.

Which memories are tried, and in what order, is left to the views.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from eventstore.errors import InvalidFilter, InvalidType
from eventstore.values import Trail, copy_json, show

MAX_DEPTH: Final = 100
"""Filters, conditions and operands inside one another."""

Condition = Callable[[dict[str, Any]], bool]
Test = Callable[[Any], bool]

_MISSING: Final = object()
_RANGES: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_COMBINATORS: Final = ("$and", "$or", "$not")
_OPERATORS: Final = ("$eq", "$ne", *_RANGES, "$in", "$nin", "$exists", "$contains")


@dataclass(frozen=True, slots=True, eq=False)
class Filter:
    """A checked filter.

    ``matches`` takes a value as ``decode_value`` gives it. ``precheck`` are bytes that all occur
    in the compact JSON of every value that matches: a scan may skip the rest undecoded.
    """

    matches: Condition
    precheck: tuple[bytes, ...]


def compile_filter(filter: Mapping[str, Any] | None) -> Filter | None:
    """The filter as a function; ``None`` when it constrains nothing.

    The caller's objects are copied. Raises ``InvalidType`` for operands that are not JSON, and
    ``InvalidFilter`` for all else that is malformed; the error names the place and what is allowed.
    """
    if filter is None:
        return None
    if not isinstance(filter, Mapping):
        raise InvalidType(f"filter is a mapping or None, not {type(filter).__name__}")
    needles: list[bytes] = []
    condition = _whole(filter, ("filter",), needles)
    return None if condition is None else Filter(condition, tuple(dict.fromkeys(needles)))


def _whole(filter: Mapping[Any, Any], at: Trail, needles: list[bytes] | None) -> Condition | None:
    """All entries of a filter. ``needles`` collects the precheck; ``None`` below ``$or`` and the like."""
    if len(at) > MAX_DEPTH:
        raise InvalidFilter(
            f"filter is nested deeper than {MAX_DEPTH} levels, or contains itself; flatten it"
        )
    conditions = []
    for key, operand in filter.items():
        if not isinstance(key, str):
            raise InvalidFilter(f"{show(at)} has a key of type {type(key).__name__}; keys are field names")
        here = (*at, str.__str__(key))
        if key in _COMBINATORS:
            condition = _combined(key, operand, here, needles)
        elif key.startswith("$"):
            raise InvalidFilter(
                f"{show(here)}: unknown combinator; a filter has field names, $and, $or and $not. "
                "Operators such as $gt stand inside a field's condition"
            )
        else:
            condition = _field(copy_json(key, here, invalid=InvalidFilter), operand, here, needles)
        if condition is not None:
            conditions.append(condition)
    return _every(conditions)


def _combined(name: str, operand: object, at: Trail, needles: list[bytes] | None) -> Condition | None:
    if name == "$not":
        if not isinstance(operand, Mapping):
            raise _wrong(operand, at, "$not takes a filter")
        inner = _whole(operand, at, None)
        return _never if inner is None else lambda value: not inner(value)
    if not isinstance(operand, (list, tuple)):
        raise _wrong(operand, at, f"{name} takes a list of filters")
    conditions = []
    for number, each in enumerate(operand):
        if not isinstance(each, Mapping):
            raise _wrong(each, (*at, number), f"{name} takes a list of filters")
        conditions.append(_whole(each, (*at, number), needles if name == "$and" else None))
    some = [condition for condition in conditions if condition is not None]
    if name == "$and":
        return _every(some)
    return _any(some) if len(some) == len(conditions) else None


def _field(key: str, operand: Any, at: Trail, needles: list[bytes] | None) -> Condition | None:
    """One field's condition: operators, a nested object, or plain equality."""
    if not isinstance(operand, Mapping):
        wanted = _operand(operand, at)
        return _equal_field(key, wanted, needles)
    signs = [isinstance(name, str) and name.startswith("$") for name in operand]
    if not any(signs):
        return _nested(key, operand, at) if signs else None
    if not all(signs):
        raise InvalidFilter(f"{show(at)} mixes operators with field names; use one or the other")
    conditions = []
    for name, wanted in operand.items():
        here = (*at, str.__str__(name))
        if name not in _OPERATORS:
            hint = " That one combines whole filters: put it around the field" if name in _COMBINATORS else ""
            raise InvalidFilter(f"{show(here)}: unknown operator; allowed are {', '.join(_OPERATORS)}.{hint}")
        conditions.append(_operation(key, name, _operand(wanted, here), here, needles))
    return _every(conditions)


def _nested(key: str, conditions: Mapping[Any, Any], at: Trail) -> Condition:
    inner = _whole(conditions, at, None)

    def nested(value: dict[str, Any]) -> bool:
        stored = value.get(key)
        return type(stored) is dict and (inner is None or inner(stored))

    return nested


def _operation(key: str, name: str, wanted: Any, at: Trail, needles: list[bytes] | None) -> Condition:
    if name == "$eq":
        return _equal_field(key, wanted, needles)
    if name == "$exists":
        if type(wanted) is not bool:
            raise _wrong(wanted, at, "$exists takes True or False")
        return (lambda value: key in value) if wanted else (lambda value: key not in value)
    if name == "$ne":
        return _present(key, _negated(_equality(wanted)))
    if name == "$contains":
        return _present(key, _containment(wanted if type(wanted) is list else [wanted]))
    if name in _RANGES:
        return _present(key, _range(name, wanted, at))
    if type(wanted) is not list:
        raise _wrong(wanted, at, f"{name} takes a list of values")
    member = _membership(wanted)
    return _present(key, member if name == "$in" else _negated(member))


def _equal_field(key: str, wanted: Any, needles: list[bytes] | None) -> Condition:
    if type(wanted) is str:
        if needles is not None:
            # Sound for strings only: compact JSON spells a text in one way, but a number in several.
            needles.append(orjson.dumps({key: wanted})[1:-1])
        return lambda value: value.get(key) == wanted
    return _present(key, _equality(wanted))


def _present(key: str, test: Test) -> Condition:
    def present(value: dict[str, Any]) -> bool:
        stored = value.get(key, _MISSING)
        return stored is not _MISSING and test(stored)

    return present


def _equality(wanted: Any) -> Test:
    if wanted is None or type(wanted) is bool:
        return lambda stored: stored is wanted
    if type(wanted) in (list, dict):
        return lambda stored: _same(stored, wanted)
    if wanted == 0 or wanted == 1:
        return lambda stored: stored == wanted and type(stored) is not bool
    return lambda stored: bool(stored == wanted)


def _same(stored: Any, wanted: Any) -> bool:
    """Equality of JSON values."""
    if type(wanted) is list:
        return type(stored) is list and len(stored) == len(wanted) and all(map(_same, stored, wanted))
    if type(wanted) is dict:
        return (
            type(stored) is dict
            and stored.keys() == wanted.keys()
            and all(_same(stored[key], part) for key, part in wanted.items())
        )
    return bool(stored == wanted) and (type(stored) is bool) is (type(wanted) is bool)


def _range(name: str, wanted: Any, at: Trail) -> Test:
    kinds: tuple[type, ...] = (str,) if type(wanted) is str else (int, float)
    if type(wanted) not in kinds:
        raise _wrong(wanted, at, f"{name} takes a number or a string")
    compare = _RANGES[name]
    return lambda stored: type(stored) in kinds and compare(stored, wanted)


def _membership(wanted: list[Any]) -> Test:
    """Whether a stored value equals any of a list's; one lookup for scalars, however long the list."""
    containers = [each for each in wanted if type(each) in (list, dict)]
    flags = frozenset(each for each in wanted if type(each) is bool)
    scalars = frozenset(each for each in wanted if type(each) not in (list, dict, bool))

    def member(stored: Any) -> bool:
        kind = type(stored)
        if kind is bool:
            return stored in flags
        if kind is list or kind is dict:
            return any(_same(stored, each) for each in containers)
        return stored in scalars

    return member


def _containment(wanted: list[Any]) -> Test:
    tests = [_equality(each) for each in wanted]

    def contains(stored: Any) -> bool:
        return type(stored) is list and all(any(map(test, stored)) for test in tests)

    return contains


def _negated(test: Test) -> Test:
    return lambda stored: not test(stored)


def _never(value: dict[str, Any]) -> bool:
    return False


def _every(conditions: list[Condition]) -> Condition | None:
    """All of them; ``None`` when there are none."""
    if len(conditions) <= 1:
        return conditions[0] if conditions else None
    if len(conditions) == 2:
        first, second = conditions
        return lambda value: first(value) and second(value)
    return lambda value: all(condition(value) for condition in conditions)


def _any(conditions: list[Condition]) -> Condition:
    return (lambda value: any(condition(value) for condition in conditions)) if conditions else _never


def _operand(operand: Any, at: Trail) -> Any:
    """A plain copy. NaN and infinities are allowed: they compare, or match nothing."""
    return copy_json(operand, at, invalid=InvalidFilter, max_depth=MAX_DEPTH, finite=False)


def _wrong(operand: object, at: Trail, allowed: str) -> InvalidFilter | InvalidType:
    text = f"{show(at)} is of type {type(operand).__name__}; {allowed}"
    json_kinds = (type(None), str, int, float, list, tuple, Mapping)
    return InvalidFilter(text) if isinstance(operand, json_kinds) else InvalidType(text)
