"""Writes with a condition: exactly one winner, alike in every replica. S09."""

from __future__ import annotations

import subprocess
import sys

import pytest

from eventstore import EventStore, VersionConflict
from tests.logs import OpenStore, Places, can_be_opened_twice
from tests.scenarios.kit import ROOT, rows

COUNT = """
import sys
from eventstore import EventStore, VersionConflict
with EventStore.open(sys.argv[1], views=sys.argv[2]) as store:
    for _ in range(int(sys.argv[3])):
        while True:
            item = store.get(("c",), "n")
            number = 0 if item is None else item.value["n"]
            try:
                store.put(("c",), "n", {"n": number + 1}, expected_version=number)
                break
            except VersionConflict as conflict:
                assert conflict.current > number, (conflict.current, number)
                store.wait_for(store.position)
"""


@can_be_opened_twice
def test_three_processes_count_together(places: Places) -> None:
    """To three hundred; to less on a topic, where each may read what two others have just changed."""
    each = 30 if places.kind == "kafka" else 100
    places.open().close()
    command = [sys.executable, "-c", COUNT, places.url(), str(places.views()), str(each)]
    counters = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [counter.wait(60) for counter in counters] == [0, 0, 0]

    def rejected(store: EventStore) -> list[int]:
        return [version.offset for version in store.history(("c",), "n") if version.rejected]

    with places.open() as store:
        assert store.get(("c",), "n").value == {"n": 3 * each}  # type: ignore[union-attr]
        first, live = rejected(store), rows(store)
    with places.fresh() as rebuilt:
        assert rejected(rebuilt) == first
        assert rows(rebuilt) == live
        assert len(rebuilt.history(("c",), "n")) == 3 * each + len(first)


def test_two_agents_change_the_same_memory(open_store: OpenStore) -> None:
    """S09: the second of two writers that read one version is told which version is there now."""
    store = open_store()
    for number in range(5):
        store.put(("a",), "k", {"n": number})
    store.put(("a",), "k", {"by": "A"}, expected_version=5)
    with pytest.raises(VersionConflict, match="is at version 6") as conflict:
        store.put(("a",), "k", {"by": "B"}, expected_version=5)
    assert conflict.value.current == 6
    assert store.get(("a",), "k").value == {"by": "A"}  # type: ignore[union-attr]
    with pytest.raises(VersionConflict) as conflict:
        store.put(("a",), "k", {}, expected_version=0)
    assert conflict.value.current == 6
    store.delete(("a",), "k")
    store.put(("a",), "k", {"by": "C"}, expected_version=0)
    store.put(("a",), "k", {"by": "D"})
    assert [(v.version, v.rejected, v.value) for v in store.history(("a",), "k")][:6] == [
        (9, False, {"by": "D"}),
        (8, False, {"by": "C"}),
        (7, False, None),
        (6, True, {}),
        (6, True, {"by": "B"}),
        (6, False, {"by": "A"}),
    ]
