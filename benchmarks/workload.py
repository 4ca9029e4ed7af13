"""The memories that are measured: users, namespaces, values and vectors, all from one seed.

Users follow a power law: a few have thousands of memories, most have some dozens. A value is
about 300 bytes of JSON. Vectors lie in topics, as those of real sentences do, and are looked
up by the number in the text, so that embedding costs next to nothing and the same for every store.

This module knows no store. What is asked of one, and the right answers, is in
:mod:`benchmarks.questions`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]
Namespace = tuple[str, ...]

KINDS: Final = ("fact", "preference", "event", "plan", "summary")
KIND_SHARES: Final = (0.4, 0.3, 0.15, 0.1, 0.05)
TAGS: Final = 100
"""A tag is on one memory in a hundred."""
BATCH: Final = 100
CHUNKS: Final = 10
"""Turns in which a store is loaded."""
TOPICS: Final = 200
LATENT: Final = 64
SHARED: Final[Namespace] = ("shared", "facts")
_WORDS: Final = (
    "alice prefers meeting after lunch because mornings belong to the garden she told support about "
    "invoice number delayed twice in march and asked whether refund reaches old account or new one "
    "travels north each winter keeps two dogs never flies without window seat reads about bridges "
    "project deadline moved team agreed budget stays same customer wants weekly summary by mail"
)


@dataclass(frozen=True)
class Spec:
    """Everything that the workload depends on."""

    items: int
    dims: int = 384
    seed: int = 1

    @property
    def users(self) -> int:
        return max(8, self.items // 100)


class Workload:
    """Memories ``0 .. items - 1`` in the order in which they are written."""

    def __init__(self, spec: Spec, vectors: Path | None = None) -> None:
        """Make the workload; ``vectors`` is a file in which its vectors are kept between processes."""
        self.spec = spec
        rng = np.random.default_rng(spec.seed)
        users, items = spec.users, spec.items
        shared, profile = max(1, items // 50), items // 10
        memories = items - shared - profile
        self.sizes = _power_law(memories, users, largest=max(items // 20, 3 * memories // users))
        owner = np.concatenate(
            [
                np.repeat(np.arange(users), self.sizes),
                users + np.arange(profile) % users,
                np.full(shared, 2 * users),
            ]
        )
        self._owner: Numbers = rng.permutation(owner)
        self._by_owner: Numbers = np.argsort(self._owner, kind="stable")
        self._starts = np.searchsorted(self._owner[self._by_owner], np.arange(2 * users + 2))
        self.kind: Numbers = rng.choice(len(KINDS), size=items, p=KIND_SHARES)
        self.tag: Numbers = rng.integers(0, TAGS, size=items)
        self._importance = rng.integers(1, 11, size=items)
        words = _WORDS.split()
        self._phrases = [" ".join(rng.choice(words, size=int(rng.integers(4, 20)))) for _ in range(2048)]
        self.embedded: Numbers = np.flatnonzero((self._owner < users) | (self._owner == 2 * users))
        self._projection: Floats = rng.standard_normal((LATENT, spec.dims), dtype=np.float32)
        self.vectors: Floats
        if vectors is not None and vectors.exists():
            self.vectors = np.load(vectors)
        else:
            self.vectors = self._make_vectors()
            if vectors is not None:
                np.save(vectors, self.vectors)

    # ------------------------------------------------------------------ memories

    def namespace(self, number: int) -> Namespace:
        owner, users = int(self._owner[number]), self.spec.users
        if owner < users:
            return self.memories_of(owner)
        return SHARED if owner == 2 * users else (self.user(owner - users), "profile")

    def key(self, number: int) -> str:
        return hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).hexdigest()

    def value(self, number: int) -> dict[str, Any]:
        phrases = self._phrases
        chosen = (phrases[(number * step + step) % len(phrases)] for step in (7, 131, 1_009))
        return {
            "kind": KINDS[self.kind[number]],
            "tag": f"t{self.tag[number]}",
            "importance": int(self._importance[number]),
            "text": f"#{number} {' '.join(chosen)}",
        }

    def is_embedded(self, number: int) -> bool:
        """Profile documents are only ever read by key."""
        owner = int(self._owner[number])
        return not self.spec.users <= owner < 2 * self.spec.users

    def batches(self, turn: int, turns: int) -> list[range]:
        """The memories written in one of so many turns, as they are written: a hundred at a time."""
        first, last = (self.spec.items * each // turns for each in (turn, turn + 1))
        return [range(start, min(start + BATCH, last)) for start in range(first, last, BATCH)]

    # ------------------------------------------------------------------ users

    def user(self, user: int) -> str:
        return f"user-{(user * 2_654_435_761 + self.spec.seed) % (1 << 32):08x}"

    def memories_of(self, user: int) -> Namespace:
        return (self.user(user), "memories")

    def members(self, user: int) -> Numbers:
        """Numbers of a user's memories, oldest first."""
        return self._by_owner[self._starts[user] : self._starts[user + 1]]

    def has_profile(self, user: int) -> bool:
        owner = user + self.spec.users
        return bool(self._starts[owner + 1] > self._starts[owner])

    def users_of_size(self, size: int, most: int) -> list[int]:
        """The users whose number of memories is nearest to ``size``."""
        distance = np.abs(np.log(self.sizes / size))
        return [int(user) for user in np.argsort(distance, kind="stable")[:most]]

    def busy_users(self, rng: np.random.Generator, count: int) -> list[int]:
        """Users as traffic meets them: the more memories, the more often."""
        return [
            int(user) for user in rng.choice(self.spec.users, size=count, p=self.sizes / self.sizes.sum())
        ]

    # ------------------------------------------------------------------ vectors

    def near(self, number: int, rng: np.random.Generator) -> Floats:
        """A new unit vector in the neighbourhood of a memory's."""
        latent = rng.standard_normal(LATENT, dtype=np.float32) / np.float32(LATENT**0.5)
        moved = latent @ self._projection
        found = self.vectors[number] + moved * np.float32(0.4 / np.linalg.norm(moved))
        return np.asarray(found / np.linalg.norm(found), dtype=np.float32)

    def _make_vectors(self) -> Floats:
        spec = self.spec
        rng = np.random.default_rng([spec.seed, 2])
        topics = rng.standard_normal((TOPICS, LATENT), dtype=np.float32)
        tastes = rng.standard_normal((2 * spec.users + 1, LATENT), dtype=np.float32)
        favourites = rng.integers(0, TOPICS, size=(2 * spec.users + 1, 6))
        topic = favourites[self._owner, rng.integers(0, 6, size=spec.items)]
        made = np.empty((spec.items, spec.dims), dtype=np.float32)
        for start in range(0, spec.items, 16_384):
            part = slice(start, min(start + 16_384, spec.items))
            latent = topics[topic[part]] + np.float32(0.3) * tastes[self._owner[part]]
            latent += np.float32(0.6) * rng.standard_normal(latent.shape, dtype=np.float32)
            rows = latent @ self._projection
            rows += rng.standard_normal(rows.shape, dtype=np.float32)
            made[part] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return made


def _power_law(total: int, users: int, largest: int) -> Numbers:
    """Sizes that fall as a power of the rank, begin near ``largest`` and sum to ``total``."""
    rank = np.arange(1, users + 1)
    flat, steep = 0.0, 4.0
    for _ in range(60):
        power = (flat + steep) / 2
        if (largest * rank**-power).sum() > total:
            flat = power
        else:
            steep = power
    sizes = np.maximum((largest * rank**-steep).astype(np.int64), 2)
    short = total - int(sizes.sum())
    sizes += short // users
    sizes[: short % users] += 1
    return sizes


class NumberedEmbeddings(Embeddings):
    """Looks vectors up: a memory's by the number in its text, a question's by its text."""

    def __init__(self, work: Workload) -> None:
        self._vectors = work.vectors
        self.questions: dict[str, Floats] = {}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        known = self.questions.get(text)
        if known is None:
            known = self._vectors[int(text[1 : text.index(" ")])]
        found: list[float] = known.tolist()
        return found

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        return self.embed_documents(texts)

    async def aembed_query(self, text: str) -> list[float]:
        return self.embed_query(text)
