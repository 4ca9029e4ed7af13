"""Commands about the log itself: what is in it, where it ends, and whether it can be read."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from eventstore.codec import decode
from eventstore.events import Kind
from eventstore.history import moment
from eventstore.keys import decode_item
from eventstore.log.base import StoredRecord
from eventstore.log.embedded import EmbeddedLog
from projector.cli.items import Json, Store, open_existing
from projector.cli.output import emit, print_table, when


def status(store: Store, as_json: Json = False) -> None:
    """Print where the log ends, what the view holds, and what it costs on disk."""
    with open_existing(store) as opened:
        size = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        report = {**opened.status().model_dump(), "bytes on disk": size}
    if as_json:
        emit(report)
        return
    print_table([{"what": name, "value": value} for name, value in report.items() if value is not None])


def show(
    store: Store,
    start: Annotated[int, typer.Option("--from", help="First offset.")] = 0,
    limit: Annotated[int, typer.Option(help="At most so many events.")] = 100,
    as_json: Json = False,
) -> None:
    """Print events as the log holds them; every record read is checked against its checksum."""
    if not (store / "log").is_dir():
        raise typer.BadParameter(f"there is no store in {store}")
    log = EmbeddedLog.open(store / "log")
    try:
        rows = [_row(record) for record in _records(log, start, limit)]
    finally:
        log.close()
    if as_json:
        emit(rows)
        return
    print_table(
        [
            {
                "offset": row["offset"],
                "when (UTC)": row["at"],
                "what": row["kind"],
                "memory": "/".join([*row["namespace"], row["key"]]),
                "actor": row["actor"],
                "thread": row["thread"],
                "ttl (min)": row["ttl_minutes"],
            }
            for row in rows
        ]
    )


def _records(log: EmbeddedLog, start: int, limit: int) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    for records in log.read(start):
        found += records
        if len(found) >= limit:
            break
    return found[:limit]


def _row(record: StoredRecord) -> dict[str, Any]:
    event = decode(record)
    namespace, key = decode_item(event.key)
    return {
        "offset": record.offset,
        "at": when(moment(record.appended_us)),
        "kind": event.kind.value,
        "namespace": list(namespace),
        "key": key,
        **event.provenance._asdict(),
        "ttl_minutes": event.ttl,
        "vectors": None if event.embedded is None else len(event.embedded.paths),
        "bytes": None if event.kind is not Kind.PUT else len(event.value or b""),
    }
