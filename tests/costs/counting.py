"""Thin wrappers that count: around RocksDB's families, the disk, the log, FAISS and the model."""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from rocksdict import WriteBatch

from eventstore import EventStore
from eventstore.log.embedded import EmbeddedLog
from projector.rocks import FAMILIES, Database
from projector.runtime import runtime_of
from projector.vectors import graph, scoring
from projector.vectors.delta import Delta
from projector.vectors.segment import Segment


class Work(Counter[str]):
    """How often what was done, by name; ``by_thread`` says by whom."""

    def __init__(self, dims: int = 8) -> None:
        super().__init__()
        self.dims = dims
        self.by_thread: dict[int, Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()

    def note(self, what: str, times: int = 1) -> None:
        with self._lock:
            self[what] += times
            self.by_thread[threading.get_ident()][what] += times

    def clear(self) -> None:
        with self._lock:
            super().clear()
            self.by_thread.clear()

    @property
    def done(self) -> dict[str, int]:
        """What was done at all."""
        return {what: times for what, times in self.items() if times}

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """An embedding function that counts its calls and its texts."""
        self.note("model calls")
        self.note("texts embedded", len(texts))
        made = [np.random.default_rng([*text.encode()]).standard_normal(self.dims) for text in texts]
        return [row.astype(np.float32).tolist() for row in made]


class _Rows:
    """An iterator of RocksDB."""

    def __init__(self, inner: Any, work: Work) -> None:
        self._inner = inner
        self._work = work

    def seek(self, key: bytes) -> None:
        self._work.note("seeks")
        self._inner.seek(key)

    def next(self) -> None:
        self._work.note("steps")
        self._inner.next()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Source:
    """A column family, or a snapshot of one."""

    def __init__(self, inner: Any, work: Work) -> None:
        self._inner = inner
        self._work = work

    def get(self, key: bytes | list[bytes]) -> Any:
        self._work.note("reads", len(key) if isinstance(key, list) else 1)
        return self._inner.get(key)

    def __getitem__(self, key: bytes) -> bytes:
        self._work.note("reads")
        found: bytes = self._inner[key]
        return found

    def iter(self) -> Any:
        return _Rows(self._inner.iter(), self._work)

    def snapshot(self) -> Any:
        return _Source(self._inner.snapshot(), self._work)

    def write(self, batch: WriteBatch) -> None:
        self._work.note("view commits")
        self._work.note("rows written", batch.len())
        self._inner.write(batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Counted:
    """An open store whose work is counted."""

    def __init__(self, store: EventStore, work: Work) -> None:
        self.store = store
        self.work = work
        self.db: Database = runtime_of(store).materialized.db
        for name in (*FAMILIES, "default"):
            setattr(self.db, name, _Source(getattr(self.db, name), work))

    def of(self, act: Callable[[], object]) -> dict[str, int]:
        """What is done in one call, and nothing from before."""
        self.work.clear()
        act()
        return self.work.done


def counted_work(patch: pytest.MonkeyPatch) -> Work:
    """Patch what lies below the store so that it counts."""
    work = Work()

    def counting(owner: object, name: str, note: Callable[..., None]) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            note(*arguments)
            return real(*arguments, **named)

        patch.setattr(owner, name, call)

    counting(os, "fdatasync", lambda *_: work.note("syncs"))
    counting(os, "fsync", lambda *_: work.note("syncs"))
    counting(os, "pwritev", lambda fd, blocks, at: work.note("bytes appended", sum(map(len, blocks))))
    counting(EmbeddedLog, "append", lambda log, batches, *_: work.note("log appends"))
    for part in (Delta, Segment):
        counting(part, "find", lambda *_: work.note("prefixes found"))
    counting(scoring.Scorer, "bounds", lambda *given: _scanned(work, given[4]))
    counting(scoring.Scorer, "scores", lambda *given: [_scored(work, each.rows) for each in given[2]])
    counting(graph.Graph, "propose", lambda *_: work.note("graph searches"))
    return work


def _scanned(work: Work, rows: Any) -> None:
    work.note("FAISS scans")
    work.note("rows scanned", _size(rows))


def _scored(work: Work, rows: Any) -> None:
    work.note("rows scored", _size(rows))


def _size(rows: Any) -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)
