"""The log: the ordered, append-only source of truth. Re-exports only."""

from eventstore.log.base import Batch, Log, Record, StoredRecord
from eventstore.log.embedded import EmbeddedLog

__all__ = ["Batch", "EmbeddedLog", "Log", "Record", "StoredRecord"]
