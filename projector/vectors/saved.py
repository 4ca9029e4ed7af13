"""The saved state of an index, read without opening the index: another process may be using it."""

from __future__ import annotations

import sys
from pathlib import Path

from projector.vectors import manifest
from projector.vectors.files import UnusableFile
from projector.vectors.manifest import Owner
from projector.vectors.scoring import Scorer
from projector.vectors.state import State

ATTEMPTS = 3


def saved_state(directory: Path) -> tuple[State, Owner] | None:
    """What was last saved in a directory, and of what; ``None`` when there is nothing that can be used.

    Its owner may replace files while they are read, so a few attempts are made.
    """
    for _ in range(ATTEMPTS):
        owner = manifest.owner(directory)
        if owner is None:
            return None
        try:
            saved = manifest.load(directory, owner)
        except UnusableFile:
            continue
        if saved is None or saved.covered < 0:
            return None
        scorer = Scorer(owner.metric, owner.dims)
        return State(saved.covered, tuple(saved.segments), scorer, sys.maxsize, exact=True), owner
    return None
