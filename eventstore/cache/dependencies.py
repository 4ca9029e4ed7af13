"""What ``depends_on`` may name, and whether a memory is among it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from eventstore.errors import InvalidInput, InvalidType
from eventstore.keys import TOUCH_PREFIX, ancestors, encode_item, encode_namespace, namespace_end
from eventstore.namespaces import check_key, check_namespace

Dependency = tuple[tuple[str, ...], str] | tuple[str, ...]
"""A memory as (namespace, key), or a prefix of namespaces."""


def encoded(depends_on: Iterable[Dependency]) -> tuple[bytes, ...]:
    """Encoded memories and prefixes, in order, each once.

    Raises ``InvalidType``, ``InvalidNamespace``, ``InvalidInput`` or ``LimitExceeded``.
    """
    if isinstance(depends_on, (str, bytes)) or not isinstance(depends_on, Iterable):
        raise InvalidType("depends_on is a list of (namespace, key) pairs and of namespace prefixes")
    return tuple(sorted({_encoded(each) for each in depends_on}))


def touched(key: bytes, on: Collection[bytes]) -> bool:
    """Whether a record of the log of memories, by its key, changes one of these."""
    return any(name in on for name in names(key))


def names(key: bytes) -> Sequence[bytes]:
    """Everything by which a changed memory may be named; nothing for a refresh of its expiry."""
    if key.startswith(TOUCH_PREFIX):
        return ()
    try:
        return (key, *ancestors(key[: namespace_end(key)]))
    except InvalidInput:
        # Not one of ours; the projection stops at it, and says so.
        return ()


def _encoded(each: Dependency) -> bytes:
    if not isinstance(each, tuple):
        raise InvalidType(f"depends_on holds tuples, not {type(each).__name__}")
    if len(each) == 2 and isinstance(each[0], tuple):
        return encode_item(check_namespace(each[0], empty_ok=True), check_key(each[1]))
    return encode_namespace(check_namespace(each, empty_ok=True))
