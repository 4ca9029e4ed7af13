"""Where a store stands: how far the log goes, how much of it the view shows, and what stopped it."""

from __future__ import annotations

import contextlib
from datetime import datetime
from itertools import islice
from typing import Final

from pydantic import BaseModel, ConfigDict

from eventstore.errors import InvalidInput
from eventstore.history import moment
from eventstore.keys import decode_item, memory_of
from eventstore.views import Quarantined, ReadView, Runtime

LISTED: Final = 100
"""How many quarantined events a status names; all are counted."""


class QuarantinedEvent(BaseModel):
    """An event that could not be decoded and was set aside."""

    model_config = ConfigDict(frozen=True)

    partition: int
    offset: int
    at: datetime
    """When the log took it (UTC)."""
    reason: str
    namespace: tuple[str, ...] | None
    """Of the memory it is about; ``None``, as is ``key``, where its record's key is no memory's."""
    key: str | None

    @classmethod
    def of(cls, row: Quarantined) -> QuarantinedEvent:
        """From what a view keeps of it."""
        namespace: tuple[str, ...] | None = None
        key: str | None = None
        with contextlib.suppress(InvalidInput):
            namespace, key = decode_item(memory_of(row.key))
        return cls(
            partition=row.partition,
            offset=row.offset,
            at=moment(row.appended_us),
            reason=row.reason,
            namespace=namespace,
            key=key,
        )


class Status(BaseModel):
    """A store at one moment."""

    model_config = ConfigDict(frozen=True)

    log: str
    """Where the log is."""
    log_id: str
    end: str
    """The log's high-water mark, as a position."""
    applied: str
    """The position before which everything is visible in this process's view."""
    lag: int
    """How many offsets lie between the two."""
    memories: int
    """Live memories in the view, expired ones not yet swept included."""
    stopped: str | None
    """Why the projection goes no further, if it does not."""
    quarantined: int
    """How many events could not be decoded and were set aside; see ``StoreConfig.on_undecodable``."""
    quarantine: tuple[QuarantinedEvent, ...]
    """The first of them, by partition and offset."""


def status(runtime: Runtime) -> Status:
    """Where log and view stand; nothing is caught up first."""
    with runtime.view.read() as view:
        memories = view.count(b"")
        count, listed = quarantine(view)
    applied, end = runtime.applied, runtime.log.high_water_mark()
    return Status(
        log=runtime.log.location,
        log_id=runtime.log.log_id,
        end=str(end),
        applied=str(applied),
        lag=applied.behind(end),
        memories=memories,
        stopped=None if runtime.stopped is None else str(runtime.stopped),
        quarantined=count,
        quarantine=listed,
    )


def quarantine(view: ReadView) -> tuple[int, tuple[QuarantinedEvent, ...]]:
    """How many events were set aside, and the first of them."""
    found = view.quarantined()
    listed = tuple(QuarantinedEvent.of(row) for row in islice(found, LISTED))
    return len(listed) + sum(1 for _ in found), listed
