"""Threads, tasks and processes on the same threads of conversation."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from eventstore.checkpoint import EventSaver
from eventstore.checkpoint.events import Put, Writes
from tests.checkpoint.hooks import Hooked
from tests.checkpoint.kit import (
    checkpoint,
    config,
    events,
    grown,
    ids,
    put,
    rows,
    values,
)
from tests.checkpoint.test_kill import run
from tests.scenarios.kit import ROOT

# ------------------------------------------------------------------ in order


def test_a_put_waits_for_writes_that_entered_before_it(
    open_saver: Callable[..., EventSaver], tmp_path: Path
) -> None:
    """So that a crash between the two cannot lose what the task has done. It waits for no other thread."""
    entered, go_on = threading.Event(), threading.Event()
    serde = Hooked(at_dump=lambda: (entered.set(), go_on.wait(30)))
    saver = open_saver(serde=serde)
    put(saver, "t", "1", {"n": 1})
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(saver.put_writes, config("t", "", "1"), [("n", "now")], "task")
        assert entered.wait(10)
        putting = pool.submit(put, saver, "t", "2", {"n": 2}, parent="1")
        waiting = pool.submit(asyncio.run, _aput(saver, "t", "3"))
        put(saver, "another", "1", {"n": 1})
        assert not putting.done()
        assert not waiting.done()
        assert ids(saver, "t") == ["1"]
        go_on.set()
        writing.result(10), putting.result(10), waiting.result(10)
    kinds = [type(event) for event in events(tmp_path / "s") if event.at.thread == "t"]
    assert kinds == [Put, Writes, Put, Put]


async def _aput(saver: EventSaver, thread: str, id: str, value: Any = 1, parent: str | None = None) -> None:
    made = checkpoint(id, {"n": value})
    await saver.aput(config(thread, "", parent), made, {}, made["channel_versions"])


def test_a_put_after_writes_that_failed_goes_on(open_saver: Callable[..., EventSaver]) -> None:
    def fail() -> None:
        raise OSError("no such luck")

    saver = open_saver(serde=Hooked(at_dump=fail))
    with pytest.raises(OSError, match="no such luck"):
        saver.put_writes(config("t", "", "1"), [("n", "now")], "task")
    put(saver, "t", "2", {"n": 2})
    assert ids(saver, "t") == ["2"]


# ------------------------------------------------------------------ cancelled


@pytest.mark.parametrize("moment", ["while it is written down", "while it is appended", "while it waits"])
def test_a_cancelled_put_is_there_or_not_and_holds_up_nobody(
    open_saver: Callable[..., EventSaver], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        entered.set()
        assert go_on.wait(30)

    serde = Hooked(at_dump=None if moment == "while it is appended" else hold)
    saver = open_saver(serde=serde)
    runtime: Any = saver._engine.runtime
    append = runtime.log.append
    held: list[bool] = []

    def slow(*arguments: Any) -> Any:
        if not held:
            held.append(True)
            hold()
        return append(*arguments)

    async def main() -> None:
        if moment == "while it is appended":
            monkeypatch.setattr(runtime._log, "append", slow)
        if moment == "while it waits":
            writing = asyncio.create_task(saver.aput_writes(config("t", "", "0"), [("n", "now")], "task"))
            putting = asyncio.create_task(_aput(saver, "t", "1"))
        else:
            putting = asyncio.create_task(_aput(saver, "t", "1", "now"))
        await asyncio.to_thread(entered.wait, 10)
        await asyncio.sleep(0.02)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        if moment != "while it is appended":
            await asyncio.wait_for(_aput(saver, "other", "1"), 10)
        go_on.set()
        if moment == "while it waits":
            await asyncio.wait_for(writing, 10)
        await asyncio.wait_for(_aput(saver, "t", "2", parent="1"), 10)

    asyncio.run(main())
    assert ids(saver, "t") == (["2", "1"] if moment == "while it is appended" else ["2"])
    assert values(saver, "t") == {"n": 1}
    fresh = open_saver("fresh")
    assert rows(fresh) == rows(saver)


def test_several_event_loops_share_a_saver(open_saver: Callable[..., EventSaver]) -> None:
    saver = open_saver()

    async def talk(name: str) -> None:
        async def one(number: int) -> None:
            thread = f"{name}-{number % 3}"
            await _aput(saver, thread, f"{number:03d}", ["x" * number])
            await saver.aput_writes(config(thread, "", f"{number:03d}"), [("n", number)], "task")
            found = await saver.aget_tuple(config(thread, "", f"{number:03d}"))
            assert found is not None
            assert found.pending_writes == [("task", "n", number)]

        await asyncio.gather(*(one(number) for number in range(30)))
        assert len([each async for each in saver.alist(config(f"{name}-1"))]) == 10

    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(asyncio.run, talk(f"loop{number}")) for number in range(4)]:
            each.result(60)
    assert rows(open_saver("fresh")) == rows(saver)


# ------------------------------------------------------------------ threads and processes


def test_threads_on_one_conversation_and_on_many(open_saver: Callable[..., EventSaver]) -> None:
    """Every acknowledged put and write is read at once by who made it; prunes go on beside."""
    saver = open_saver()
    stop = threading.Event()

    def talk(number: int) -> None:
        chance = random.Random(number)
        mine: list[str] = []
        for turn in range(25):
            thread = "shared" if turn % 3 == 0 else f"own{number}"
            id = f"{turn:03d}-{number}"
            mine = grown(chance, mine)
            put(saver, thread, id, {"messages": mine, "who": number}, parent=None)
            found = values(saver, thread, id)
            if thread != "shared":
                assert found == {"messages": mine, "who": number}
                saver.put_writes(config(thread, "", id), [("a", turn), ("b", "y" * 500)], "task")
                again = saver.get_tuple(config(thread))
                assert again is not None
                assert again.pending_writes == [("task", "a", turn), ("task", "b", "y" * 500)]
            else:
                assert found in (None, {"messages": mine, "who": number})

    def prune() -> None:
        while not stop.wait(0.002):
            saver.prune(["shared", "own1"])
            for each in saver.list(config("shared")):
                assert each.checkpoint["id"].endswith(str(each.checkpoint["channel_values"]["who"]))

    with ThreadPoolExecutor() as pool:
        pruning = pool.submit(prune)
        talking = [pool.submit(talk, number) for number in range(5)]
        try:
            for each in talking:
                each.result(60)
        finally:
            stop.set()
        pruning.result(60)
    assert rows(open_saver("fresh")) == rows(saver)


def processes(url: str, folder: Path, turns: int) -> list[dict[str, int]]:
    """Two processes, each with a view of its own, on the same threads; what they saw."""
    children = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.checkpoint.children", "take_part"),
                *(url, str(folder / f"views{number}"), str(number), str(turns)),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    for child in children:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline() or "0") == "open"
    ended = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for child in children:
        out, errors = child.communicate(timeout=100)
        assert child.returncode == 0, errors[-4000:]
        ended.append(json.loads(out))
    return ended


def equal_views(url: str, folder: Path) -> dict[str, str]:
    """The rows of both views and of one made anew, which are all the same."""
    first, second, fresh = (
        run("dump", url, folder / name)[0] for name in ("views0", "views1", "views-fresh")
    )
    assert first == second == fresh
    return dict(first)


def test_two_processes_on_one_log(tmp_path: Path) -> None:
    """Puts race prunes and deletes of the other one; nobody ever meets half a checkpoint."""
    for seen in processes(str(tmp_path / "s"), tmp_path, 30):
        assert seen["puts"] > 5
        assert seen["overtaken"] == 0
    assert equal_views(str(tmp_path / "s"), tmp_path)
