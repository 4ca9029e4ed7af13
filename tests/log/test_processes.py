"""Several processes on one log: appending, following, forking and being killed."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path

import pytest

from tests.log import layout
from tests.log.children import finish, keys, put, run, start
from tests.log.conftest import OpenLog


@pytest.mark.parametrize("segment_bytes", [4096, 1024 * 1024])
def test_two_processes_append_at_once(open_log: OpenLog, directory: Path, segment_bytes: int) -> None:
    writers = {name: start("writer", directory, name, 300, segment_bytes) for name in ("a", "b")}
    for child in writers.values():
        assert child.stdout
        assert child.stdout.readline() == '"ready"\n'
    for child in writers.values():
        assert child.stdin
        child.stdin.write("\n")
        child.stdin.flush()
    for child in writers.values():
        finish(child)
    records = [record for records in open_log().read(0) for record in records]
    assert [record.offset for record in records] == list(range(600))
    assert len({record.session for record in records}) == 2
    for name in writers:
        mine = [record for record in records if record.key.startswith(name.encode())]
        assert [record.key for record in mine] == [b"%s-%d" % (name.encode(), i) for i in range(300)]
        assert [record.sequence for record in mine] == list(range(1, 301))
    times = [record.appended_us for record in records]
    assert times == sorted(times)


def test_a_follower_sees_the_mark_move(open_log: OpenLog, directory: Path) -> None:
    log = open_log(segment_bytes=2048)
    child = start("follower", directory, 200)
    assert child.stdout
    assert child.stdout.readline() == '"ready"\n'
    for i in range(200):
        put(log, f"{i}")
    [[moves, seen]] = finish(child)
    assert seen == [str(i) for i in range(200)]
    assert moves > 1


def test_a_killed_writer_loses_nothing_it_acknowledged(open_log: OpenLog, directory: Path) -> None:
    rounds = run("storm", directory, 25, 100_000)
    assert len(rounds) == 25
    for number, found in enumerate(rounds):
        assert found["dense"]
        mine = [key for key in found["present"] if key.startswith(f"{number}-")]
        assert found["printed"][0] == f"{number}-0"
        assert mine[: len(found["printed"])] == found["printed"]
        assert len(mine) <= len(found["printed"]) + 1
    for before, after in itertools.pairwise(rounds):
        assert after["present"][: len(before["present"])] == before["present"]
    present = rounds[-1]["present"]
    assert keys(open_log()) == present
    assert sum(len(layout.places(path)) for path in layout.segment_paths(directory)) == len(present)


def test_a_forked_child_is_refused_and_the_parent_goes_on(directory: Path) -> None:
    child, parent = run("forked", directory)
    assert child == {"refused": 4, "own": 1}
    assert parent == {"parent": 2, "keys": ["before", "own", "parent"]}


@pytest.mark.timeout(20)
def test_a_writer_that_died_before_the_mark_moved(open_log: OpenLog, directory: Path) -> None:
    """Its record counts, and a child it left behind does not hold its lock."""
    log = open_log()
    put(log, "first")
    writer = start("orphan", directory)
    assert writer.stdout
    left_behind = json.loads(writer.stdout.readline())
    try:
        assert writer.wait(timeout=20) == -signal.SIGKILL
        assert log.end() == 1
        assert put(log, "last") == 2
        assert keys(log) == ["first", "k", "last"]
    finally:
        os.kill(left_behind, signal.SIGKILL)
        writer.stdout.close()
        assert writer.stdin
        writer.stdin.close()
