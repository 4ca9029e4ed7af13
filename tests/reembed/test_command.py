"""``projector reembed`` as installed: what it takes, prints and leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eventstore import EventStore
from eventstore.errors import IndexMismatch
from tests.conftest import OpenStore
from tests.reembed.kit import Model, fill, found, oracle
from tests.scenarios.kit import ROOT

COMMAND = "from projector.cli.projector import main; main()"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", COMMAND, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_beside_a_store_that_is_open(open_store: OpenStore, tmp_path: Path) -> None:
    old, new = Model("old"), Model("new", 9)
    store = open_store(index=old.index())
    fill(store, 12)
    settings = ("--embed", "tests.reembed.kit:new_model", "--dims", 9, "--field", "t")
    done = run("reembed", tmp_path / "store", *settings, "--model", "new", "--batch", 5, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["outcome"], said["model"], said["fields"]) == ("switched", "new/9", ["t"])
    assert (said["replaced"], said["memories"]) == ("old/6", 12)
    store.wait_for(said["position"])
    with pytest.raises(IndexMismatch, match="new/9"):
        store.search((), query="tea")
    changed = open_store(index=new.index())
    assert found(changed) == oracle(changed, new.index())
    assert new.texts == []
    again = run("reembed", tmp_path / "store", *settings, "--model", "new")
    assert again.returncode == 0, again.stderr
    assert "current" in again.stdout


def test_what_it_refuses(tmp_path: Path) -> None:
    with EventStore.open(tmp_path / "store") as store:
        store.put(("a",), "k", {"t": "tea"})
    here = tmp_path / "store"
    assert run("reembed", here, "--embed", "tests.reembed.kit:new_model").returncode == 2
    nowhere = run("reembed", tmp_path / "none", "--embed", "tests.reembed.kit:new_model", "--dims", 9)
    assert (nowhere.returncode, "InvalidConfig" in nowhere.stderr) == (2, True)
    assert not (tmp_path / "none").exists()
    unknown = run("reembed", here, "--embed", "nobody:no-such-model", "--dims", 9)
    assert (unknown.returncode, "InvalidConfig" in unknown.stderr) == (2, True), unknown.stderr
    wrong = run("reembed", here, "--embed", "tests.reembed.kit:new_model", "--dims", 7)
    assert (wrong.returncode, "InvalidEmbedding" in wrong.stderr) == (2, True), wrong.stderr
    with EventStore.open(here, index=Model("old").index()) as store:
        assert store.get(("a",), "k") is not None, "a change that failed leaves the store as it was"
