"""What two moments of a store differ in: memories added, removed and changed, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from eventstore.keys import decode_item
from eventstore.values import Trail, decode_value
from eventstore.views import Row


class Memory(BaseModel):
    """A memory that stands at one of two moments only."""

    model_config = ConfigDict(frozen=True)

    namespace: tuple[str, ...]
    key: str
    version: int
    value: dict[str, Any]


class FieldChange(BaseModel):
    """One place in a value, before and after. What was not there is ``None``, and ``kind`` tells."""

    model_config = ConfigDict(frozen=True)

    path: tuple[str | int, ...]
    """Object keys and list positions that lead to it."""
    kind: Literal["added", "removed", "changed"]
    before: Any
    after: Any


class ChangedMemory(BaseModel):
    """A memory whose value differs between two moments."""

    model_config = ConfigDict(frozen=True)

    namespace: tuple[str, ...]
    key: str
    before_version: int
    after_version: int
    fields: list[FieldChange]


class Diff(BaseModel):
    """How one moment differs from another; memories in key order. Positions are in written form."""

    model_config = ConfigDict(frozen=True)

    before: str
    after: str
    added: list[Memory]
    removed: list[Memory]
    changed: list[ChangedMemory]


def diff(before: str, after: str, old: Iterator[Row], new: Iterator[Row]) -> Diff:
    """Compare the memories of two moments, each given in key order. Only values count."""
    added: list[Memory] = []
    removed: list[Memory] = []
    changed: list[ChangedMemory] = []
    a, b = next(old, None), next(new, None)
    while a is not None or b is not None:
        if b is None or (a is not None and a.key < b.key):
            assert a is not None
            removed.append(_memory(a))
            a = next(old, None)
        elif a is None or b.key < a.key:
            added.append(_memory(b))
            b = next(new, None)
        else:
            # Versions are counted through deletes, so the same number is the same value.
            if a.version != b.version and a.data != b.data:
                found = list(_fields(decode_value(a.data), decode_value(b.data), ()))
                if found:
                    changed.append(_changed(a, b, found))
            a, b = next(old, None), next(new, None)
    return Diff(before=before, after=after, added=added, removed=removed, changed=changed)


def _fields(before: Any, after: Any, at: Trail) -> Iterator[FieldChange]:
    if type(before) is dict and type(after) is dict:
        for name in before:
            if name not in after:
                yield FieldChange(path=(*at, name), kind="removed", before=before[name], after=None)
            else:
                yield from _fields(before[name], after[name], (*at, name))
        for name in after:
            if name not in before:
                yield FieldChange(path=(*at, name), kind="added", before=None, after=after[name])
    elif type(before) is list and type(after) is list:
        shared = min(len(before), len(after))
        for number in range(shared):
            yield from _fields(before[number], after[number], (*at, number))
        for number in range(shared, len(before)):
            yield FieldChange(path=(*at, number), kind="removed", before=before[number], after=None)
        for number in range(shared, len(after)):
            yield FieldChange(path=(*at, number), kind="added", before=None, after=after[number])
    elif type(before) is not type(after) or before != after:
        yield FieldChange(path=at, kind="changed", before=before, after=after)


def _memory(row: Row) -> Memory:
    namespace, key = decode_item(row.key)
    return Memory(namespace=namespace, key=key, version=row.version, value=decode_value(row.data))


def _changed(before: Row, after: Row, found: list[FieldChange]) -> ChangedMemory:
    namespace, key = decode_item(after.key)
    return ChangedMemory(
        namespace=namespace,
        key=key,
        before_version=before.version,
        after_version=after.version,
        fields=found,
    )
