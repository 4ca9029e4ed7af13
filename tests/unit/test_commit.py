"""Group commit: one append for all that waited, each with its own result, and nobody forgotten."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest

from eventstore.commit import MOST_RECORDS, Committer
from eventstore.errors import LogFull, OutcomeUnknown, StoreClosed
from eventstore.log.base import Batch
from eventstore.views import Written


class Named(str):
    """A batch that is told by its name."""

    records: Sequence[object] = (None,)


def batch(name: str, records: int = 1) -> Batch:
    made = Named(name)
    made.records = (None,) * records
    return cast(Batch, made)


class Appends:
    """Stands for log and view: keeps what it was given, slowly if asked to."""

    def __init__(self, delay: float = 0.0) -> None:
        self.groups: list[list[Any]] = []
        self.delay = delay
        self.failure: BaseException | None = None

    def __call__(self, batches: Sequence[Batch]) -> list[Written | Exception]:
        self.groups.append(list(batches))
        time.sleep(self.delay)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        return [
            LogFull(str(each)) if str(each).startswith("bad") else Written([cast(Any, each)], {})
            for each in batches
        ]


def test_a_lone_caller_commits_in_its_own_thread() -> None:
    where: list[str] = []
    appends = Appends()

    def write(batches: Sequence[Batch]) -> list[Written | Exception]:
        where.append(threading.current_thread().name)
        return appends(batches)

    committer = Committer(write)
    assert committer.write(batch("a")).records == ["a"]
    assert where == [threading.current_thread().name]
    committer.close()


def test_what_waits_goes_into_one_append_in_order_of_arrival() -> None:
    appends = Appends(0.05)
    committer = Committer(appends)

    async def main() -> list[Written]:
        first = asyncio.create_task(committer.awrite(batch("first")))
        await asyncio.sleep(0.02)
        rest = [asyncio.create_task(committer.awrite(batch(str(n)))) for n in range(20)]
        return await asyncio.gather(first, *rest)

    results = asyncio.run(main())
    assert [written.records[0] for written in results] == ["first", *map(str, range(20))]
    assert appends.groups == [["first"], [str(n) for n in range(20)]]
    committer.close()


def test_a_refused_batch_fails_alone() -> None:
    committer = Committer(Appends())

    async def main() -> list[Any]:
        names = ("a", "bad b", "c")
        return await asyncio.gather(*(committer.awrite(batch(n)) for n in names), return_exceptions=True)

    a, b, c = asyncio.run(main())
    assert (a.records, c.records) == (["a"], ["c"])
    assert isinstance(b, LogFull)
    committer.close()


def test_a_failed_append_fails_all_of_it_and_the_next_goes_on() -> None:
    appends = Appends()
    committer = Committer(appends)
    appends.failure = OutcomeUnknown("sync failed")
    with pytest.raises(OutcomeUnknown):
        committer.write(batch("a"))
    assert committer.write(batch("b")).records == ["b"]
    committer.close()


def test_ctrl_c_in_one_commit_reaches_its_caller_and_the_others_hear_of_it() -> None:
    appends = Appends()
    committer = Committer(appends)
    entered, go_on = threading.Event(), threading.Event()

    def write(batches: Sequence[Batch]) -> list[Written | Exception]:
        if batches == ["mine"]:
            entered.set()
            go_on.wait(5)
            raise KeyboardInterrupt
        return appends(batches)

    committer = Committer(write)
    others: list[Any] = []

    def other() -> None:
        entered.wait(5)
        go_on.set()
        others.append(committer.write(batch("other")))

    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        committer.write(batch("mine"))
    thread.join(5)
    assert not thread.is_alive(), "the batch that queued meanwhile was forgotten"
    assert [written.records for written in others] == [["other"]]
    committer.close()


def test_threads_and_tasks_together_lose_nothing() -> None:
    appends = Appends()
    committer = Committer(appends)
    got: list[str] = []

    def work(name: str) -> None:
        for n in range(100):
            got.append(cast(Any, committer.write(batch(f"{name} {n}")).records[0]))

    async def tasks() -> None:
        results = await asyncio.gather(*(committer.awrite(batch(f"task {n}")) for n in range(200)))
        got.extend(cast(Any, written.records[0]) for written in results)

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(tasks())
    for thread in threads:
        thread.join(20)
    committer.close()
    appended = [name for group in appends.groups for name in group]
    assert sorted(got) == sorted(appended)
    assert len(appended) == 600
    for name in "0123":
        assert [n for n in appended if n.startswith(f"{name} ")] == [f"{name} {n}" for n in range(100)]


def test_closing_writes_what_waits_and_refuses_what_comes_later() -> None:
    appends = Appends(0.05)
    committer = Committer(appends)

    async def main() -> list[Any]:
        waiting = [asyncio.create_task(committer.awrite(batch(str(n)))) for n in range(5)]
        await asyncio.sleep(0.01)
        await asyncio.to_thread(committer.close)
        return await asyncio.gather(*waiting)

    assert len(asyncio.run(main())) == 5
    committer.close()
    with pytest.raises(StoreClosed):
        committer.write(batch("late"))
    with pytest.raises(StoreClosed):
        asyncio.run(committer.awrite(batch("late")))


def test_a_cancelled_wait_does_not_undo_the_write() -> None:
    appends = Appends(0.05)
    committer = Committer(appends)

    async def main() -> None:
        task = asyncio.create_task(committer.awrite(batch("a")))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    committer.close()
    assert appends.groups == [["a"]]


def test_a_group_with_many_records_takes_no_more_but_all_of_one_call() -> None:
    appends = Appends(0.05)
    committer = Committer(appends)

    async def main() -> list[Any]:
        first = asyncio.create_task(committer.awrite(batch("first")))
        await asyncio.sleep(0.01)
        large = [committer.awrite(batch(f"large {n}", MOST_RECORDS - 1)) for n in range(3)]
        together = committer.awrite_all([batch(f"part {n}", MOST_RECORDS) for n in range(3)])
        return await asyncio.gather(first, *large, together, committer.awrite(batch("last")))

    results = asyncio.run(main())
    assert appends.groups == [
        ["first"], ["large 0", "large 1"], ["large 2", "part 0", "part 1", "part 2"], ["last"]
    ]  # fmt: skip
    assert [each.records for each in results[4]] == [["part 0"], ["part 1"], ["part 2"]]
    assert results[5].records == ["last"]
    committer.close()
