"""S04: a process killed at any moment loses nothing it acknowledged and leaves nothing half done."""

from __future__ import annotations

import os
from pathlib import Path

from tests.crash import children

KILLS = int(os.environ.get("EVENTSTORE_KILLS", "40"))


def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """Every round kills a process with three writing threads, and the next one holds it to its word."""
    *_, storm, end = children.run("storm", tmp_path / "store", KILLS, 1, timeout=100 + 2 * KILLS)
    assert storm["acknowledged"] > KILLS
    assert end["fits"]
    assert end["equal"], "a rebuild from the log differs from the view"
    assert end["versions dense"]
    assert end["records"] >= storm["acknowledged"]
