"""Event-sourced long-term memory for LangGraph: what is true, and what an agent touches."""

from eventstore.config import StoreConfig
from eventstore.errors import EventStoreError, VersionConflict
from eventstore.history import Version
from eventstore.provenance import acting_as
from eventstore.store import EventStore

__all__ = ["EventStore", "EventStoreError", "StoreConfig", "Version", "VersionConflict", "acting_as"]
