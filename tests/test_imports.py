"""The arrows: what may import what, and what a process that only appends never loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

HIDDEN = '''
import sys

class Hide:
    """Stands in for a machine on which RocksDB and FAISS are not installed."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("rocksdict", "faiss"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
'''

APPEND = """
from pathlib import Path

import eventstore
from eventstore.log import EmbeddedLog
from eventstore.log.base import Record

log = EmbeddedLog.open(Path(sys.argv[1]))
((stored,),) = log.append([log.prepare([Record(b"key", b"{}", (("type", b"put"),))])])
assert log.end() == stored.offset + 1
assert [record.key for batch in log.read(0) for record in batch] == [b"key"]
log.close()
loaded = [name for name in sys.modules if name.partition(".")[0] in ("rocksdict", "faiss", "projector")]
assert not loaded, loaded
print("appended")
"""


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )


def test_imports_point_one_way() -> None:
    """The contracts are in pyproject.toml. In a process of its own: the linter turns loggers off."""
    done = python("from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))")
    assert done.returncode == 0, done.stdout


def test_eventstore_appends_without_rocksdb_and_faiss(tmp_path: Path) -> None:
    done = python(HIDDEN + APPEND, str(tmp_path / "log"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "appended\n"


def test_the_hiding_hides() -> None:
    done = python(HIDDEN + "import rocksdict")
    assert "ModuleNotFoundError" in done.stderr
