"""The examples that run by themselves, as their pages say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


def run(folder: Path, *command: str) -> str:
    """What a command prints, however it ends."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_the_checkpointers_example_prints_what_its_page_says(tmp_path: Path) -> None:
    """Killed in the midst of it, too, and the commands for looking at what is left."""
    page = (EXAMPLES / "checkpointer" / "README.md").read_text(encoding="utf-8")
    agent = EXAMPLES / "checkpointer" / "agent.py"
    told = re.findall(r"^\$ python agent\.py (\w+)\n((?:(?!\$|```).*\n)*)", page, re.MULTILINE)
    assert [name for name, _ in told] == ["ask", "resume", "back"]
    for name, output in told:
        assert run(tmp_path, str(agent), name) == output
    looks = re.findall(r"^eventstore (.+)$", page, re.MULTILINE)
    assert len(looks) == 3
    for look in looks:
        shown = run(tmp_path, "-c", "from projector.cli import main; main()", *look.split())
        assert shown.count("\n") > 5, shown
