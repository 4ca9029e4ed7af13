"""One of several processes on one topic: ``python -m tests.kafka.members URL VIEWS NAME SECONDS``.

It writes all the time, each of its memories in order, and says what was acknowledged, one JSON line
each; ``SECONDS`` is how long its disk takes for each commit of its view. A word on its input stops
the writing, asks for the digest of its view at a position, or ends it.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from langgraph.store.base import PutOp

from eventstore import EventStore, VersionConflict
from projector.digests import digest
from projector.view import MaterializedView
from tests.scenarios.kit import ROOT, view_number

USERS = 12
COUNTER = (("shared",), "counter")


class Member:
    """A child, and what it said. Killed at the end, if it has not left."""

    def __init__(self, url: str, views: Path, name: str, seconds: float = 0.0) -> None:
        command = [sys.executable, "-m", "tests.kafka.members", url, str(views), name, str(seconds)]
        self.name = name
        self.acknowledged: dict[str, int] = {}
        """The last number of each of its memories that is sure to be in the log."""
        self.counted = 0
        self._child = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answers: queue.Queue[Any] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.view = self.answer()

    def ask(self, *words: str) -> Any:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(words) + "\n")
        self._child.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        answer = self._answers.get(timeout=60)
        assert answer is not None, f"{self.name} died with {self._child.wait()}"
        return answer[0]

    def leave(self) -> int:
        """Close and go; how often it waited for a file lock."""
        waits: int = self.ask("leave")
        assert self._child.wait(30) == 0
        self._tidy()
        return waits

    def kill(self) -> None:
        """As the system does. Nothing where it has left."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGKILL)
            self._child.wait()
            self._tidy()

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            said = json.loads(line)
            if "answer" in said:
                self._answers.put([said["answer"]])
            elif "counted" in said:
                self.counted += 1
            else:
                self.acknowledged.update(said)
        self._answers.put(None)

    def _tidy(self) -> None:
        self._listener.join(10)
        for stream in (self._child.stdin, self._child.stdout):
            if stream is not None:
                stream.close()


def main(url: str, views: str, name: str, seconds: str) -> None:
    waits = _count_waits()
    _slow_down(float(seconds))
    store = EventStore.open(url, views=views, actor=name)
    _say({"answer": view_number(store)})
    stop = threading.Event()
    writing = threading.Thread(target=_write, args=(store, name, stop))
    writing.start()
    for line in sys.stdin:
        word, *more = json.loads(line)
        if word == "stop":
            stop.set()
            writing.join()
            _say({"answer": str(store.position)})
        elif word == "digest":
            store.wait_for(more[0], timeout=30)
            _say({"answer": digest(store)})
        else:
            stop.set()
            writing.join()
            store.close()
            _say({"answer": len(waits)})
            return


def _count_waits() -> list[int]:
    """Calls for a file lock that would wait for whoever has it."""
    waits: list[int] = []
    take = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if operation != fcntl.LOCK_UN and not operation & fcntl.LOCK_NB:
            waits.append(operation)
        take(descriptor, operation)

    fcntl.flock = flock
    return waits


def _slow_down(seconds: float) -> None:
    commit = MaterializedView.commit

    def slow(*arguments: Any, **more: Any) -> None:
        time.sleep(seconds)
        commit(*arguments, **more)

    if seconds:
        MaterializedView.commit = slow  # type: ignore[method-assign]  # a slow disk, in this process


def _write(store: EventStore, name: str, stop: threading.Event) -> None:
    numbers = [0] * USERS
    for turn in itertools.count():
        if stop.is_set():
            return
        users = [turn % USERS] if turn % 10 else [turn // 10 % USERS, (turn // 10 + 5) % USERS]
        for user in users:
            numbers[user] += 1
        ops = [PutOp((f"user{user}",), name, {"n": numbers[user]}) for user in users]
        store.batch(ops)
        for user in users:
            found = store.get((f"user{user}",), name)
            assert found is not None and found.value == {"n": numbers[user]}, "a write is seen by its writer"
        _say({f"user{user}": numbers[user] for user in users})
        if turn % 7 == 0 and _counted(store):
            _say({"counted": turn})
        time.sleep(0.002)


def _counted(store: EventStore) -> bool:
    found = next((each for each in store.history(*COUNTER, limit=20) if not each.rejected), None)
    version, number = (0, 0) if found is None or found.value is None else (found.version, found.value["n"])
    try:
        store.put(*COUNTER, {"n": number + 1}, expected_version=version)
    except VersionConflict:
        return False
    return True


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
