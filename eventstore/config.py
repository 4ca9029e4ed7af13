"""Settings of a store.

Validated once, when a store is opened. Index and TTL settings have modules of their own
(:mod:`eventstore.embedding`, :mod:`eventstore.ttl`), since LangGraph defines their shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eventstore.connection import KafkaOptions
from eventstore.errors import InvalidConfig, InvalidType

ReadConsistency = Literal["own_writes", "latest", "eventual"]
OnUndecodable = Literal["stop", "quarantine"]


class StoreConfig(BaseModel):
    """Options of :meth:`EventStore.open` beyond ``index`` and ``ttl``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    read_consistency: ReadConsistency | None = None
    """What a read is sure to see. ``own_writes``: all that this process wrote. ``latest``: all
    that any process had acknowledged when the read began. ``eventual``: what the view holds.
    Default: ``latest`` where the log's end is a memory read (the embedded log) and this process
    keeps the view."""
    max_value_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    """Largest value accepted, in bytes of JSON."""
    wait_timeout: float = Field(default=30.0, gt=0)
    """Seconds a call waits for the view to reach a position."""
    segment_bytes: int = Field(default=16 * 1024 * 1024, ge=4096)
    """Size at which the embedded log begins a new file; opening checks the last one whole."""
    cache_bytes: int = Field(default=64 * 1024 * 1024, ge=1 << 20)
    """RocksDB block cache of the view."""
    on_undecodable: OnUndecodable = "stop"
    """What an event does to this process's view that cannot be decoded, or that a projection fails
    on. ``stop``: nothing is applied from there on, reads go on, writes are refused. ``quarantine``:
    it is set aside, on the record, and the events behind it are applied."""
    attach: bool = False
    """Whether this process reads the view that another one keeps, a ``projector run`` say, instead
    of keeping one itself. Writes return once that view shows them."""
    kafka: KafkaOptions | None = None
    """How a topic is reached and made; see :class:`eventstore.connection.KafkaOptions`."""
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
