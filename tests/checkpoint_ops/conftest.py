"""Commands run in this process, without a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from projector.cli import main as eventstore_main
from projector.cli.projector import main as projector_main


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Done]
MAINS = {"eventstore": eventstore_main, "projector": projector_main}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs ``eventstore …`` or ``projector …`` as its entry point does."""

    def run_(name: str, *arguments: object) -> Done:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            MAINS[name]()
            sys.exit(0)
        out, err = capsys.readouterr()
        return Done(int(left.value.code or 0), out, err)

    return run_
