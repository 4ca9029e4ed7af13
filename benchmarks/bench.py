"""One store being measured, in a process of its own, with the workload it holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
from langgraph.store.base import BaseStore, PutOp

from benchmarks import measure
from benchmarks.peers import CONTENDERS, Contender
from benchmarks.questions import Questions
from benchmarks.workload import Namespace, NumberedEmbeddings, Spec, Workload


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a process needs to know to measure one store."""

    contender: str
    spec: Spec
    directory: Path
    """Of this store at this size."""
    vectors: Path


class Bench:
    """What cells measure. ``turn`` counts the repetitions of a cell."""

    def __init__(self, setting: Setting) -> None:
        kind: type[Contender] = CONTENDERS[setting.contender]
        kind.load_modules()
        self.setting = setting
        self.work = Workload(setting.spec, setting.vectors)
        embeddings = NumberedEmbeddings(self.work)
        self.questions = Questions(self.work, embeddings)
        index: dict[str, Any] | None = {"dims": setting.spec.dims, "embed": embeddings, "fields": ["text"]}
        if kind.cannot_search():
            index = None
        self.contender = kind(setting.directory / "store", index)
        self.turn = 0
        self.written: list[tuple[Namespace, str, int]] = []
        """Memories that were put by cells after the load: namespace, key, number of the value."""
        self._store: BaseStore | None = None
        self.memory_before = measure.memory_bytes()

    @property
    def store(self) -> BaseStore:
        """The store, opened when it is first needed."""
        if self._store is None:
            self._store = self.contender.open()
        return self._store

    def close(self) -> None:
        if self._store is not None:
            self._store = None
            self.contender.close()

    def rng(self, name: str) -> np.random.Generator:
        """The same numbers for every store in one turn of a cell."""
        return np.random.default_rng([self.work.spec.seed, self.turn, *name.encode()])

    def put_op(self, number: int) -> PutOp:
        work = self.work
        index: Literal[False] | None = None if work.is_embedded(number) else False
        return PutOp(work.namespace(number), work.key(number), work.value(number), index)

    def is_there(self, number: int) -> bool:
        found = self.store.get(self.work.namespace(number), self.work.key(number))
        return found is not None and found.value == self.work.value(number)
