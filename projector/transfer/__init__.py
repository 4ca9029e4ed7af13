"""Memories out of a store and into one: export and import as JSON lines, and migration from other stores."""

from __future__ import annotations

from projector.transfer.exporting import Exported, export
from projector.transfer.importing import Imported, import_
from projector.transfer.migrating import Migrated, migrate, open_source

__all__ = ["Exported", "Imported", "Migrated", "export", "import_", "migrate", "open_source"]
