"""Versions of channels: they grow, whichever saver gave out the ones before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventstore.checkpoint import EventSaver
from eventstore.errors import InvalidInput


def test_versions_grow_from_none_and_from_those_of_other_savers(tmp_path: Path) -> None:
    long = "00000000000000000000000000000009.0.8254367812345678"
    with EventSaver.open(tmp_path / "s") as saver:

        def next_to(current: Any) -> Any:
            return saver.get_next_version(current, None)

        first = next_to(None)
        second = next_to(first)
        assert first < second and len(first) == len(second) == 15
        assert next_to(first) != second
        assert next_to(7) == 8 and next_to(1.5) == 2.5
        assert long < next_to(long) and next_to(long).startswith("0000000a.")


@pytest.mark.parametrize("current", ["", "v7", "seven.1"])
def test_a_version_that_cannot_be_counted_on_is_named(tmp_path: Path, current: str) -> None:
    with EventSaver.open(tmp_path / "s") as saver, pytest.raises(InvalidInput, match="counted on"):
        saver.get_next_version(current, None)
