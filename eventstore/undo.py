"""Undoing: what a cause did to each memory, and what would stand there without it.

Nothing is taken out of the log. A memory is put right by one more event, a restore or a
delete, which says what it undoes and holds only if the memory is still as it was judged.
Judging looks at the events of one memory and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from eventstore.codec import decode, fields_of
from eventstore.embedding import differs
from eventstore.errors import InvalidInput
from eventstore.events import UNVERSIONED, VALUED, Event, Kind, Provenance, new_id
from eventstore.history import Cause, reverted
from eventstore.log.base import StoredRecord
from eventstore.views import HistoryRow, ReadView, Signature


class Undone(BaseModel):
    """A memory that was, or would be, put right."""

    model_config = ConfigDict(frozen=True)

    namespace: tuple[str, ...]
    key: str
    undone: tuple[int, ...]
    """The versions written by the cause."""
    restored: int | None
    """The version whose value stands again; ``None`` where the memory is deleted."""


class RevertConflict(BaseModel):
    """A memory left alone, since others wrote to it after the cause did."""

    model_config = ConfigDict(frozen=True)

    namespace: tuple[str, ...]
    key: str
    undone: tuple[int, ...]
    """The versions written by the cause."""
    later: tuple[int, ...]
    """The versions others wrote since."""
    meanwhile: bool
    """Whether that happened while the revert was running."""


class Revert(BaseModel):
    """What a revert did, or would do; memories in key order."""

    model_config = ConfigDict(frozen=True)

    dry_run: bool
    restored: list[Undone]
    deleted: list[Undone]
    conflicts: list[RevertConflict]


class Verdict(NamedTuple):
    """What is to be done about one memory."""

    key: bytes
    undone: tuple[int, ...]
    seen: int
    """The version it has now; 0 when it is absent."""
    target: HistoryRow | None
    """The event whose value would stand; ``None`` when none would."""
    later: tuple[int, ...]


def judge(key: bytes, rows: Sequence[HistoryRow], cause: Cause, now_us: int) -> Verdict | None:
    """The verdict on one memory, whose events are given oldest first; ``None`` when nothing is to be done.

    An earlier revert's event counts as what it put back, and what it undid stays undone. An
    expiry of a version that is undone goes with it.
    """
    applied = [row for row in rows if row.outcome != "rejected" and row.outcome not in UNVERSIONED]
    gone = {version for row in applied for version in reverted(row)}
    bad: set[int] = set()
    good: list[HistoryRow] = []
    later: list[int] = []
    for row in applied:
        if row.outcome == "void":
            # A delete of what the cause had deleted already: without the cause it would have done it.
            if not cause.matches(row):
                good.append(row)
            continue
        about = int(row.headers.get("seen-version", b"0"))
        if reverted(row):
            hit = int(row.headers.get("restores", b"0")) in bad
        elif cause.matches(row):
            hit = True
        else:
            hit = False
            if row.version not in gone and not (about and about in bad | gone):
                good.append(row)
                later.append(row.version)
        if hit:
            bad.add(row.version)
            later.clear()
    if not bad - gone:
        return None
    target = good[-1] if good and good[-1].outcome in VALUED else None
    if target is not None and 0 < _expires_us(rows, target) <= now_us:
        target = None
    effective = [row for row in applied if row.outcome != "void"]
    seen = effective[-1].version if effective[-1].outcome in VALUED else 0
    if not later and target is None and not seen:
        return None
    return Verdict(key, tuple(sorted(bad)), seen, target, tuple(later))


def put_back(
    view: ReadView, key: bytes, row: HistoryRow, who: Provenance, of_record: Signature | None
) -> Event:
    """The event that gives a memory the value, vectors and ttl of one of its versions again.

    Of a version that has vectors of several models, it takes those of the model of record.
    """
    headers = [(name, data) for name, data in row.headers.items() if name != "vector-paths"]
    source = with_vectors(view, row, view.history(key, None), of_record)
    if source.vectors is not None:
        model, made = view.vectors(source.vectors)
        if len(made):
            paths = source.headers["vector-paths"]
            vectors = made.astype("<f4", copy=False).tobytes()
            headers += [("model", model.encode()), ("vector-paths", paths), ("vectors", vectors)]
    record = StoredRecord(
        row.partition, row.offset, row.appended_us, row.updated_us, b"", 0, key, row.value, tuple(headers)
    )
    return decode(record)._replace(
        kind=Kind.RESTORE,
        id=new_id(),
        provenance=who,
        expected_version=None,
        omits_expired=False,
        restores=row.version,
        reverts=(),
    )


def with_vectors(
    view: ReadView, row: HistoryRow, rows: Iterable[HistoryRow], of_record: Signature | None
) -> HistoryRow:
    """The event that gave a version its vectors: its own, or a later one for the model of record.

    ``rows`` are those of the memory, newest first.
    """
    if of_record is None or of_record.fields is None:
        return row
    for later in rows:
        if later.version < row.version or later.offset == row.offset:
            break
        named = later.outcome == Kind.EMBED and later.version == row.version and later.vectors is not None
        if named and fields_of(later.headers) == of_record.fields:
            model, made = view.vectors(later.vectors or 0)
            if made.shape[1] == of_record.dims and not differs(model, of_record.model):
                return later
    return row


def compensation(view: ReadView, verdict: Verdict, who: Provenance, of_record: Signature | None) -> Event:
    """The event that puts a memory right, unless it has changed since it was judged."""
    if verdict.target is None:
        event = Event(Kind.DELETE, verdict.key, new_id(), provenance=who)
    else:
        event = put_back(view, verdict.key, verdict.target, who, of_record)
    return event._replace(expected_version=verdict.seen, reverts=verdict.undone)


def version_row(view: ReadView, key: bytes, version: int) -> HistoryRow:
    """The event that made a version. Raises ``InvalidInput`` when none did, or when it has no value."""
    newest = 0
    for row in view.history(key, None):
        newest = newest or row.version
        if row.version == version and row.outcome in VALUED:
            return row
        if row.version == version and row.outcome in (Kind.DELETE, Kind.EXPIRE):
            raise InvalidInput(
                f"version {version} is of kind {row.outcome} and left no value to restore; "
                "delete the memory instead"
            )
        if row.version < version:
            break
    raise InvalidInput(f"this memory has no version {version!r}; its newest is {newest}")


def _expires_us(rows: Sequence[HistoryRow], target: HistoryRow) -> int:
    """When a version would have expired, refreshes included; 0 for never."""
    moved = [row.expires_us for row in rows if row.outcome == Kind.TOUCH and row.version == target.version]
    return max(moved, default=target.expires_us)
