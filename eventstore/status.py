"""Where a store stands: how far the log goes, how much of it the view shows, and what stopped it."""

from __future__ import annotations

import contextlib
from datetime import datetime
from itertools import islice
from typing import Final

from pydantic import BaseModel, ConfigDict

from eventstore.errors import InvalidConfig, InvalidInput, LogError
from eventstore.history import moment
from eventstore.keys import decode_item, memory_of
from eventstore.log.position import Position
from eventstore.views import Quarantined, ReadView, Runtime

LISTED: Final = 100
"""How many quarantined events a status names; all are counted."""


class QuarantinedEvent(BaseModel):
    """An event that could not be applied and was set aside."""

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
    end: str | None
    """The log's high-water mark, as a position; ``None`` where the log does not tell."""
    applied: str
    """The position before which everything is visible in this process's view."""
    lag: int | None
    """How many offsets lie between the two."""
    memories: int
    """Live memories in the view, expired ones not yet swept included."""
    trouble: str | None
    """Why the log does not tell its end: it cannot be reached, or is not there any more."""
    stopped: str | None
    """Why the projection goes no further, if it does not."""
    quarantined: int
    """How many events could not be applied and were set aside; see ``StoreConfig.on_undecodable``."""
    quarantine: tuple[QuarantinedEvent, ...]
    """The first of them, by partition and offset."""


def status(runtime: Runtime) -> Status:
    """Where log and view stand; nothing is caught up first. Raises ``StoreClosed``, and no ``LogError``."""
    with runtime.view.read() as view:
        memories = view.count(b"")
        count, listed = quarantine(view)
    applied = runtime.applied
    end: Position | None = None
    trouble: str | None = None
    try:
        end = runtime.log.high_water_mark()
    except (LogError, InvalidConfig) as error:
        trouble = f"{type(error).__name__}: {error}"
    return Status(
        log=runtime.log.location,
        log_id=runtime.log.log_id,
        end=None if end is None else str(end),
        applied=str(applied),
        lag=None if end is None else applied.behind(end),
        memories=memories,
        trouble=trouble,
        stopped=None if runtime.stopped is None else str(runtime.stopped),
        quarantined=count,
        quarantine=listed,
    )


def quarantine(view: ReadView) -> tuple[int, tuple[QuarantinedEvent, ...]]:
    """How many events were set aside, and the first of them."""
    found = view.quarantined()
    listed = tuple(QuarantinedEvent.of(row) for row in islice(found, LISTED))
    return len(listed) + sum(1 for _ in found), listed
