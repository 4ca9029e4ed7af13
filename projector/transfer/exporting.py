"""Export: the memories of a store at one moment, or every version of each, as JSON lines.

Memories are written least recently updated first, so that an import can keep that order. The
file appears under its name when it is complete.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import orjson
from pydantic import BaseModel, ConfigDict

from eventstore import EventStore
from eventstore.errors import InvalidConfig
from eventstore.events import UNVERSIONED, Kind
from eventstore.history import moment
from eventstore.keys import decode_item, encode_namespace
from eventstore.namespaces import check_namespace
from eventstore.ttl import MINUTE_US, now_us
from eventstore.undo import with_vectors
from eventstore.views import HistoryRow, ReadView, Row, Signature, Wanted
from projector.progress import Bar
from projector.runtime import runtime_of
from projector.transfer.lines import Head, Line, LineVectors, head, written

log = logging.getLogger("projector.transfer")

STEP: Final = 500
_NO_VERSION: Final = frozenset({*UNVERSIONED, "void"})
_VALUED: Final = (Kind.PUT.value, Kind.RESTORE.value)


class Exported(BaseModel):
    """What an export wrote."""

    model_config = ConfigDict(frozen=True)

    file: str
    position: str
    memories: int
    lines: int
    """Without the first one; more than ``memories`` where the history was asked for."""
    seconds: float


def export(
    store: EventStore,
    file: str | Path,
    *,
    prefix: tuple[str, ...] = (),
    history: bool = False,
    vectors: bool = True,
) -> Exported:
    """Write the memories under a prefix to a file, one JSON line each.

    With ``history``, a line for every version, those of deleted memories too. Without ``vectors``
    the file is smaller and importing it calls the embedding model. All is read from one moment.
    Raises ``InvalidConfig`` when the file cannot be written.
    """
    runtime = runtime_of(store)
    store.wait_for(store.position)
    runtime.catch_up()
    path = Path(file)
    start = encode_namespace(check_namespace(prefix, empty_ok=True))
    part = path.with_name(path.name + ".part")
    memories = lines = 0
    try:
        with part.open("wb") as out, runtime.view.read() as view, Bar(f"writing {path.name}", log) as bar:
            position = str(runtime.applied)
            about = Head(log_id=runtime.log.log_id, position=position, prefix=list(prefix), history=history)
            out.write(head(about))
            total = view.count(start)
            reader = _Reader(view, runtime.view.signature(), vectors)
            for rows in reader.past(start) if history else reader.present(start):
                out.writelines(rows)
                memories += 1
                lines += len(rows)
                if memories % STEP == 0:
                    bar.update(memories, max(total, memories))
            seconds = bar.seconds
        part.replace(path)
    except OSError as error:
        raise InvalidConfig(f"{path} could not be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    return Exported(file=str(path), position=position, memories=memories, lines=lines, seconds=seconds)


class _Reader:
    """Lines of memories, from one moment of a view."""

    def __init__(self, view: ReadView, of_record: Signature | None, vectors: bool) -> None:
        self._view = view
        self._of_record = of_record
        self._with_vectors = vectors
        self._now_us = now_us()

    def present(self, prefix: bytes) -> Iterator[list[bytes]]:
        """A line for each memory, least recently updated first."""
        for key in reversed(list(self._view.newest(prefix))):
            row = self._view.get(key)
            if row is not None:
                yield [written(self._memory(row), row.data)]

    def past(self, prefix: bytes) -> Iterator[list[bytes]]:
        """Lines of all versions of each memory, oldest first; memories in key order."""
        found = self._view.events(prefix, Wanted())
        for key, group in groupby(found, attrgetter("key")):
            rows: list[HistoryRow] = []
            added: dict[int, list[HistoryRow]] = {}
            for each in group:
                if each.outcome == Kind.EMBED:
                    row = each.row()
                    added.setdefault(row.version, []).append(row)
                elif each.outcome not in _NO_VERSION:
                    rows.append(each.row())
            lines = (written(self._version(key, row, added.get(row.version, ())), row.value) for row in rows)
            if rows:
                yield [*lines][::-1]

    def _memory(self, row: Row) -> Line:
        index, vectors = None, None
        for past in self._view.history(row.key, None):
            if past.outcome in _VALUED:
                index, vectors = _index(past), self._vectors(past, self._view.history(row.key, None))
                break
        namespace, key = decode_item(row.key)
        return Line(
            namespace=list(namespace),
            key=key,
            version=row.version,
            created_at=moment(row.created_us),
            updated_at=moment(row.updated_us),
            index=index,
            vectors=vectors,
            **self._expiry(row.expires_us, row.ttl_us),
        )

    def _version(self, encoded: bytes, row: HistoryRow, added: Iterable[HistoryRow]) -> Line:
        namespace, key = decode_item(encoded)
        rejected = row.outcome == "rejected"
        kind = row.headers["type"].partition(b"/")[0].decode()
        who = {
            name: None if (text := row.headers.get(name)) is None else text.decode()
            for name in ("actor", "thread", "run", "node", "checkpoint")
        }
        values: dict[str, Any] = {
            "kind": kind,
            "rejected": rejected,
            "vectors": self._vectors(row, added),
            **who,
            **({} if rejected else self._expiry(row.expires_us, row.ttl_us)),
        }
        return Line(
            namespace=list(namespace),
            key=key,
            version=row.version,
            at=moment(row.appended_us),
            created_at=moment(row.created_us) if row.created_us else None,
            updated_at=moment(row.updated_us),
            index=_index(row),
            **values,
        )

    def _vectors(self, row: HistoryRow, rows: Iterable[HistoryRow]) -> LineVectors | None:
        """The vectors of a version: of the model of record, where it has some of that."""
        if not self._with_vectors:
            return None
        made = with_vectors(self._view, row, rows, self._of_record)
        paths = made.headers.get("vector-paths")
        if made.vectors is None or paths is None:
            return None
        model, found = self._view.vectors(made.vectors)
        return LineVectors.of(model, orjson.loads(paths), found) if len(found) else None

    def _expiry(self, expires_us: int, ttl_us: int) -> dict[str, Any]:
        if not expires_us:
            return {}
        return {
            "ttl_minutes": ttl_us / MINUTE_US,
            "ttl_left_minutes": (expires_us - self._now_us) / MINUTE_US,
            "expires_at": moment(expires_us),
        }


def _index(row: HistoryRow) -> list[str] | bool | None:
    asked = row.headers.get("index")
    found: list[str] | bool | None = None if asked is None else orjson.loads(asked)
    return found
