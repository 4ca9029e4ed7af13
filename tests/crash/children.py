"""What the crash tests run in processes of their own: ``python -m tests.crash.children NAME ARGUMENTS``.

They import everything once and then fork, so that a killed process costs milliseconds. The
forking process itself never opens a store. Results are printed as JSON lines.
"""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langgraph.store.base import PutOp

from eventstore import EventStore, commit
from eventstore.log import EmbeddedLog
from projector.runner import Projector
from projector.view import MaterializedView
from tests.scenarios.kit import ALL, TinyEmbedder, index_of, listed, log_keys, ranked, rows

ROOT = Path(__file__).parents[2]
WRITERS = 3
QUERIES = ("tea", "rain")

Effects = dict[str, int | None]


def run(name: str, *arguments: object, timeout: float = 110) -> list[Any]:
    """Run one of these in a new process; its JSON lines."""
    child = subprocess.run(
        [sys.executable, "-m", "tests.crash.children", name, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert child.returncode == 0, child.stdout[-2000:] + child.stderr[-4000:]
    return [json.loads(line) for line in child.stdout.splitlines()]


def say(fact: Any) -> None:
    print(json.dumps(fact), flush=True)


def open_store(directory: Path) -> EventStore:
    return EventStore.open(directory, index=index_of(TinyEmbedder()), config={"segment_bytes": 64 * 1024})


# ------------------------------------------------------------------------------ the storm


class Ledger:
    """What one writer of the killed process had acknowledged, and what it was doing."""

    def __init__(self) -> None:
        self.state: dict[str, int] = {}
        self.pending: Effects = {}

    def may_be(self, seen: dict[str, int]) -> bool:
        return seen in (self.state, applied(self.state, self.pending))


def applied(state: dict[str, int], effects: Effects) -> dict[str, int]:
    after = dict(state)
    for key, number in effects.items():
        if number is None:
            after.pop(key, None)
        else:
            after[key] = number
    return after


def seen_by(store: EventStore) -> list[dict[str, int]]:
    """Keys and numbers of every writer's memories."""
    return [
        {item.key: item.value["n"] for item in store.search((str(number),), limit=ALL)}
        for number in range(WRITERS)
    ]


def storm(directory: str, kills: str, seed: str) -> None:
    """Kill a writing process, open again, compare, write on; at the end compare with a rebuild."""
    chance = random.Random(int(seed))
    ledgers = [Ledger() for _ in range(WRITERS)]
    acknowledged = 0
    for number in range(int(kills) + 1):
        if chance.random() < 0.1:
            shutil.rmtree(Path(directory, "views"), ignore_errors=True)
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            os.close(read_end)
            _guarded(lambda tell: _write_on(Path(directory), ledgers, tell), write_end)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            first = json.loads(pipe.readline() or '{"failed": "the child said nothing"}')
            if "failed" in first:
                say(first)
                raise SystemExit(1)
            for ledger, seen in zip(ledgers, first["seen"], strict=True):
                ledger.state, ledger.pending = seen, {}
            time.sleep(0.02 + chance.random() * 0.08 if number < int(kills) else 0)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for line in pipe.read().splitlines():
                writer, effects = json.loads(line)
                ledger = ledgers[writer]
                if effects is None:
                    ledger.state, ledger.pending = applied(ledger.state, ledger.pending), {}
                    acknowledged += 1
                else:
                    ledger.pending = effects
    say({"acknowledged": acknowledged})
    _in_fork(lambda: say(_compared(Path(directory), ledgers)))


def _guarded(act: Callable[[Callable[[Any], None]], None], write_end: int) -> None:
    def tell(fact: Any) -> None:
        os.write(write_end, (json.dumps(fact) + "\n").encode())

    try:
        signal.alarm(60)
        act(tell)
    except BaseException:
        tell({"failed": traceback.format_exc()[-3000:]})
    os._exit(0)


def _in_fork(act: Callable[[], None]) -> None:
    child = os.fork()
    if not child:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise SystemExit(1)


def _write_on(directory: Path, ledgers: list[Ledger], tell: Callable[[Any], None]) -> None:
    store = open_store(directory)
    seen = seen_by(store)
    for number, (ledger, found) in enumerate(zip(ledgers, seen, strict=True)):
        assert ledger.may_be(found), (number, ledger.state, ledger.pending, found)
        hits = store.search((str(number),), query="tea", limit=ALL)
        assert {hit.key for hit in hits} == set(found), "the index differs from the memories"
        assert store.get((str(number),), "no such key") is None
    tell({"seen": seen})

    def write(number: int) -> None:
        chance = random.Random()
        state = dict(seen[number])
        mine = (str(number),)
        while True:
            effects = _effects(chance, state)
            tell((number, effects))
            if list(effects) == ["counter"]:
                version = store.history(mine, "counter", limit=1)
                expected = version[0].version if version and version[0].kind == "put" else 0
                store.put(mine, "counter", _value(effects["counter"]), expected_version=expected)
            else:
                store.batch([PutOp(mine, key, _value(effect)) for key, effect in effects.items()])
            tell((number, None))
            state = applied(state, effects)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raise AssertionError("the writers ended")


def _effects(chance: random.Random, state: dict[str, int]) -> Effects:
    number = max(state.values(), default=0) + 1
    kind = chance.random()
    if kind < 0.25:
        return {f"batch-{at}": number for at in range(3)}
    if kind < 0.45 and state:
        return {chance.choice(list(state)): None}
    if kind < 0.6:
        return {"counter": number}
    return {f"key-{chance.randrange(40)}": number}


def _value(number: int | None) -> dict[str, Any] | None:
    if number is None:
        return None
    return {"n": number, "t": ("tea", "rain", "coffee")[number % 3], "pad": "x" * (number * 37 % 900)}


def _compared(directory: Path, ledgers: list[Ledger]) -> dict[str, Any]:
    """The live view against one made from nothing but the log."""
    store = open_store(directory)
    live = rows(store), listed(store), ranked(store, QUERIES)
    fits = all(ledger.may_be(seen) for ledger, seen in zip(ledgers, seen_by(store), strict=True))
    numbers = [version.version for version in store.history(("0",), "counter")]
    store.close()
    shutil.rmtree(directory / "views")
    with open_store(directory) as rebuilt:
        equal = (rows(rebuilt), listed(rebuilt), ranked(rebuilt, QUERIES)) == live
    return {
        "fits": fits,
        "equal": equal,
        "versions dense": numbers == list(range(len(numbers), 0, -1)),
        "records": len(log_keys(directory)),
    }


# ------------------------------------------------------------------------------ fault points


def _die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _before(owner: Any, name: str) -> None:
    setattr(owner, name, _die)


def _after(owner: Any, name: str) -> None:
    act = getattr(owner, name)

    def acted(*arguments: Any, **named: Any) -> None:
        act(*arguments, **named)
        _die()

    setattr(owner, name, acted)


FAULTS: dict[str, tuple[Callable[[], None], bool]] = {
    "before the append": (lambda: _before(EmbeddedLog, "append"), False),
    "before the bytes are written": (lambda: _before(EmbeddedLog, "_store"), False),
    "after the bytes are written": (lambda: _after(EmbeddedLog, "_store"), True),
    "before the view is told": (lambda: _before(Projector, "apply"), True),
    "before the view's batch": (lambda: _before(MaterializedView, "commit"), True),
    "after the view's batch": (lambda: _after(MaterializedView, "commit"), True),
    "after the view was told": (lambda: _after(Projector, "apply"), True),
    "before the caller knows": (lambda: _before(commit, "_settle"), True),
}
"""Where to die, and whether the write is in the log then."""


def die_at(directory: str, fault: str) -> None:
    """A process that dies at a fault point of its third write; then look at what it left."""
    at = Path(directory)
    _in_fork(lambda: _first_writes(at))
    child = os.fork()
    if not child:
        signal.alarm(30)
        store = open_store(at)
        FAULTS[fault][0]()
        store.batch(
            [
                PutOp(("a",), "first", {"n": 2, "t": "rain"}),
                PutOp(("a",), "second", None),
                PutOp(("b",), "third", {"n": 2, "t": "rain"}),
            ]
        )
        os._exit(7)
    say({"died": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])})
    _in_fork(lambda: say(_left(at)))


