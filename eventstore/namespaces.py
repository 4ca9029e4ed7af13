"""Which namespaces and keys are allowed, and which namespaces a listing matches.

A namespace is a tuple of labels. Labels and keys are data and compared exactly; only the paths
of ``list_namespaces`` have a wildcard. How they become bytes is left to :mod:`eventstore.keys`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from langgraph.store.base import MatchCondition

from eventstore.errors import InvalidInput, InvalidNamespace, InvalidType, LimitExceeded

MAX_LABELS: Final = 256
MAX_NAMESPACE_BYTES: Final = 64 * 1024
MAX_KEY_BYTES: Final = 64 * 1024
WILDCARD: Final = "*"

Matcher = Callable[[tuple[str, ...]], bool]


def check_namespace(namespace: object, *, empty_ok: bool) -> tuple[str, ...]:
    """The namespace as a tuple of plain ``str``.

    A list is accepted, since JSON clients send one. Raises ``InvalidNamespace``, or
    ``LimitExceeded`` above 256 labels or 64 KiB of UTF-8.
    """
    if isinstance(namespace, (tuple, list)):
        if not namespace:
            if empty_ok:
                return ()
            raise InvalidNamespace("the namespace is empty; it needs at least one label, such as ('users',)")
        try:
            joined = "\0".join(namespace)
        except TypeError:
            _refuse(namespace)
        if (
            joined.isascii()
            and "." not in joined
            and "" not in namespace
            and joined.count("\0") == len(namespace) - 1
            and len(joined) <= MAX_NAMESPACE_BYTES
            and len(namespace) <= MAX_LABELS
        ):
            return tuple(joined.split("\0"))
        return _checked(namespace)
    raise InvalidNamespace(
        f"a namespace is a tuple of labels, such as ('users', 'alice'), not {type(namespace).__name__}"
    )


def _checked(namespace: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    if len(namespace) > MAX_LABELS:
        raise LimitExceeded(f"the namespace has {len(namespace)} labels; the limit is {MAX_LABELS}")
    size = 0
    for at, label in enumerate(namespace):
        if not label:
            raise InvalidNamespace(f"label {at} of the namespace is empty; give it a name or leave it out")
        if "." in label or "\0" in label:
            found = "a period" if "." in label else "a NUL character"
            raise InvalidNamespace(f"label {at} of the namespace holds {found}; use another separator")
        try:
            size += len(label.encode())
        except UnicodeEncodeError:
            raise InvalidNamespace(
                f"label {at} of the namespace is not valid Unicode: it holds half of a surrogate pair"
            ) from None
    if size > MAX_NAMESPACE_BYTES:
        raise LimitExceeded(f"the namespace takes {size} bytes as UTF-8; the limit is {MAX_NAMESPACE_BYTES}")
    return tuple(str.__str__(label) for label in namespace)


def _refuse(namespace: tuple[object, ...] | list[object]) -> NoReturn:
    at, label = next((at, label) for at, label in enumerate(namespace) if not isinstance(label, str))
    raise InvalidNamespace(
        f"label {at} of the namespace is of type {type(label).__name__}; labels are strings"
    )


def check_key(key: object) -> str:
    """The key as a plain ``str``; anything else is turned into one with ``str()``, as LangGraph does.

    Raises ``InvalidInput`` for text that is not valid Unicode, ``LimitExceeded`` above 64 KiB of UTF-8.
    """
    text = key if type(key) is str else str.__str__(str(key))
    size = len(text)
    if not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise InvalidInput("the key is not valid Unicode: it holds half of a surrogate pair") from None
    if size > MAX_KEY_BYTES:
        raise LimitExceeded(f"the key takes {size} bytes as UTF-8; the limit is {MAX_KEY_BYTES}")
    return text


def compile_conditions(match_conditions: Sequence[MatchCondition] | None) -> Matcher | None:
    """Whether a namespace meets every condition; ``None`` when they ask for nothing.

    Raises ``InvalidInput`` for an unknown match type, ``InvalidType`` for what is no
    ``MatchCondition``, ``InvalidNamespace`` for a path that could not be a namespace.
    """
    matchers = [
        _prefix_matcher(path) if kind == "prefix" else _suffix_matcher(path)
        for kind, path in _conditions(match_conditions)
        if path
    ]
    if len(matchers) <= 1:
        return matchers[0] if matchers else None
    return lambda namespace: all(matches(namespace) for matches in matchers)


def literal_prefix(match_conditions: Sequence[MatchCondition] | None) -> tuple[str, ...]:
    """The leading labels that every matching namespace has: where a scan may start and stop.

    The prefix conditions are read together: ``("*", "b")`` and ``("a",)`` give ``("a", "b")``.
    """
    paths = [path for kind, path in _conditions(match_conditions) if kind == "prefix"]
    found: list[str] = []
    for at in range(max(map(len, paths), default=0)):
        labels = {path[at] for path in paths if len(path) > at} - {WILDCARD}
        # Two different labels in one place match nothing, so any prefix so far is right.
        if len(labels) != 1:
            break
        found.extend(labels)
    return tuple(found)


def _conditions(match_conditions: Sequence[MatchCondition] | None) -> list[tuple[str, tuple[str, ...]]]:
    if match_conditions is None:
        return []
    # Not any iterable: an iterator would be spent by the first of the two functions that read it.
    if isinstance(match_conditions, MatchCondition) or not isinstance(match_conditions, (tuple, list)):
        raise InvalidType(
            f"match_conditions is a tuple of MatchCondition, not {type(match_conditions).__name__}"
        )
    checked = []
    for at, condition in enumerate(match_conditions):
        if not isinstance(condition, MatchCondition):
            raise InvalidType(
                f"match_conditions[{at}] is of type {type(condition).__name__}, not MatchCondition"
            )
        kind: object = condition.match_type
        if not isinstance(kind, str) or kind not in ("prefix", "suffix"):
            raise InvalidInput(f"match_conditions[{at}] has an unknown match type; use 'prefix' or 'suffix'")
        checked.append((kind, check_namespace(condition.path, empty_ok=True)))
    return checked


def _prefix_matcher(path: tuple[str, ...]) -> Matcher:
    size = len(path)
    if WILDCARD not in path:
        return lambda namespace: namespace[:size] == path
    fixed = _fixed(path)
    return lambda namespace: len(namespace) >= size and all(namespace[at] == label for at, label in fixed)


def _suffix_matcher(path: tuple[str, ...]) -> Matcher:
    size = len(path)
    if WILDCARD not in path:
        return lambda namespace: namespace[-size:] == path
    fixed = [(at - size, label) for at, label in _fixed(path)]
    return lambda namespace: len(namespace) >= size and all(namespace[at] == label for at, label in fixed)


def _fixed(path: tuple[str, ...]) -> list[tuple[int, str]]:
    return [(at, label) for at, label in enumerate(path) if label != WILDCARD]
