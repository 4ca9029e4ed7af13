"""Retry: events that were set aside are applied, once all of them can be decoded.

They come late: what stands behind them is applied already. So the views that lack them are rebuilt
from the log, side by side, which gives every event its place. Whether a projection still fails on
one shows only then.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from eventstore.codec import decode
from eventstore.config import StoreConfig
from eventstore.connection import parse
from eventstore.errors import LogMismatch, UndecodableEvent, ViewError
from eventstore.log.base import Log
from eventstore.log.position import Position
from eventstore.status import QuarantinedEvent
from eventstore.views import Quarantined
from projector import directories
from projector.frozen import check_belongs, of_directory
from projector.places import open_log, require, views_of
from projector.progress import Bar
from projector.projections import quarantine
from projector.rebuild import TAKEN_SECONDS, Rebuilt, rebuild_at

log = logging.getLogger("projector.retry")

Place = tuple[int, int]
"""Partition and offset."""


class Retried(BaseModel):
    """What a retry came to."""

    model_config = ConfigDict(frozen=True)

    quarantined: int
    """How many events were set aside, in any of the views."""
    still: list[QuarantinedEvent]
    """Those that still cannot be applied, with the reason of now. Nothing was rebuilt if any of them
    cannot be decoded; one that a projection fails on was met in a rebuild, and set aside again."""
    rebuilt: list[Rebuilt]
    """The views that had set events aside."""

    @property
    def exit_code(self) -> int:
        """0: nothing of it is set aside any more. 1: some of it still is."""
        return 1 if self.still else 0


def retry_at(
    conn_string: str | Path,
    *,
    views: str | Path | None = None,
    stop: threading.Event | None = None,
    wait: float = TAKEN_SECONDS,
) -> Retried:
    """Rebuild the views that have set events aside, if every one of those can be decoded now.

    ``stop`` and ``wait`` are as for :func:`projector.rebuild.rebuild_at`, and so is what it raises.
    """
    place = parse(conn_string)
    require(place)
    source = open_log(place, StoreConfig())
    try:
        lacking = {home: _set_aside(source, home) for home in directories.numbered(views_of(place, views))}
        wanted = {(row.partition, row.offset): row for rows in lacking.values() for row in rows}
        still = _undecodable(source, wanted) if wanted else []
    finally:
        source.close()
    rebuilt: list[Rebuilt] = []
    if not still:
        for home in (home for home, rows in lacking.items() if rows):
            # Should the log have got another such event meanwhile, it is set aside as before.
            rebuilt += rebuild_at(
                conn_string, views=views, number=int(home.name), stop=stop, wait=wait, quarantine=True
            )
        again = {(each.partition, each.offset): each for done in rebuilt for each in done.quarantine}
        still = [each for at, each in sorted(again.items()) if at in wanted]
    return Retried(quarantined=len(wanted), still=still, rebuilt=rebuilt)


def _set_aside(source: Log, home: Path) -> list[Quarantined]:
    try:
        with of_directory(home) as frozen:
            check_belongs(frozen, source.log_id, source.high_water_mark())
            return list(quarantine.read(frozen.families["default"]))
    except (ViewError, LogMismatch) as error:
        log.warning("the view in %s is left alone: %s", home, error)
        return []


def _undecodable(source: Log, wanted: dict[Place, Quarantined]) -> list[QuarantinedEvent]:
    """Which of these events no decoder here understands, by partition and offset.

    The log is read from its start: from within it, a reader may be given half an atomic batch.
    """
    left = dict(wanted)
    still: dict[Place, Quarantined] = {}
    start, end = Position.start(source.partitions), source.high_water_mark()
    with Bar("looking for the events that were set aside", log) as bar:
        for chunk in source.chunks(start):
            for record in chunk.records:
                row = left.pop((record.partition, record.offset), None)
                if row is None:
                    continue
                try:
                    decode(record)
                except UndecodableEvent as error:
                    still[record.partition, record.offset] = quarantine.of(record, error)
            bar.update(start.behind(chunk.position), start.behind(end))
            if not left:
                break
    return [QuarantinedEvent.of(row) for _, row in sorted((still | left).items())]
