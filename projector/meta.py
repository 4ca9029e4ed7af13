"""What a view notes about itself: its format, the log it was made from, and where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from eventstore.errors import LogMismatch, ViewDamaged
from eventstore.log.position import Position
from projector.rocks import Rocks, get

FORMAT: Final = b"2"
POSITION: Final = b"m:position"


def check_made_from(db: Rocks, directory: Path, log_id: str, form_read: bytes = FORMAT) -> bool:
    """Whether a database is a view at all yet.

    Raises ``ViewDamaged`` for one of another release, ``LogMismatch`` for one of another log.
    """
    form, owner = get(db.default, b"m:format"), get(db.default, b"m:log")
    if form is None:
        return False
    if form != form_read:
        raise ViewDamaged(f"the view in {directory} has format {form!r}, this release reads {form_read!r}")
    if owner != log_id.encode():
        raise LogMismatch(
            f"the view in {directory} was built from log {owner!r}, but found log {log_id!r}. "
            f"If the new log is the right one, remove {directory} and the view is rebuilt from it"
        )
    return True


def position_in(db: Rocks, directory: Path, partitions: int) -> Position:
    """Where a view stands. Raises ``LogMismatch`` for a log of another number of partitions."""
    data = get(db.default, POSITION)
    if data is None:
        return Position.start(partitions)
    found = Position.of(data.decode())
    if len(found) != partitions:
        raise LogMismatch(
            f"the view in {directory} was built from {len(found)} partitions, "
            f"the log has {partitions}. "
            "Memories are kept in order by partition, so their number cannot change: "
            "make a new log with more partitions and copy the old one into it"
        )
    return found
