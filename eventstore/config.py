"""Settings of a store, and what a connection string means.

Validated once, when a store is opened. Index and TTL settings have modules of their own
(:mod:`eventstore.embedding`, :mod:`eventstore.ttl`), since LangGraph defines their shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eventstore.errors import InvalidConfig, InvalidType

ReadConsistency = Literal["own_writes", "latest", "eventual"]


class StoreConfig(BaseModel):
    """Options of :meth:`EventStore.open` beyond ``index`` and ``ttl``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    read_consistency: ReadConsistency | None = None
    """What a read is sure to see. ``own_writes``: all that this process wrote. ``latest``: all
    that any process had acknowledged when the read began. ``eventual``: what the view holds.
    Default: ``latest`` where the log's end is a memory read (the embedded log)."""
    max_value_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """Largest value accepted, in bytes of JSON."""
    wait_timeout: float = Field(default=30.0, gt=0)
    """Seconds a call waits for the view to reach a position."""
    segment_bytes: int = Field(default=16 * 1024 * 1024, ge=4096)
    """Size at which the embedded log begins a new file; opening checks the last one whole."""
    cache_bytes: int = Field(default=64 * 1024 * 1024, ge=1 << 20)
    """RocksDB block cache of the view."""
    follow_interval: float = Field(default=0.02, gt=0)
    """Seconds between looks for what other processes appended."""

    @classmethod
    def of(cls, given: StoreConfig | Mapping[str, Any] | None) -> StoreConfig:
        """A config from what the caller passed. Raises ``InvalidConfig``."""
        if isinstance(given, cls):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise InvalidType(f"config takes a StoreConfig or a mapping, not {type(given).__name__}")
        try:
            return cls(**(given or {}))
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            raise InvalidConfig(
                f"config[{name!r}]: {first['msg']}; known options are {', '.join(cls.model_fields)}"
            ) from None


class Place(BaseModel):
    """Where a connection string points."""

    model_config = ConfigDict(frozen=True)

    directory: Path | None
    """Folder of the embedded log; ``None`` for a temporary one that ends with the store."""


def parse(conn_string: object) -> Place:
    """What a connection string names: a path, a ``file:`` URL, or ``memory:``.

    Raises ``InvalidConfig`` for an empty string or another scheme.
    """
    if isinstance(conn_string, Path):
        return Place(directory=conn_string)
    if not isinstance(conn_string, str):
        raise InvalidType(f"a connection string is a str or Path, not {type(conn_string).__name__}")
    if conn_string in ("memory:", ":memory:"):
        return Place(directory=None)
    if not conn_string or "\x00" in conn_string:
        raise InvalidConfig(
            "the connection string is empty or holds a NUL; give a folder, such as './memory'"
        )
    if conn_string.startswith("file:"):
        url = urlsplit(conn_string)
        if url.netloc not in ("", "localhost"):
            raise InvalidConfig(f"file: URLs name local folders; host {url.netloc!r} is not this machine")
        if not url.path:
            raise InvalidConfig("the file: URL has no path; write file:./memory or file:///var/lib/memory")
        return Place(directory=Path(unquote(url.path)))
    scheme, separator, _ = conn_string.partition("://")
    if separator:
        raise InvalidConfig(
            f"connection strings beginning with {scheme + '://'!r} are not known here; "
            "this release takes a folder, a file: URL or memory:"
        )
    return Place(directory=Path(conn_string))
