"""The saved state is complete, or it is noticed not to be; a crash leaves the old or the new one."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eventstore.errors import ViewError
from projector.vectors import VectorIndex
from tests.vectors.oracle import Fed, clustered, fed, storm_change

DIMS = 6


def grow(made: Fed, rng: np.random.Generator, steps: int) -> None:
    for _ in range(steps):
        key = b"%d/%02d" % (rng.integers(3), rng.integers(60))
        if rng.random() < 0.2:
            made.delete(key)
        else:
            made.put(key, rng.standard_normal((rng.integers(1, 3), DIMS)))


def check(made: Fed, rng: np.random.Generator) -> None:
    for prefix in (b"", b"1/"):
        query = rng.standard_normal(DIMS)
        for k in (12, 1_000):
            assert made.ranked(query, prefix, k, exact=True) == made.expected(query, prefix, k)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Fed:
    """A closed index with segments, graphs and dead rows; a copy of a former state lies beside it."""
    folder = tmp_path_factory.mktemp("grown")
    rng = np.random.default_rng(21)
    with fed(folder / "index", DIMS) as made:
        grow(made, rng, 200)
        made.index.checkpoint()
        made.index.settle(20)
        shutil.copytree(made.directory, folder / "older")
        grow(made, rng, 150)
        made.index.checkpoint()
        made.index.settle(20)
        made.delete(next(iter(made.live)))
        made.index.checkpoint()
        made.index.settle(20)
        kinds = {path.name.split("-")[0] for path in made.directory.iterdir()}
        assert kinds == {"segment", "graph", "nodes", "dead", "manifest.json"}
    assert isinstance(made, Fed)
    return made


@pytest.fixture
def saved(grown: Fed, tmp_path: Path) -> Iterator[Fed]:
    """The grown index, in a folder of its own, opened."""
    shutil.copytree(grown.directory.parent, tmp_path, dirs_exist_ok=True)
    with fed(tmp_path / "index", DIMS) as made:
        made.log, made.live = list(grown.log), dict(grown.live)
        yield made


def test_reopening_continues_where_it_was_saved(saved: Fed, caplog: pytest.LogCaptureFixture) -> None:
    before = saved.index.stats()
    assert saved.reopen() == len(saved.log) - 1
    assert saved.index.stats() == before
    check(saved, np.random.default_rng(0))
    assert not caplog.records


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "halved": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "deleted": lambda path: path.unlink(),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "first byte": lambda path: _flip(path, 0),
    "middle byte": lambda path: _flip(path, path.stat().st_size // 2),
    "last byte": lambda path: _flip(path, -1),
}


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x41
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["segment", "graph", "nodes", "dead", "manifest"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_once_and_healed_by_feeding(
    saved: Fed, kind: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved.index.close()
    DAMAGES[damage](sorted(saved.directory.glob(f"{kind}*"))[-1])
    assert saved.reopen() == -1
    assert [record.levelno for record in caplog.records if record.name == "projector.vectors"] == [
        logging.WARNING
    ]
    check(saved, np.random.default_rng(0))
    saved.index.checkpoint()
    assert saved.reopen() == len(saved.log) - 1
    check(saved, np.random.default_rng(1))


def test_files_of_another_generation_are_noticed(saved: Fed, tmp_path: Path) -> None:
    """Each file replaced by an older one of its kind, and the manifest alone set back."""
    saved.index.close()
    newest = tmp_path / "newest"
    shutil.copytree(saved.directory, newest)
    names = sorted(path.name for path in newest.iterdir())
    rng = np.random.default_rng(2)
    for name in names:
        shutil.rmtree(saved.directory)
        shutil.copytree(newest, saved.directory)
        kind = name.split("-")[0]
        others = [path for path in sorted((tmp_path / "older").glob(f"{kind}*")) if path.name != name]
        older = tmp_path / "older" / name if (tmp_path / "older" / name).exists() else (others or [None])[0]
        if older is None or older.read_bytes() == (newest / name).read_bytes():
            continue
        shutil.copy(older, saved.directory / name)
        assert saved.reopen() == -1, name
        check(saved, rng)
        saved.index.close()


def test_two_segments_swapped_are_noticed(saved: Fed) -> None:
    saved.index.close()
    first, second = sorted(saved.directory.glob("segment*"))[:2]
    spare = first.with_name("spare")
    first.rename(spare)
    second.rename(first)
    spare.rename(second)
    assert saved.reopen() == -1
    check(saved, np.random.default_rng(3))


def test_a_whole_older_state_is_used_as_what_it_is(saved: Fed, tmp_path: Path) -> None:
    saved.index.close()
    shutil.rmtree(saved.directory)
    shutil.copytree(tmp_path / "older", saved.directory)
    assert saved.reopen() == 199
    check(saved, np.random.default_rng(4))


@pytest.mark.parametrize(
    "other", [{"identity": "log-2"}, {"dims": DIMS + 1}, {"metric": "l2"}, {"position": 100}]
)
def test_state_of_another_owner_is_not_used(
    saved: Fed, other: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    saved.index.close()
    settings = {"identity": "log-1", "dims": DIMS, "metric": "cosine", **other}
    index = VectorIndex.open(saved.directory, **settings)
    assert (index.covered, index.stats().rows) == (-1, 0)
    assert len(caplog.records) == 1
    index.close()


def test_files_that_no_manifest_names_are_removed(saved: Fed) -> None:
    saved.index.close()
    for name in ("segment-99999999", "graph-00000001.part", "manifest.json.part"):
        (saved.directory / name).write_bytes(b"left behind")
    before = saved.index.stats()
    assert saved.reopen() == before.covered
    named = json.loads((saved.directory / "manifest.json").read_text())["state"]
    kept = {"manifest.json", named["dead"][0]}
    for entry in named["segments"]:
        kept |= {entry["file"][0], *(name for name, _, _ in entry["graph"] or ())}
    assert {path.name for path in saved.directory.iterdir()} == kept


def test_a_new_directory_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with fed(tmp_path / "deep" / "index", 2) as made:
            assert made.index.covered == -1
    assert not caplog.records


def test_every_live_item_is_found_through_rounds_of_restarts(tmp_path: Path) -> None:
    rng = np.random.default_rng(22)
    with fed(tmp_path, 12) as made:
        vectors = clustered(rng, 150, 12, 30)
        for number, vector in enumerate(vectors):
            made.put(b"k%03d" % number, vector)
        for round_number in range(60):
            for number in rng.integers(0, 150, 10).tolist():
                if rng.random() < 0.5:
                    made.delete(b"k%03d" % number)
                else:
                    made.put(b"k%03d" % number, rng.standard_normal(12))
            if rng.random() < 0.5:
                made.index.checkpoint()
            if round_number % 3 == 0:
                assert made.reopen() >= -1
            for key in rng.choice(sorted(made.live), 8).tolist():
                assert made.ranked(made.live[key][0], b"", 1, exact=True)[0][1] == key
                assert made.ranked(made.live[key][0], b"", 1)[0][1] == key


def test_a_failing_disk_loses_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(23)
    with fed(tmp_path / "index", DIMS) as made:
        grow(made, rng, 50)
        made.index.checkpoint()
        made.index.settle(20)
        (tmp_path / "index").rename(tmp_path / "gone")
        grow(made, rng, 100)
        with pytest.raises(ViewError, match="could not be saved"):
            made.index.checkpoint()
        check(made, rng)
        (tmp_path / "gone").rename(tmp_path / "index")
        assert made.index.checkpoint() == len(made.log) - 1
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        check(made, rng)
        assert made.reopen() == len(made.log) - 1
        check(made, rng)


STORM = """
import sys
from pathlib import Path
import numpy as np
from tests.vectors.oracle import TINY, storm_change
from projector.vectors import VectorIndex
index = VectorIndex.open(Path(sys.argv[1]), identity="log-1", dims=6, metric="cosine", limits=TINY)
offset = index.covered + 1
print("ready", flush=True)
while True:
    with index.lock:
        index.apply([storm_change(offset)])
    if offset % 300 == 0:
        print(index.checkpoint(), flush=True)
    offset += 1
"""


def test_killed_while_saving(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(24)
    printed = covered = -1
    for _ in range(10):
        child = subprocess.Popen(
            [sys.executable, "-c", STORM, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.02, 0.25))
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split("\n")[:-1]
        child.wait()
        child.stdout.close()
        printed = int(rest[-1]) if rest else printed
        with fed(tmp_path, DIMS) as made:
            assert made.index.covered >= max(printed, covered)
            covered = made.index.covered
            for offset in range(made.index.covered + 1):
                _, key, rows = storm_change(offset)
                assert rows is not None
                made.live.pop(key, None)
                if len(rows):
                    made.live[key] = rows
            check(made, rng)
    assert covered > 50
    assert not caplog.records
