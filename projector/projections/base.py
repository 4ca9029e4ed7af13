"""What every projection is handed: one folded event, and the batch its rows go into."""

from __future__ import annotations

from typing import NamedTuple

from eventstore.events import Event
from eventstore.log.base import StoredRecord
from projector.fold import ItemState


class Change(NamedTuple):
    """An event that was folded, with the memory's state around it."""

    record: StoredRecord
    event: Event
    outcome: str
    """applied; or rejected or void, which leave nothing but history."""
    before: ItemState
    after: ItemState
    prefixes: tuple[bytes, ...]
    """Encodings of the memory's namespace and of everything above it, shortest first."""
