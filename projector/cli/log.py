"""Commands about the log itself: what is in it, where it ends, and whether it can be read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from eventstore.codec import decode
from eventstore.errors import EventStoreError
from eventstore.events import VALUED, Kind
from eventstore.history import moment
from eventstore.keys import decode_item
from eventstore.log.base import StoredRecord
from eventstore.log.embedded import EmbeddedLog
from projector.cli.items import Json, Limit, Store, open_existing
from projector.cli.output import emit, print_quarantine, print_table, when


def status(store: Store, as_json: Json = False) -> None:
    """Print where the log ends, what the view holds, and what it costs on disk."""
    with open_existing(store) as opened:
        found = opened.status()
    report = {**found.model_dump(mode="json"), "bytes_on_disk": _bytes_on_disk(store)}
    if as_json:
        emit(report)
        return
    del report["quarantine"]
    print_table([{"what": name, "value": value} for name, value in report.items() if value is not None])
    print_quarantine(found.quarantine)


def show(
    store: Store,
    start: Annotated[int, typer.Option("--from", min=0, help="First offset.")] = 0,
    limit: Limit = 100,
    as_json: Json = False,
) -> None:
    """Print events as the log holds them; every record read is checked against its checksum.

    Where a record cannot be read, those before it are printed first.
    """
    if not (store / "log").is_dir():
        raise typer.BadParameter(f"there is no store in {store}")
    log = EmbeddedLog.open(store / "log")
    events: list[dict[str, Any]] = []
    failure: EventStoreError | None = None
    try:
        for record in _records(log, start, limit):
            events.append(_event(record))
    except EventStoreError as error:
        failure = error
    finally:
        log.close()
    if as_json:
        emit(events)
    else:
        print_table([_row(event) for event in events])
    if failure is not None:
        raise failure


def _records(log: EmbeddedLog, start: int, limit: int) -> Iterator[StoredRecord]:
    left = limit
    for records in log.read(start):
        yield from records[:left]
        left -= len(records)
        if left <= 0:
            return


def _event(record: StoredRecord) -> dict[str, Any]:
    event = decode(record)
    namespace, key = ((), None) if event.kind is Kind.MODEL else decode_item(event.key)
    made = event.embedded
    return {
        "offset": record.offset,
        "at": moment(record.appended_us).isoformat(),
        "kind": event.kind.value,
        "namespace": list(namespace),
        "key": key,
        "event_id": event.id.hex(),
        **event.provenance._asdict(),
        "ttl_minutes": event.ttl,
        "expires_at": moment(event.expires_us).isoformat() if event.expires_us else None,
        "expected_version": event.expected_version,
        "seen_version": event.seen_version or None,
        "model": None if made is None else made.model,
        "vectors": None if made is None else len(made.paths),
        "bytes": len(event.value or b"") if event.kind in VALUED else None,
    }


def _row(event: dict[str, Any]) -> dict[str, Any]:
    return {
        "offset": event["offset"],
        "when (UTC)": when(datetime.fromisoformat(event["at"])),
        "what": event["kind"],
        "memory": "/".join([*event["namespace"], event["key"] or ""]),
        "actor": event["actor"],
        "thread": event["thread"],
        "ttl (min)": event["ttl_minutes"],
        "vectors": event["vectors"],
        "bytes": event["bytes"],
    }


def _bytes_on_disk(store: Path) -> int:
    total = 0
    for path in store.rglob("*"):
        # RocksDB removes files at any time.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total
