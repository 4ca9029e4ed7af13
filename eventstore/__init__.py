"""Event-sourced long-term memory for LangGraph: what is true, and what an agent touches."""

from eventstore.config import StoreConfig
from eventstore.difference import Diff
from eventstore.errors import EventStoreError, VersionConflict
from eventstore.feed import Change, Changes
from eventstore.history import Version
from eventstore.log.position import Position
from eventstore.provenance import acting_as
from eventstore.store import EventStore
from eventstore.timetravel import PastStore
from eventstore.undo import Revert

__all__ = [
    "Change",
    "Changes",
    "Diff",
    "EventStore",
    "EventStoreError",
    "PastStore",
    "Position",
    "Revert",
    "StoreConfig",
    "Version",
    "VersionConflict",
    "acting_as",
]
