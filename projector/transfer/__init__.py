"""Moving data: memories as JSON lines, out and in; memories and checkpoints of other stores and savers."""

from __future__ import annotations

from projector.transfer.exporting import Exported, export
from projector.transfer.importing import Imported, import_
from projector.transfer.migrating import Migrated, migrate, open_source
from projector.transfer.savers import MigratedThreads, migrate_threads, open_saver

__all__ = [
    "Exported",
    "Imported",
    "Migrated",
    "MigratedThreads",
    "export",
    "import_",
    "migrate",
    "migrate_threads",
    "open_saver",
    "open_source",
]
