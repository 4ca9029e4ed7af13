"""Commands about the log itself: what is in it, where it ends, and whether it can be read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from eventstore.checkpoint.place import FOLDER
from eventstore.codec import decode
from eventstore.errors import EventStoreError, UndecodableEvent
from eventstore.events import VALUED, Event, Kind
from eventstore.history import moment
from eventstore.keys import decode_item, encode_item
from eventstore.log.base import StoredRecord
from eventstore.log.embedded import EmbeddedLog
from eventstore.status import QuarantinedEvent
from projector.cli import saved
from projector.cli.items import Json, Limit, Store, open_existing
from projector.cli.output import emit, print_quarantine, print_table, when
from projector.projections import quarantine


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
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Of the log of checkpoints instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print events as the log holds them; every record read is checked against its checksum.

    One that cannot be decoded is shown as that, with the reason. Where the log is damaged, what
    comes before is printed first.
    """
    if not (store / "log").is_dir():
        raise typer.BadParameter(f"there is no store in {store}")
    folder = store / (FOLDER if checkpoints else "log")
    if not folder.is_dir():
        raise typer.BadParameter(f"there are no checkpoints in {store}")
    told, row = (saved.telling(), saved.row) if checkpoints else (_event, _row)
    log = EmbeddedLog.open(folder)
    events: list[dict[str, Any]] = []
    failure: EventStoreError | None = None
    try:
        for record in _records(log, start, limit):
            events.append(told(record))
    except EventStoreError as error:
        failure = error
    finally:
        log.close()
    if as_json:
        emit(events)
    else:
        print_table([row(event) for event in events])
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
    place = {"offset": record.offset, "at": moment(record.appended_us).isoformat()}
    try:
        return place | _decoded(decode(record))
    except UndecodableEvent as error:
        return place | _undecoded(QuarantinedEvent.of(quarantine.of(record, error)), record)


def _decoded(event: Event) -> dict[str, Any]:
    namespace, key = ((), None) if event.kind is Kind.MODEL else decode_item(event.key)
    made = event.embedded
    return {
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
        "undecodable": None,
    }


def _undecoded(aside: QuarantinedEvent, record: StoredRecord) -> dict[str, Any]:
    """With the fields of any other event; what it says of itself is not believed."""
    nothing = dict.fromkeys(_decoded(Event(Kind.DELETE, encode_item((), ""), b"")))
    return nothing | {
        "namespace": list(aside.namespace or ()),
        "key": aside.key,
        "bytes": None if record.value is None else len(record.value),
        "undecodable": aside.reason,
    }


def _row(event: dict[str, Any]) -> dict[str, Any]:
    return {
        "offset": event["offset"],
        "when (UTC)": when(datetime.fromisoformat(event["at"])),
        "what": event["kind"] or "undecodable",
        "memory": "/".join([*event["namespace"], event["key"] or ""]),
        "actor": event["actor"],
        "thread": event["thread"],
        "ttl (min)": event["ttl_minutes"],
        "vectors": event["vectors"],
        "bytes": event["bytes"],
        "because": event["undecodable"],
    }


def _bytes_on_disk(store: Path) -> int:
    total = 0
    for path in store.rglob("*"):
        # RocksDB removes files at any time.
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total
