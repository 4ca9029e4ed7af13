"""Documentation that runs: every ``python`` block of a page, in order, in one namespace per page.

A page starts in an empty folder. A comment ``# -> text`` says what its line prints, and is
compared with what it did print. Links between pages must lead somewhere, and every ``make``
command named must exist.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTS = re.compile(r"# -> (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
MAKE = re.compile(r"(?:^|`)make (\w+)", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[int, str]]:
    """Code of each block, with the line of the page it starts at."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, found.start(1)) + 1, found[1]) for found in BLOCK.finditer(text)]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    for line, code in blocks(page):
        # Leading newlines make a traceback name the line of the page.
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
        printed = capsys.readouterr().out.splitlines()
        assert printed == PRINTS.findall(code), f"{name(page)}, block at line {line}"


def test_the_readme_has_code_to_run() -> None:
    assert blocks(PAGES[0])


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if ":" not in target]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_make_commands_exist(page: Path) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(MAKE.findall(page.read_text(encoding="utf-8"))) <= set(targets)
