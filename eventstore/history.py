"""How memories came to be what they are: versions, as users see them.

Of one memory they are given newest first, as its past is looked into; of many, in log order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict

from eventstore.codec import needle
from eventstore.errors import InvalidInput, InvalidType
from eventstore.events import UNVERSIONED
from eventstore.keys import decode_item
from eventstore.values import decode_value
from eventstore.views import HistoryRow, Occurrence, ReadView, Wanted

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NO_VERSIONS: Final = frozenset({*UNVERSIONED, "void"})


def moment(us: int) -> datetime:
    """µs since the epoch as an aware UTC datetime, exactly."""
    return EPOCH + timedelta(0, 0, us)


def microseconds(when: object, name: str) -> int:
    """An aware datetime as µs since the epoch. Raises ``InvalidInput`` without a time zone."""
    if not isinstance(when, datetime):
        raise InvalidType(f"{name} is a datetime with a time zone, not {type(when).__name__}")
    if when.utcoffset() is None:
        raise InvalidInput(
            f"{name} has no time zone, so it names no moment; give one, such as datetime.now(UTC)"
        )
    return (when - EPOCH) // _MICROSECOND


class Version(BaseModel):
    """One event of a memory's past."""

    model_config = ConfigDict(frozen=True)

    namespace: tuple[str, ...]
    key: str
    version: int
    """Counted from 1 through the memory's whole life, deletes included. A rejected event
    carries the version that stood against it."""
    kind: Literal["put", "restore", "delete", "expire"]
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
    restores: int | None
    """Of a restore: the version it put back."""
    reverts: tuple[int, ...]
    """The versions a revert undid with this event."""
    value: dict[str, Any] | None
    """The value put or restored; ``None`` for deletes and expiries."""


def versions(key: bytes, rows: Iterable[HistoryRow]) -> Iterator[Version]:
    """Versions of one memory, rejected ones included."""
    for row in rows:
        if is_version(row):
            yield Version(**fields(key, row))


def fields(key: bytes, row: HistoryRow) -> dict[str, Any]:
    """What a :class:`Version` says of a history row."""
    headers = row.headers
    namespace, name = decode_item(key)
    restores = headers.get("restores")
    return {
        "namespace": namespace,
        "key": name,
        "version": row.version,
        "kind": headers["type"].partition(b"/")[0].decode(),
        "rejected": row.outcome == "rejected",
        "partition": row.partition,
        "offset": row.offset,
        "at": moment(row.appended_us),
        "created_at": moment(row.created_us) if row.created_us else None,
        "updated_at": moment(row.updated_us),
        "expires_at": moment(row.expires_us) if row.expires_us else None,
        "event_id": headers["id"].decode(),
        "restores": None if restores is None else int(restores),
        "reverts": reverted(row),
        "value": None if row.value is None else decode_value(row.value),
        **{name: _header(row, name) for name in ("actor", "thread", "run", "node", "checkpoint")},
    }


def is_version(row: HistoryRow) -> bool:
    """Whether a row is a version: it is not for refreshes, further vectors, and deletes of nothing."""
    return row.outcome not in _NO_VERSIONS


def reverted(row: HistoryRow) -> tuple[int, ...]:
    """The versions that an event undid."""
    return tuple(orjson.loads(row.headers.get("reverts", b"[]")))


class Cause(NamedTuple):
    """Who an event is of, and when the log took it (µs since the epoch, both ends included)."""

    run: str | None
    thread: str | None
    actor: str | None
    since_us: int
    until_us: int

    @classmethod
    def of(cls, run: object, thread: object, actor: object, since: object, until: object) -> Cause:
        """What the caller named. Raises ``InvalidInput`` or ``InvalidType``."""
        return cls(
            _text(run, "run_id"),
            _text(thread, "thread_id"),
            _text(actor, "actor"),
            0 if since is None else microseconds(since, "since"),
            2**63 if until is None else microseconds(until, "until"),
        )

    @property
    def named(self) -> dict[str, str]:
        """Header names and the texts they must have."""
        texts = {"run": self.run, "thread": self.thread, "actor": self.actor}
        return {name: text for name, text in texts.items() if text is not None}

    def matches(self, row: HistoryRow) -> bool:
        """Whether an event has this cause."""
        if not self.since_us <= row.appended_us <= self.until_us:
            return False
        return all(_header(row, name) == text for name, text in self.named.items())

    def events(self, view: ReadView, prefix: bytes) -> Iterator[Occurrence]:
        """Events of this cause under an encoded prefix that are versions, by key."""
        needles = tuple(needle(name, text) for name, text in self.named.items())
        for each in view.events(prefix, Wanted(self.since_us, self.until_us, needles)):
            if each.outcome not in _NO_VERSIONS and (not needles or self.matches(each.row())):
                yield each


Place = tuple[int, int, int]
"""Append time, partition and offset of an event: the order of a log, whatever its partitions."""


def in_log_order(found: Iterable[Occurrence], limit: int | None, after: Place | None) -> list[Version]:
    """Events oldest first, from behind a place, at most so many."""
    behind = found if after is None else (each for each in found if each[:3] > after)
    chosen = sorted(behind) if limit is None else heapq.nsmallest(limit, behind)
    return [Version(**fields(each.key, each.row())) for each in chosen]


def _text(given: object, name: str) -> str | None:
    if given is None or (isinstance(given, str) and given):
        return given
    raise InvalidType(f"{name} is a string that is not empty, not {type(given).__name__}")


def _header(row: HistoryRow, name: str) -> str | None:
    text = row.headers.get(name)
    return None if text is None else text.decode()
