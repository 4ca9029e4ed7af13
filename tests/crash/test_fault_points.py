"""S10 and S05: dying at every step of a write, and a log that ends in half a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import children


@pytest.mark.parametrize("fault", children.FAULTS)
def test_dying_at_any_step_leaves_all_or_nothing(tmp_path: Path, fault: str) -> None:
    in_log = children.FAULTS[fault][1]
    died, left = children.run("die_at", tmp_path / "store", fault)
    assert died == {"died": -9}
    if in_log:
        assert left["found"] == {"first": 2, "third": 2}
        assert left["versions"] == [2, 1]
        assert left["end"] == 5
    else:
        assert left["found"] == {"first": 1, "second": 1}
        assert left["versions"] == [1]
        assert left["end"] == 2
    assert left["equal"], "a rebuild from the log differs from the view"
    assert left["goes on"]


@pytest.mark.parametrize("cut", ["header", "payload", "checksum"])
def test_a_torn_tail_is_cut_and_written_over(tmp_path: Path, cut: str) -> None:
    [left] = children.run("tear", tmp_path / "store", cut)
    assert left["found"] == {"first": 1, "second": 1, "C": 3, "D": 4}
    assert left["end"] == 4
    assert left["equal"]
    assert left["goes on"]
    assert left["reports"] == 1
