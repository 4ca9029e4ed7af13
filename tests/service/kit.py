"""Runs the real ``projector run`` for tests, and processes that attach to the view it keeps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.scenarios.kit import ROOT

MAIN = "from projector.cli.projector import main; main()"
# kafka-python warns as it is imported.
COMMAND = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", MAIN, "run"]
SECONDS = 30.0
Found = TypeVar("Found")


class Place(NamedTuple):
    """A log, and where its views are kept."""

    log: str
    views: Path


class Projector:
    """One ``projector run``."""

    def __init__(self, place: Place, *options: str, port: int = 0) -> None:
        self.lines: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [*COMMAND, place.log, "--views", str(place.views), "--metrics-port", str(port), *options],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self, message: str) -> dict[str, Any]:
        """The fields of the log line with this message; waits for it."""
        for line in self.lines:
            if line["message"] == message:
                return line
        assert self._process.stderr is not None
        for text in self._process.stderr:
            assert text.startswith("{"), text + self._process.stderr.read()
            self.lines.append(json.loads(text))
            if self.lines[-1]["message"] == message:
                return self.lines[-1]
        raise AssertionError(f"it ended without saying {message!r}: {self.lines}")

    @property
    def port(self) -> int:
        return int(self.said("listening")["port"])

    def health(self) -> tuple[int, dict[str, Any]]:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            with error:
                return error.code, json.load(error)

    def metrics(self) -> dict[str, float]:
        """Values by name and labels."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name.removeprefix("eventstore_projector_"): float(value) for name, _, value in lines}

    def until_healthy(self) -> dict[str, Any]:
        self.port  # noqa: B018
        return eventually(lambda: self._healthy())

    def _healthy(self) -> dict[str, Any] | None:
        status, document = self.health()
        return document if status == 200 else None

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code, or minus the signal that ended it."""
        if self._process.poll() is None:
            os.kill(self.pid, number)
        assert self._process.stderr is not None
        self.lines += [json.loads(line) for line in self._process.stderr if line.startswith("{")]
        return self._process.wait(SECONDS)

    def refused(self) -> str:
        """What it ended with, of itself and with exit code 2."""
        assert self._process.stderr is not None
        text = self._process.stderr.read()
        assert self._process.wait(SECONDS) == 2, text
        return text

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(SECONDS)
        if self._process.stderr is not None:
            self._process.stderr.close()


def eventually(look: Callable[[], Found | None], seconds: float = SECONDS) -> Found:
    """What ``look`` finds, as soon as it finds something."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)
    return found
