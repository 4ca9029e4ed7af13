"""Cells that write, cells about a store's life: load, size, reopening, rebuilding, mixed traffic."""

from __future__ import annotations

import asyncio
import mmap
import os
import shutil
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from langgraph.store.base import BaseStore

from benchmarks.bench import Bench
from benchmarks.measure import Slice, disk_bytes, memory_bytes, tasks, threads, timed, until_quiet
from benchmarks.questions import LIMIT
from benchmarks.workload import CHUNKS

WRITERS: Final = 64
QUIET_SECONDS: Final = 120.0


# ---------------------------------------------------------------------- load and size


def load(bench: Bench, seconds: float) -> Slice:
    """One part of the memories, in batches."""
    store, batches = bench.store, bench.work.batches(bench.turn, CHUNKS)
    spent = 0.0
    for batch in batches:
        ops = [bench.put_op(number) for number in batch]
        began = time.perf_counter()
        store.batch(ops)
        spent += time.perf_counter() - began
    first, last = batches[0].start, batches[-1].stop
    sample = bench.rng("load").integers(first, last, size=20)
    right = sum(bench.is_there(int(number)) for number in sample) / len(sample)
    return Slice(value=(last - first) / spent, right=right)


def settle(bench: Bench, seconds: float) -> Slice:
    """Work that goes on in the background after the load."""
    assert bench.store is not None
    began = time.perf_counter()
    asked = time.perf_counter() - began if bench.contender.settle() else 0.0
    spent, quiet = until_quiet(QUIET_SECONDS)
    return Slice(value=spent + asked, note="" if quiet else f"still busy after {QUIET_SECONDS:.0f} s")


def memory(bench: Bench, seconds: float) -> Slice:
    note = "" if bench.contender.server is None else "without its server"
    return Slice(value=float(memory_bytes() - bench.memory_before), note=note)


def disk(bench: Bench, seconds: float) -> Slice:
    size = disk_bytes(bench.contender.directory)
    if not bench.contender.persistent:
        return Slice(note="nothing on disk")
    if bench.contender.server is not None:
        return Slice(note="on its server")
    return Slice(value=size / bench.work.spec.items)


# ---------------------------------------------------------------------- reopening


def reopen_get(bench: Bench, seconds: float) -> Slice:
    """In a process that has just started: open, then read one memory."""
    number = int(bench.work.embedded[bench.turn])
    began = time.perf_counter()
    found = bench.store.get(bench.work.namespace(number), bench.work.key(number))
    spent = time.perf_counter() - began
    return Slice(value=spent, right=float(found is not None and found.value == bench.work.value(number)))


def reopen_semantic(bench: Bench, seconds: float) -> Slice:
    """In a process that has just started: open, then one semantic search in a user of about 250."""
    return _first_answer(bench, Slice())


def _first_answer(bench: Bench, done: Slice) -> Slice:
    question = bench.questions.groups["middle"].questions[bench.turn]
    began = time.perf_counter()
    hits = bench.store.search(question.prefix, query=question.text, limit=LIMIT)
    done.value = time.perf_counter() - began
    done.recall = question.recall([hit.key for hit in hits])
    return done


def rebuild(bench: Bench, seconds: float) -> Slice:
    """Remove the views, then open and search: events per second from the log to the first answer."""
    shutil.rmtree(bench.contender.directory / "views")
    done = _first_answer(bench, Slice())
    assert done.value is not None
    done.value = bench.work.spec.items / done.value
    done.right = _sampled(bench)
    return done


def rebuild_plain(bench: Bench, seconds: float) -> Slice:
    """The same for a log without vectors."""
    contender = type(bench.contender)(bench.setting.directory / "plain", None)
    if not contender.directory.exists():
        store = contender.open()
        for start in range(0, bench.work.spec.items, 1_000):
            store.batch(
                [bench.put_op(number) for number in range(start, min(start + 1_000, bench.work.spec.items))]
            )
        contender.close()
    shutil.rmtree(contender.directory / "views")
    bench.contender = contender
    began = time.perf_counter()
    assert bench.store is not None
    spent = time.perf_counter() - began
    return Slice(value=bench.work.spec.items / spent, right=_sampled(bench))


def _sampled(bench: Bench) -> float:
    sample = bench.rng("sampled").integers(0, bench.work.spec.items, size=100)
    return sum(bench.is_there(int(number)) for number in sample) / len(sample)


