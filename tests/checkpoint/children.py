"""What the tests of the checkpointer run in processes of their own:
``python -m tests.checkpoint.children NAME ARGUMENTS``. Results are printed as JSON lines.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from eventstore.checkpoint import EventSaver
from eventstore.errors import EventStoreError, ViewBehind
from tests.checkpoint.kit import config, grown, ids, put, rows, text, uncollected, values

WRITERS = 3
LARGE = 900_000
"""Bytes that do not fit one record."""

Tell = Callable[[Any], None]


def noise(id: str) -> bytes:
    """Bytes of which no two blocks are alike."""
    return random.Random(id).randbytes(LARGE)


def say(fact: Any) -> None:
    print(json.dumps(fact), flush=True)


# ------------------------------------------------------------------------------ the storm


def storm(directory: str, kills: str, seed: str, url: str = "") -> None:
    """Kill a process that puts, prunes and copies; hold the next one to what it acknowledged.

    On a log in a directory, or on a topic with the views there.
    """
    chance = random.Random(int(seed))
    place = Path(directory)
    acknowledged = 0
    known: list[list[Any]] = [[] for _ in range(WRITERS)]
    for number in range(int(kills) + 1):
        if chance.random() < 0.1:
            shutil.rmtree(place / "views", ignore_errors=True)
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            os.close(read_end)
            _guarded(partial(_write_on, place, url, known), write_end)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            first = json.loads(pipe.readline() or '{"failed": "the child said nothing"}')
            if first != "open":
                say(first)
                raise SystemExit(1)
            known = [[] for _ in range(WRITERS)]
            # A topic takes large states more slowly.
            longest = 0.6 if url else 0.15
            time.sleep(0.03 + chance.random() * longest if number < int(kills) else 0)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for line in pipe.read().splitlines():
                told = json.loads(line)
                if "failed" in told:
                    say(told)
                    raise SystemExit(1)
                known[told["writer"]].append(told)
                acknowledged += told["done"]
    say({"acknowledged": acknowledged})
    child = os.fork()
    if not child:
        _guarded(lambda tell: tell(_compared(place, url, known)), sys.stdout.fileno())
    os.waitpid(child, 0)


def _open(place: Path, url: str) -> EventSaver:
    return EventSaver.open(url or place, views=place / "views", config={"segment_bytes": 256 * 1024})


def _guarded(act: Callable[[Tell], None], write_end: int) -> None:
    def tell(fact: Any) -> None:
        os.write(write_end, (json.dumps(fact) + "\n").encode())

    try:
        signal.alarm(60)
        act(tell)
    except BaseException:
        tell({"failed": traceback.format_exc()[-3000:]})
    os._exit(0)


def _held_to(saver: EventSaver, known: list[list[Any]]) -> None:
    """Every acknowledged call is there, and of the one under way nothing or all.

    A value says which checkpoint it was put by, so that whatever is mixed up shows.
    """
    for writer, told in enumerate(known):
        thread = f"w{writer}"
        for each in saver.list(config(thread)):
            _whole(each)
        for each in saver.list(config(f"{thread}-copy")):
            _whole(each)
        done = [each for each in told if each["done"]]
        there = set(ids(saver, thread))
        puts = [each["id"] for each in done if each["act"] == "put"]
        if puts:
            assert puts[-1] in there, (puts[-1], there)
        if not any(each["act"] == "prune" for each in told):
            assert set(puts) <= there
        for each in done:
            if each["act"] == "writes" and each["id"] in there:
                found = saver.get_tuple(config(thread, "", each["id"]))
                assert found is not None
                assert found.pending_writes == [
                    (f"task-{each['id']}", "big", noise(each["id"])),
                    (f"task-{each['id']}", "note", each["id"]),
                ]
        copied = [each for each in done if each["act"] == "copy"]
        if copied:
            assert copied[-1]["id"] in ids(saver, f"{thread}-copy")


def _whole(found: Any) -> None:
    given = found.checkpoint["channel_values"]
    id = found.checkpoint["id"]
    assert given["id"] == id
    assert found.metadata["id"] == id
    assert len(given["messages"]) == given["count"]
    assert all(isinstance(each, str) for each in given["messages"])
    if "large" in given:
        assert given["large"] == noise(id)
    # Both writes of a task, or none.
    assert len(found.pending_writes) in (0, 2)


def _write_on(place: Path, url: str, known: list[list[Any]], tell: Tell) -> None:
    saver = _open(place, url)
    _held_to(saver, known)
    tell("open")

    def act(writer: int) -> None:
        chance = random.Random()
        thread = f"w{writer}"
        found = saver.get_tuple(config(thread))
        id = None if found is None else found.checkpoint["id"]
        messages = [] if found is None else list(found.checkpoint["channel_values"]["messages"])

        def told(what: str, id: str | None, call: Callable[[], object]) -> None:
            tell({"writer": writer, "act": what, "id": id, "done": False})
            call()
            tell({"writer": writer, "act": what, "id": id, "done": True})

        while True:
            number = int(id or "0") + 1
            after = f"{number:08d}"
            messages = grown(chance, messages)[-40:]
            given: dict[str, Any] = {"messages": messages, "count": len(messages), "id": after}
            if chance.random() < 0.15:
                given["large"] = noise(after)
            told("put", after, _put(saver, thread, id, after, given))
            id = after
            what = chance.random()
            if what < 0.1:
                writes = [("big", noise(id)), ("note", after)]
                told("writes", id, _writes(saver, thread, id, writes))
            elif what < 0.25:
                told("prune", id, lambda: saver.prune([thread]))
            elif what < 0.35:
                told("copy", id, lambda: saver.copy_thread(thread, f"{thread}-copy"))

    threads = [threading.Thread(target=act, args=(writer,), daemon=True) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    raise AssertionError("the writers ended")


def _put(saver: EventSaver, thread: str, parent: str | None, id: str, given: Any) -> Callable[[], object]:
    return lambda: put(saver, thread, id, given, parent=parent, metadata={"id": id})


def _writes(saver: EventSaver, thread: str, id: str, writes: Any) -> Callable[[], object]:
    return lambda: saver.put_writes(config(thread, "", id), writes, f"task-{id}")


def _compared(place: Path, url: str, known: list[list[Any]]) -> dict[str, Any]:
    """The live view against one made from nothing but the log."""
    with _open(place, url) as saver:
        _held_to(saver, known)
        live = rows(saver)
    shutil.rmtree(place / "views")
    with _open(place, url) as saver:
        equal = rows(saver) == live
        threads = [f"w{writer}" for writer in range(WRITERS)]
        for thread in threads:
            put(saver, thread, "99999999", {"x": "y" * 99})
        saver.prune(threads)
        return {"equal": equal, "left": len(uncollected(saver, threads)), "rows": len(live)}


# ------------------------------------------------------------------------------ several processes


def take_part(url: str, views: str, number: str, turns: str) -> None:
    """Put, read, prune and delete on threads that others do the same to; say what went wrong."""
    chance = random.Random(int(number))
    outcomes = {"puts": 0, "reads": 0, "overtaken": 0}
    with EventSaver.open(url, views=views or None) as saver:
        say("open")
        sys.stdin.readline()
        mine = f"own{number}"
        id = None
        messages: list[str] = []
        for turn in range(int(turns)):
            after = f"{turn:06d}"
            messages = grown(chance, messages)[-30:]
            given = {"messages": messages, "count": len(messages), "id": after, "big": "z" * 20_000}
            put(saver, mine, after, given, parent=id, metadata={"id": after})
            id = after
            if turn % 7 == 3:
                saver.prune([mine])
            shared = f"shared{chance.randrange(2)}"
            try:
                _share(saver, shared, chance, f"{turn:06d}-{number}", outcomes)
            except ViewBehind:
                outcomes["overtaken"] += 1
            found = values(saver, mine)
            assert found == given, (turn, found and found["id"])
    say(outcomes)


def _share(saver: EventSaver, thread: str, chance: random.Random, id: str, outcomes: dict[str, int]) -> None:
    found = saver.get_tuple(config(thread))
    parent = None
    messages: list[str] = []
    if found is not None:
        _whole_shared(found)
        parent = found.checkpoint["id"]
        messages = found.checkpoint["channel_values"]["messages"]
    outcomes["reads"] += 1
    what = chance.random()
    if what < 0.6:
        messages = grown(chance, list(messages))[-30:]
        given: dict[str, Any] = {"messages": messages, "count": len(messages), "id": id}
        if chance.random() < 0.05:
            given["large"] = noise(id)
        put(saver, thread, id, given, parent=parent, metadata={"id": id})
        outcomes["puts"] += 1
    elif what < 0.75 and parent is not None:
        task = f"{id}-{text(chance, 9)}"
        saver.put_writes(config(thread, "", parent), [("a", "w" * 900), ("b", id)], task)
    elif what < 0.9:
        saver.prune([thread])
    elif what < 0.95:
        saver.delete_thread(thread)
    else:
        for each in saver.list(config(thread)):
            _whole_shared(each)


def _whole_shared(found: Any) -> None:
    given = found.checkpoint["channel_values"]
    assert given["id"] == found.checkpoint["id"] == found.metadata["id"]
    assert len(given["messages"]) == given["count"]
    assert len(found.pending_writes) % 2 == 0


def dump(url: str, views: str) -> None:
    """A digest of every row of a view that follows the log to its end."""
    with EventSaver.open(url, views=views or None) as saver:
        say({key.hex(): value.hex() for key, value in sorted(rows(saver).items())})


def broken(url: str) -> None:
    """Whether a place can be opened at all."""
    try:
        EventSaver.open(url).close()
        say("open")
    except EventStoreError as error:
        say([type(error).__name__, str(error)])


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
