"""How many events share a write batch makes no difference to any row of a view."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from eventstore.codec import encode
from eventstore.events import Embedded, Event, Kind, new_id
from eventstore.keys import encode_item
from eventstore.log import EmbeddedLog
from eventstore.log.position import Position
from projector.rocks import FAMILIES, scan
from projector.runner import Projector
from projector.view import MaterializedView

KEYS = [encode_item(("users", f"u{at % 3}"), f"k{at}") for at in range(6)]
KINDS = [Kind.PUT, Kind.PUT, Kind.RESTORE, Kind.DELETE, Kind.TOUCH, Kind.TOUCH, Kind.EXPIRE]
FAR = 2**52
"""An expiry that no clock of today has reached, µs since the epoch."""


def events(random: Random, count: int) -> list[Event]:
    """Events of few memories, so that most batches change one several times; many of them are void."""
    made = []
    for at in range(count):
        kind = random.choice(
            [Kind.PUT, Kind.PUT, Kind.RESTORE, Kind.DELETE, Kind.TOUCH, Kind.TOUCH, Kind.EXPIRE]
        )
        event = Event(kind, random.choice(KEYS), new_id())
        if kind in (Kind.PUT, Kind.RESTORE):
            vector = Embedded("m/1", 1, ("t",), at.to_bytes(4, "little")) if random.random() < 0.5 else None
            event = event._replace(value=b'{"n":%d}' % at, embedded=vector)
            if random.random() < 0.6:
                event = event._replace(ttl=1.0)
            if random.random() < 0.2:
                event = event._replace(expected_version=random.randrange(4))
        elif kind in (Kind.TOUCH, Kind.EXPIRE):
            event = event._replace(seen_version=random.randrange(1, 12), expires_us=FAR + at)
        made.append(event)
    return made


def rows(directory: Path, log: EmbeddedLog, commit_records: int) -> dict[str, dict[bytes, bytes]]:
    directory.mkdir()
    view = MaterializedView(directory, log.log_id, 1 << 20)
    try:
        projector = Projector(log, view)
        projector.catch_up(commit_records=commit_records)
        assert projector.position == log.high_water_mark()
        return {name: dict(scan(getattr(view.db, name), b"")) for name in ("default", *FAMILIES)}
    finally:
        view.close()


@pytest.mark.parametrize("seed", range(8))
def test_the_size_of_batches_makes_no_difference(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    log = EmbeddedLog.open(tmp_path / "log")
    for event in events(random, 120):
        log.append([log.prepare([encode(event)])])
    one_by_one = rows(tmp_path / "1", log, 1)
    assert one_by_one["history"]
    for size in (7, 1_000):
        assert rows(tmp_path / str(size), log, size) == one_by_one
    log.close()


def test_a_replay_stops_exactly_where_it_is_told(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path / "log")
    for event in events(Random(1), 40):
        log.append([log.prepare([encode(event)])])
    view = MaterializedView(tmp_path / "view", log.log_id, 1 << 20)
    projector = Projector(log, view)
    for at in (0, 1, 17, 17, 40):
        projector.catch_up(limit=Position(at))
        assert projector.position == Position(at)
    view.close()
    log.close()
