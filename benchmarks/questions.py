"""What is asked of a store, with the right answers, worked out by brute force beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from benchmarks.workload import KINDS, Floats, Namespace, NumberedEmbeddings, Workload

LIMIT: Final = 10
TIE: Final = 1e-5
"""Similarities closer than this count as equal: stores compute them in different precision."""


@dataclass(frozen=True)
class Question:
    """One semantic search and the keys that may stand in its answer."""

    text: str
    prefix: Namespace
    filter: dict[str, Any] | None
    right: frozenset[str]
    """Keys of the exact ten nearest, and of what ties with the tenth."""
    count: int
    """How many hits a full answer has."""

    def recall(self, keys: Sequence[str]) -> float:
        return min(len(self.right.intersection(keys)), self.count) / self.count if self.count else 1.0


@dataclass(frozen=True)
class Group:
    """Questions of one kind."""

    questions: list[Question]
    candidates: int
    """Median number of memories that a question's prefix holds."""


@dataclass
class Questions:
    """All groups of questions of a workload; answers are the same in every process."""

    work: Workload
    embeddings: NumberedEmbeddings
    each: int = 48
    groups: dict[str, Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        work = self.work
        small, middle, large = (
            work.users_of_size(size, most) for size, most in ((40, 8), (250, 8), (10**9, 1))
        )
        self.groups = {
            "small": self._about("small", small),
            "middle": self._about("middle", middle),
            "large": self._about("large", large),
            "kind": self._about("kind", large, "kind"),
            "tag": self._about("tag", large, "tag"),
            "all": self._about("all", []),
        }

    def _about(self, name: str, users: list[int], filtered: str | None = None) -> Group:
        work = self.work
        rng = np.random.default_rng([work.spec.seed, *name.encode()])
        made, sizes = [], []
        for number in range(self.each):
            user = users[number % len(users)] if users else None
            within = work.embedded if user is None else work.members(user)
            near = int(rng.choice(within))
            wanted: dict[str, Any] | None = None
            among = within
            if filtered == "kind":
                wanted, among = {"kind": KINDS[work.kind[near]]}, within[work.kind[within] == work.kind[near]]
            elif filtered == "tag":
                wanted, among = {"tag": f"t{work.tag[near]}"}, within[work.tag[within] == work.tag[near]]
            text, vector = f"?{name}.{number}", work.near(near, rng)
            self.embeddings.questions[text] = vector
            prefix = () if user is None else work.memories_of(user)
            right, count = self._nearest(vector, among)
            made.append(Question(text, prefix, wanted, right, count))
            sizes.append(len(within))
        return Group(made, int(np.median(sizes)))

    def _nearest(
        self, vector: Floats, among: np.ndarray[Any, np.dtype[np.int64]]
    ) -> tuple[frozenset[str], int]:
        work = self.work
        # One product with the whole matrix costs less than gathering a large part of its rows.
        wide = len(among) * 3 > len(work.vectors)
        scores = (work.vectors @ vector)[among] if wide else work.vectors[among] @ vector
        count = min(LIMIT, len(among))
        last = np.partition(scores, len(scores) - count)[len(scores) - count]
        return frozenset(work.key(int(number)) for number in among[scores >= last - TIE]), count
