"""S06 and S38: no space for the log, and no space for the view."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventstore import EventStore
from eventstore.errors import EventStoreError, LogFull, ViewError
from tests.scenarios.kit import keys_of, listed, log_keys, python, rows

VALUE = {"pad": "x" * 4000}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB, where this machine lets us make one."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this machine does not let us mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def _put_until_refused(store: EventStore, prefix: str) -> tuple[set[str], Exception]:
    written: set[str] = set()
    while True:
        try:
            store.put(("a",), f"{prefix}{len(written)}", VALUE)
        except EventStoreError as error:
            return written, error
        written.add(f"{prefix}{len(written)}")


def test_a_full_log_refuses_writes_and_loses_none(small_disk: Path, tmp_path: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(6 << 20))
    store = EventStore.open(small_disk / "store", views=tmp_path / "views")
    written, error = _put_until_refused(store, "k")
    assert isinstance(error, LogFull)
    assert error.retriable
    assert written
    assert keys_of(store) == written
    with pytest.raises(LogFull):
        store.put(("a",), "again", VALUE)
    assert keys_of(store) == written
    ballast.unlink()
    store.put(("a",), "after", VALUE)
    before = rows(store), listed(store)
    assert keys_of(store) == written | {"after"}
    store.close()
    with EventStore.open(small_disk / "store", views=tmp_path / "fresh") as again:
        assert (rows(again), listed(again)) == before
    assert len(log_keys(small_disk / "store")) == len(written) + 1


FULL_LOG = """
import json, resource, signal, sys
from eventstore import EventStore
from eventstore.errors import LogFull
from tests.scenarios.kit import keys_of
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
value = {"pad": "x" * 4000}
with EventStore.open(sys.argv[1]) as store:
    for number in range(400):
        store.put(("a",), str(number), value)
# The view's own files begin anew at an open, so that the limit meets the log first.
store = EventStore.open(sys.argv[1])
written = keys_of(store)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (2_200_000, hard))
try:
    while True:
        key = str(len(written))
        store.put(("a",), key, value)
        written.add(key)
except LogFull as error:
    assert error.retriable
assert 400 < len(written) < 1000
assert keys_of(store) == written
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
store.put(("a",), "after", value)
print(json.dumps([*written, "after"]))
store.close()
"""


def test_a_file_size_limit_on_the_log_refuses_writes_and_loses_none(tmp_path: Path) -> None:
    ended = python(FULL_LOG, tmp_path / "store")
    assert ended.returncode == 0, ended.stderr
    written = set(json.loads(ended.stdout))
    assert len(log_keys(tmp_path / "store")) == len(written)
    with EventStore.open(tmp_path / "store", views=tmp_path / "fresh") as again:
        assert keys_of(again) == written


def test_a_full_disk_under_the_view_costs_no_acknowledged_write(small_disk: Path, tmp_path: Path) -> None:
    """Writes that the view cannot take say that they are in the log; all are there in the end."""
    store = EventStore.open(tmp_path / "store", views=small_disk / "views")
    store.put(("a",), "first", VALUE)
    ballast = small_disk / "ballast"
    _fill(ballast)
    in_log = {"first"}
    refused = 0
    for number in range(3000):
        try:
            store.put(("a",), str(number), VALUE)
        except ViewError as error:
            refused += 1
            if "is in the log" in str(error):
                in_log.add(str(number))
            if refused == 3:
                break
        else:
            in_log.add(str(number))
    assert refused, "the disk never was too small"
    ballast.unlink()
    deadline = time.monotonic() + 10
    while True:
        try:
            store.put(("a",), "after", VALUE)
            break
        except ViewError:
            assert time.monotonic() < deadline, "the view did not recover without a restart"
    in_log.add("after")
    assert keys_of(store) == in_log
    before = rows(store), listed(store)
    store.close()
    with EventStore.open(tmp_path / "store", views=tmp_path / "fresh") as again:
        assert (rows(again), listed(again)) == before


def test_closing_with_a_full_disk_under_the_view_gives_everything_up(
    small_disk: Path, tmp_path: Path
) -> None:
    store = EventStore.open(tmp_path / "store", views=small_disk / "views")
    for number in range(100):
        store.put(("a",), str(number), VALUE)
    ballast = small_disk / "ballast"
    _fill(ballast)
    store.close()
    ballast.unlink()
    with EventStore.open(tmp_path / "store", views=small_disk / "views") as again:
        assert len(keys_of(again)) == 100


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


LIMITED = """
import logging, resource, signal, sys, time
from eventstore import EventStore
from eventstore.errors import ViewError
met = []
note = logging.Handler(logging.WARNING)
note.emit = lambda record: met.append(record.getMessage())
logging.getLogger("projector").addHandler(note)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
# The log's file has its size already, so that the limit meets the view alone.
store = EventStore.open(sys.argv[1], config={"segment_bytes": 64 << 10})
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
in_log, refused = [], 0
for number in range(400):
    try:
        store.put(("a",), str(number), {"pad": "x" * 4000})
        in_log.append(str(number))
    except ViewError as error:
        refused += 1
        if "is in the log" in str(error):
            in_log.append(str(number))
        if refused == 3:
            break
# A view that is opened anew begins another file, so the write may well go through.
assert refused or any("too large" in each for each in met), "the limit was never met"
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
deadline = time.monotonic() + 10
while True:
    try:
        store.put(("a",), "after", {})
        break
    except ViewError:
        assert time.monotonic() < deadline
found = {item.key for item in store.search(("a",), limit=10_000)}
assert found == {*in_log, "after"}, (len(found), len(in_log))
store.close()
print(len(found))
"""


def test_a_file_size_limit_on_the_view_costs_no_acknowledged_write(tmp_path: Path) -> None:
    ended = python(LIMITED, tmp_path / "store")
    assert ended.returncode == 0, ended.stderr
    shutil.rmtree(tmp_path / "store" / "views")
    with EventStore.open(tmp_path / "store") as again:
        assert len(keys_of(again)) == int(ended.stdout)