# ---------------------------------------------------------------------- writing


def sync_floor(bench: Bench, seconds: float) -> Slice:
    """What the disk itself takes: 4 KiB written into a file that has its size, and synced."""
    path = bench.setting.directory / "floor"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, 1 << 20)
        os.fsync(descriptor)
        page = os.urandom(mmap.PAGESIZE)

        def write(place: int) -> None:
            os.pwrite(descriptor, page, place * len(page))
            os.fdatasync(descriptor)

        done, _ = timed(write, range(256), seconds)
    finally:
        os.close(descriptor)
        path.unlink()
    return done


def put(bench: Bench, seconds: float) -> Slice:
    """One caller, one memory at a time."""
    new = _New(bench, "put")
    store = bench.store
    done, _ = timed(lambda step: new.put(store, 0, step), range(1_000_000), seconds)
    done.right = new.there(store, 1)
    return done


def put_threads(bench: Bench, seconds: float) -> Slice:
    new, store = _New(bench, "thread"), bench.store

    def work(thread: int) -> Iterator[None]:
        for step in range(1_000_000):
            new.put(store, thread, step)
            yield

    rate, _ = threads(work, WRITERS, seconds)
    return Slice(value=rate, right=new.there(store, WRITERS))


def put_tasks(bench: Bench, seconds: float) -> Slice:
    new, store = _New(bench, "task"), bench.store

    async def run() -> float:
        async with bench.contender.open_async() as opened:

            async def one(task: int, step: int) -> None:
                namespace, key, value = new.memory(task, step)
                await opened.aput(namespace, key, value)

            rate, _ = await tasks(one, WRITERS, seconds)
        return rate

    return Slice(value=asyncio.run(run()), right=new.there(store, WRITERS))


class _New:
    """Memories that are not in the store yet, for every writer its own."""

    def __init__(self, bench: Bench, name: str) -> None:
        work = bench.work
        self._name = f"{name}-{bench.turn}"
        chosen = bench.rng(name).choice(work.embedded, size=512)
        self._made = [(work.namespace(int(number)), work.value(int(number))) for number in chosen]

    def memory(self, writer: int, step: int) -> tuple[tuple[str, ...], str, dict[str, Any]]:
        namespace, value = self._made[(writer * 131 + step) % len(self._made)]
        return namespace, f"{self._name}-{writer}-{step}", value

    def put(self, store: BaseStore, writer: int, step: int) -> None:
        store.put(*self.memory(writer, step))

    def there(self, store: BaseStore, writers: int) -> float:
        """Share of the writers whose first memory is read back as it was put."""
        sample = [self.memory(writer, 0) for writer in range(writers)]
        found = [store.get(namespace, key) for namespace, key, _ in sample]
        right = [item is not None and item.value == made[2] for item, made in zip(found, sample, strict=True)]
        return sum(right) / len(right)


def mixed(bench: Bench, seconds: float) -> Slice:
    """Eight threads: 70 % get, 10 % newest ten, 15 % semantic in a user, 5 % put."""
    work, store = bench.work, bench.store
    new = _New(bench, "mixed")
    asked = [q for name in ("small", "middle") for q in bench.questions.groups[name].questions]
    wrong = [0] * 8
    plans = [
        (
            rng.choice(4, size=512, p=(0.70, 0.10, 0.15, 0.05)),
            rng.integers(0, work.spec.items, size=512),
            work.busy_users(rng, 512),
        )
        for rng in (np.random.default_rng([bench.turn, thread]) for thread in range(8))
    ]

    def run(thread: int) -> Iterator[None]:
        kinds, numbers, users = plans[thread]
        for step in range(1_000_000):
            kind, number, user = kinds[step % 512], int(numbers[step % 512]), users[step % 512]
            if kind == 0:
                wrong[thread] += store.get(work.namespace(number), work.key(number)) is None
            elif kind == 1:
                wrong[thread] += not store.search(work.memories_of(user), limit=LIMIT)
            elif kind == 2:
                question = asked[number % len(asked)]
                wrong[thread] += not store.search(question.prefix, query=question.text, limit=LIMIT)
            else:
                new.put(store, thread, step)
            yield

    rate, count = threads(run, 8, seconds)
    return Slice(value=rate, right=1 - sum(wrong) / count)
