"""Brings events of old schemas up to the current one, when they are read.

The log is never rewritten. A record says which kind and schema version it is; each upcaster
takes the headers and value of one version to the next. A version from the future is refused:
guessing at it could drop what its writer meant to keep.
"""

from __future__ import annotations

from collections.abc import Callable

from eventstore.errors import UndecodableEvent
from eventstore.events import Kind

Headers = dict[str, bytes]
Upcaster = Callable[[Headers, bytes | None], tuple[Headers, bytes | None]]

CURRENT: dict[Kind, int] = dict.fromkeys(Kind, 1)
"""The schema version this release writes, by kind."""

UPCASTERS: dict[tuple[Kind, int], Upcaster] = {}
"""From (kind, version) to the step that makes it version + 1. Empty while every kind is at 1."""


def upcast(kind: Kind, version: int, headers: Headers, value: bytes | None) -> tuple[Headers, bytes | None]:
    """Headers and value in the current schema of their kind.

    Raises ``UndecodableEvent`` for a version newer than this release, or one never written.
    """
    current = CURRENT[kind]
    if not 1 <= version <= current:
        raise UndecodableEvent(
            f"{kind} events of schema version {version} are unknown here (known: 1 to {current}); "
            "upgrade this reader before going on"
        )
    for step in range(version, current):
        headers, value = UPCASTERS[kind, step](headers, value)
    return headers, value