def _first_writes(directory: Path) -> None:
    with open_store(directory) as store:
        store.put(("a",), "first", {"n": 1, "t": "tea"})
        store.put(("a",), "second", {"n": 1, "t": "tea"})


def _left(directory: Path) -> dict[str, Any]:
    with open_store(directory) as store:
        live = rows(store), listed(store), ranked(store, QUERIES)
        found = {item.key: item.value["n"] for item in store.search((), limit=ALL)}
        applied_once = [version.version for version in store.history(("a",), "first")]
    end = len(log_keys(directory))
    shutil.rmtree(directory / "views")
    with open_store(directory) as rebuilt:
        equal = (rows(rebuilt), listed(rebuilt), ranked(rebuilt, QUERIES)) == live
        rebuilt.put(("c",), "next", {"n": 3})
        goes_on = len(log_keys(directory)) == end + 1
    return {"found": found, "versions": applied_once, "end": end, "equal": equal, "goes on": goes_on}


# ------------------------------------------------------------------------------ torn tail


def tear(directory: str, cut: str) -> None:
    """A log whose last frame is torn; C and D are put, the process is killed, the store opened again."""
    at = Path(directory)
    _in_fork(lambda: _first_writes(at))
    end = _end_of_log(at)
    _in_fork(lambda: _put(at, "torn"))
    reports = at / "reports"
    logging.basicConfig(filename=reports, level=logging.WARNING)
    _spoil(at, *_torn_part(at, end, cut))
    child = os.fork()
    if not child:
        signal.alarm(30)
        store = open_store(at)
        store.put(("a",), "C", {"n": 3, "t": "tea"})
        store.put(("a",), "D", {"n": 4, "t": "tea"})
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    _in_fork(lambda: say({**_left(at), "reports": reports.read_text().count("cut a torn tail")}))


def _put(directory: Path, key: str) -> None:
    with open_store(directory) as store:
        store.put(("a",), key, {"n": 9, "t": "rain", "pad": "x" * 300})
    # The view would be ahead of a log that lost its end, as after a restore of an older copy.
    shutil.rmtree(directory / "views")


def _segment(directory: Path) -> Path:
    return sorted((directory / "log").glob("*.seg"))[-1]


def _end_of_log(directory: Path) -> int:
    return len(_segment(directory).read_bytes().rstrip(b"\0"))


def _torn_part(directory: Path, start: int, cut: str) -> tuple[int, int]:
    """First byte and length of what did not reach the disk."""
    begin = _segment(directory).read_bytes().index(b"EvFr", start)
    end = _end_of_log(directory)
    if cut == "header":
        return begin + 20, end - begin - 20
    if cut == "payload":
        return end - 100, 100
    return begin + 4, 4


def _spoil(directory: Path, start: int, length: int) -> None:
    path = _segment(directory)
    data = bytearray(path.read_bytes())
    data[start : start + length] = bytes(length)
    path.write_bytes(bytes(data))
    # A machine that lost power has lost the shared mark as well.
    (directory / "log" / "high-water").unlink()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
