"""Values to compact JSON bytes and back, exactly.

A value is encoded once, at the call; the same bytes travel through the log into the views. What
JSON cannot hold exactly is refused, never approximated: no dates as text, no NaN as null, no
merged keys. Integers of any size and every finite float come back equal and of the same type.
Tuples come back as lists, and any ``Mapping`` as a ``dict``.

orjson does the work. What it would let through (enum members, UUIDs, NaN) is found by looking at
the types afterwards, and what it refuses for reasons of its own (large integers, subclasses) is
copied to plain types and given to it again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from eventstore.errors import InvalidInput, InvalidType

MAX_DEPTH: Final = 250
"""Objects and lists inside one another, the value itself included."""
MAX_DIGITS: Final = 4300
"""Digits of an integer: what Python itself reads by default."""

_OPTIONS: Final = (
    orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS
)
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_CONTAINERS: Final = frozenset({dict, list, tuple})
_JSON: Final = _SCALARS | _CONTAINERS

_DIGITS_AS_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_RUN: Final = b"0" * 19
_LONG_INTEGER: Final = re.compile(rb"[:,\[\s](?:-[0-9]{19}|[0-9]{20})[0-9]*[,\]}\s]")

Step = str | int
Trail = tuple[Step, ...]
"""Where something stands: the name of the argument, then object keys and list positions."""


def encode_value(value: Mapping[str, Any]) -> bytes:
    """Compact UTF-8 JSON, object keys in the caller's order.

    Raises ``InvalidType`` for what is not a mapping of JSON types with ``str`` keys, and
    ``InvalidInput`` for NaN, infinities, lone surrogates, cycles, more than ``MAX_DEPTH`` levels
    and integers of more than ``MAX_DIGITS`` digits; the error names the place, not the content.
    """
    if type(value) is dict:
        try:
            data = orjson.dumps(value, option=_OPTIONS)
        except TypeError:
            pass  # the copy below finds the place, or a way
        else:
            if _is_plain(value, may_hold_nan=b"null" in data):
                return data
    elif not isinstance(value, Mapping):
        raise InvalidType(f"a value is a mapping such as {{'text': 'likes tea'}}, not {_name(value)}")
    return orjson.dumps(copy_json(value, ("value",), for_orjson=True), option=_OPTIONS)


def decode_value(data: bytes) -> dict[str, Any]:
    """A new ``dict`` from the bytes of a value. Raises ``InvalidInput`` for anything but a JSON object."""
    try:
        if _LONG_RUN in data.translate(_DIGITS_AS_ZERO) and _LONG_INTEGER.search(data):
            value = _decode_exactly(data)
        else:
            value = orjson.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"stored bytes that are not a value in JSON: {error}") from None
    if type(value) is not dict:
        raise InvalidInput("stored bytes that are not a value: JSON, but not an object")
    return value


def _decode_exactly(data: bytes) -> Any:
    """For bytes that may hold an integer beyond 64 bits, which orjson would read as a float."""
    read = json.loads(data.decode())
    if type(read) is dict:
        # json reads more than JSON (NaN, 1e999, lone surrogates); to encode again refuses that.
        encode_value(read)
    return read


def _is_plain(value: dict[str, Any], *, may_hold_nan: bool) -> bool:
    """Whether only JSON's own types occur, few enough levels deep, and no NaN.

    For values that orjson has been through, so there are no cycles and all keys are ``str``.
    """
    level: list[Any] = [value]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return False
        below: list[Any] = []
        for container in level:
            parts = container.values() if type(container) is dict else container
            kinds = set(map(type, parts))
            if not kinds <= _SCALARS:
                if not kinds <= _JSON:
                    return False
                below += [part for part in parts if type(part) in _CONTAINERS]
            if may_hold_nan and float in kinds:
                for part in parts:
                    if type(part) is float and not math.isfinite(part):
                        return False
        level = below
    return True


class _Part:
    """A container that is being copied, and how it was reached."""

    __slots__ = ("copy", "depth", "parent", "source", "step")

    def __init__(self, source: Any, parent: _Part | None, step: Step) -> None:
        self.source = source
        self.parent = parent
        self.step = step
        self.depth: int = 1 if parent is None else parent.depth + 1
        self.copy: Any = {} if isinstance(source, Mapping) else []


def copy_json(
    value: Any,
    trail: Trail,
    *,
    invalid: type[InvalidInput] = InvalidInput,
    max_depth: int = MAX_DEPTH,
    finite: bool = True,
    for_orjson: bool = False,
) -> Any:
    """A deep copy of plain ``dict``, ``list``, ``str``, ``int``, ``float``, ``bool`` and ``None``.

    ``str``, ``int``, ``float``, ``list``, ``tuple`` and mapping subclasses become the plain type, except
    numpy's, which are refused. ``for_orjson`` wraps integers beyond 64 bits so that orjson writes
    them. Raises ``InvalidType`` for other types, ``invalid`` for what JSON's own types cannot hold.
    """
    copier = _Copier(trail, invalid, max_depth, finite, for_orjson)
    return copier.copy(value)


class _Copier:
    """Goes through a value without recursion, so that no depth can exhaust the stack."""

    def __init__(
        self, trail: Trail, invalid: type[InvalidInput], max_depth: int, finite: bool, for_orjson: bool
    ) -> None:
        self._trail = trail
        self._invalid = invalid
        self._max_depth = max_depth
        self._finite = finite
        self._for_orjson = for_orjson
        self._pending: list[_Part] = []

    def copy(self, value: Any) -> Any:
        made = self._part(value, None, "")
        while self._pending:
            container = self._pending.pop()
            if type(container.copy) is dict:
                for key, part in container.source.items():
                    if not isinstance(key, str):
                        raise InvalidType(
                            f"{self._place(container)} has a key that is {_name(key)}; keys are strings"
                        )
                    text = self._text(key, "a key of ", container, None)
                    container.copy[text] = self._part(part, container, text)
            else:
                container.copy.extend(
                    self._part(part, container, at) for at, part in enumerate(container.source)
                )
        return made

    def _part(self, part: Any, parent: _Part | None, step: Step) -> Any:
        if part is None or part is True or part is False:
            return part
        if type(part).__module__ == "numpy":
            raise self._not_json(part, parent, step)
        if isinstance(part, str):
            return self._text(part, "", parent, step)
        if isinstance(part, int):
            return self._integer(int.__int__(part), parent, step)
        if isinstance(part, float):
            if self._finite and not math.isfinite(part):
                raise self._invalid(
                    f"{self._place(parent, step)} is NaN or infinite, which JSON cannot hold; "
                    "use None or leave it out"
                )
            return float.__float__(part)
        if isinstance(part, (Mapping, list, tuple)):
            container = _Part(part, parent, step)
            if container.depth > self._max_depth:
                raise self._too_deep(container)
            self._pending.append(container)
            return container.copy
        raise self._not_json(part, parent, step)

    def _text(self, text: str, what: str, parent: _Part | None, step: Step | None) -> str:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise self._invalid(
                    f"{what}{self._place(parent, step)} is not valid Unicode: "
                    "it holds half of a surrogate pair"
                ) from None
        return str.__str__(text)

    def _integer(self, number: int, parent: _Part | None, step: Step) -> Any:
        if not self._for_orjson or -(2**63) <= number < 2**64:
            return number
        try:
            digits = str(number)
        except ValueError:
            digits = ""
        if not 0 < len(digits.lstrip("-")) <= MAX_DIGITS:
            raise self._invalid(
                f"{self._place(parent, step)} is an integer of more than {MAX_DIGITS} digits; keep it as text"
            )
        return orjson.Fragment(digits)

    def _too_deep(self, container: _Part) -> InvalidInput:
        seen: set[int] = set()
        above: _Part | None = container
        while above is not None:
            if id(above.source) in seen:
                return self._invalid(f"{show(self._trail)} contains itself; JSON has no cycles")
            seen.add(id(above.source))
            above = above.parent
        return self._invalid(
            f"{show(self._trail)} is nested deeper than {self._max_depth} levels; flatten it"
        )

    def _not_json(self, part: object, parent: _Part | None, step: Step) -> InvalidType:
        return InvalidType(
            f"{self._place(parent, step)} is {_name(part)}, which JSON has no type for. Convert it first: "
            "dates and ids to text, bytes to base64, sets to lists, models to dicts"
        )

    def _place(self, parent: _Part | None, step: Step | None = None) -> str:
        steps: list[Step] = [] if step is None or parent is None else [step]
        while parent is not None and parent.parent is not None:
            steps.append(parent.step)
            parent = parent.parent
        return show((*self._trail, *reversed(steps)))


def show(trail: Iterable[Step]) -> str:
    """A place in Python's notation, such as ``value["a"][3]``; long keys are cut."""
    root, *steps = trail
    parts = [str(root)]
    for step in steps:
        text = json.dumps(step) if isinstance(step, int) or len(step) <= 60 else json.dumps(step[:57] + "...")
        parts.append(f"[{text}]")
    return "".join(parts)


def _name(part: object) -> str:
    kind = type(part)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
