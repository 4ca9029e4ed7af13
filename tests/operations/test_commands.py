"""S55: the ``projector`` command and the moving commands, as installed: what they print and how they end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import typer.main

from eventstore import EventStore
from projector.cli import main as eventstore_main
from projector.cli.projector import app
from projector.cli.projector import main as projector_main
from tests.conftest import OpenStore
from tests.operations.samples import sample
from tests.scenarios.kit import ROOT, flip, runtime_of

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
COMMANDS: dict[str, Any] = cast(Any, typer.main.get_command(app)).commands


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, without a terminal, as its entry point does."""

    def run_(main: Callable[[], None], *arguments: object) -> Done:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
            sys.exit(0)
        out, err = capsys.readouterr()
        return Done(int(left.value.code or 0), out, err)

    return run_


def installed(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    script = Path(sys.executable).with_name("python")
    code = f"from projector.cli{'.projector' if name == 'projector' else ''} import main; main()"
    return subprocess.run(
        [script, "-c", code, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_beside_a_store_that_is_open(open_store: OpenStore, tmp_path: Path) -> None:
    """All of it in processes of their own, while this one has the store open and writes."""
    store = sample(open_store, 150)
    folder = tmp_path / "store"
    end = sum(runtime_of(store).applied)
    report = json.loads(installed("projector", "status", folder, "--json").stdout)
    (view,) = report["views"]
    assert (report["end"], view["position"], view["lag"]) == (str(end), str(end), 0)
    assert view["memories"] == store.status().memories
    assert view["owner"] is not None
    assert (view["rebuild"], view["problem"]) == (None, None)
    assert installed("projector", "verify", folder).returncode == 0
    done = installed("projector", "rebuild", folder, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["outcome"] == "exchanged"
    assert runtime_of(store)._view.directory.name == "rebuilt-1"
    store.put(("later",), "k", {"t": "text"})
    assert installed("projector", "snapshot", folder, tmp_path / "s").returncode == 0
    db = runtime_of(store)._view.db
    db.items.put(b"\x02a\x00\x01ghost", b"\x01" + bytes(70))
    drifted = installed("projector", "verify", folder)
    assert drifted.returncode == 1
    assert "first difference, in items of a/ghost" in drifted.stderr
    assert sorted(path.name for path in (folder / "views").iterdir()) == ["0"]


def test_status_of_what_is_free_behind_and_broken(run: Run, open_store: OpenStore, tmp_path: Path) -> None:
    sample(open_store, 40).close()
    folder = tmp_path / "store"
    with EventStore.open(folder, views=tmp_path / "elsewhere") as other:
        other.put(("later",), "k", {"t": "text"})
    report = run(projector_main, "status", folder, "--json").json
    assert (report["views"][0]["owner"], report["views"][0]["lag"]) == (None, 1)
    assert "lag" in run(projector_main, "status", folder).out
    (folder / "views" / "0" / "rocksdb" / "CURRENT").unlink()
    broken = run(projector_main, "status", folder, "--json")
    assert broken.code == 0
    assert broken.json["views"][0]["problem"]
    assert run(projector_main, "verify", folder).code == 1


def test_exit_codes_tell_clean_drift_and_error_apart(run: Run, open_store: OpenStore, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = sample(open_store, 60)
    assert run(projector_main, "verify", folder, "--json").json[0]["exit_code"] == 0
    store.close()
    (segment,) = (folder / "log").glob("*.seg")
    flip(segment, 300)
    damaged = run(projector_main, "verify", folder)
    assert damaged.code == 2
    assert damaged.err.startswith("LogDamaged: ")
    assert segment.name in damaged.err
    shown = run(projector_main, "status", folder)
    assert (shown.code, str(folder / "views" / "0") in shown.out) == (2, True)
    assert shown.err.startswith("LogDamaged: ") and segment.name in shown.err
    for command in ("status", "verify", "rebuild"):
        missing = run(projector_main, command, tmp_path / "nothing")
        assert (missing.code, missing.out) == (2, "")
        assert "no store" in missing.err
    assert run(projector_main, "nonsense").code == 2


def test_start_from_a_snapshot(run: Run, open_store: OpenStore, tmp_path: Path) -> None:
    sample(open_store, 40).close()
    folder = tmp_path / "store"
    assert run(projector_main, "snapshot", folder, tmp_path / "s", "--json").json["files"]
    assert run(projector_main, "start-from", folder, tmp_path / "s").code == 0
    assert run(projector_main, "verify", folder).code == 0
    (tmp_path / "s" / "snapshot.json").write_text("{}")
    refused = run(projector_main, "start-from", folder, tmp_path / "s")
    assert refused.code == 1
    assert "made from the log" in refused.err
    assert run(projector_main, "verify", folder).code == 0


def test_export_import_migrate(run: Run, open_store: OpenStore, tmp_path: Path) -> None:
    store = sample(open_store, 60)
    memories = store.status().memories
    lines, other, third = tmp_path / "out.jsonl", tmp_path / "other", tmp_path / "third"
    assert run(eventstore_main, "export", tmp_path / "store", lines, "--json").json["memories"] == memories
    assert run(eventstore_main, "export", tmp_path / "store", lines, "--history", "--no-vectors").code == 0
    first = run(eventstore_main, "import", other, lines, "--by", "ops", "--json").json
    assert first["written"] > memories
    assert run(eventstore_main, "import", other, lines, "--json").json["written"] == 0
    assert "written" in run(eventstore_main, "import", other, lines).out
    source = "tests.operations.test_transfer:in_memory"
    assert run(eventstore_main, "migrate", source, third, "--json").json["written"] > 0
    assert run(eventstore_main, "migrate", source, third, "--json").json["written"] == 0
    assert run(eventstore_main, "migrate", "nothing", third).code == 2
    assert "--embed" in run(eventstore_main, "import", other, lines, "--dims", 4).err


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"run"}))
def test_every_command_has_help_and_its_place_in_the_page(run: Run, command: str) -> None:
    assert run(projector_main, command, "--help").code == 0
    assert COMMANDS[command].help
    section = re.search(rf"^## projector {command}$\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section, f"docs/operations.md has no section on {command}"
    for parameter in COMMANDS[command].params:
        for option in parameter.opts:
            if option.startswith("--") and option not in ("--help", "--json", "--views"):
                assert option in section[1]
