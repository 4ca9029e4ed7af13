"""How a memory came to be what it is: its versions, newest first, as users see them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict

from eventstore.events import Kind
from eventstore.values import decode_value
from eventstore.views import HistoryRow

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(us: int) -> datetime:
    """µs since the epoch as an aware UTC datetime, exactly."""
    return EPOCH + timedelta(microseconds=us)


class Version(BaseModel):
    """One event of a memory's past."""

    model_config = ConfigDict(frozen=True)

    version: int
    """Counted from 1 through the memory's whole life, deletes included. A rejected event
    carries the version that stood against it."""
    kind: Literal["put", "delete", "expire"]
    rejected: bool
    """Whether the event's condition did not hold, so that it changed nothing."""
    partition: int
    offset: int
    at: datetime
    """When the log took the event (UTC)."""
    created_at: datetime | None
    """When this life of the memory began; ``None`` once it is gone."""
    updated_at: datetime
    expires_at: datetime | None
    event_id: str
    actor: str | None
    thread: str | None
    run: str | None
    node: str | None
    checkpoint: str | None
    value: dict[str, Any] | None
    """The value put; ``None`` for deletes and expiries."""


def versions(rows: Iterator[HistoryRow]) -> Iterator[Version]:
    """Versions from a view's history rows; refreshes of an expiry are not versions."""
    for row in rows:
        kind = row.headers["type"].partition(b"/")[0].decode()
        if kind == Kind.TOUCH:
            continue
        named = {
            name: None if (text := row.headers.get(name)) is None else text.decode()
            for name in ("actor", "thread", "run", "node", "checkpoint")
        }
        yield Version(
            version=row.version,
            kind=kind,  # type: ignore[arg-type]
            rejected=row.outcome == "rejected",
            partition=row.partition,
            offset=row.offset,
            at=moment(row.appended_us),
            created_at=moment(row.created_us) if row.created_us else None,
            updated_at=moment(row.updated_us),
            expires_at=moment(row.expires_us) if row.expires_us else None,
            event_id=row.headers["id"].decode(),
            value=None if row.value is None else decode_value(row.value),
            **named,
        )
