"""Factories by which outside suites open the stores of this project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventstore import EventStore


def make_store(
    tmp_path: Path, index: dict[str, Any] | None = None, ttl: dict[str, Any] | None = None
) -> EventStore:
    """A store on an embedded log under ``tmp_path``; the same path opens the same data."""
    return EventStore.open(tmp_path / "store", index=index, ttl=ttl)
