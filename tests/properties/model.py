"""A small model of the store, and a driver that holds the store to it, operation by operation.

The model keeps plain dicts and lists and knows nothing of events, views or vectors in files.
Times are taken from the store once, right after a write, and must hold from then on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, PutOp, SearchOp

from eventstore import EventStore, VersionConflict
from tests.logs import OpenStore, Places
from tests.scenarios.kit import TinyEmbedder, index_of

LABELS = ("a", "b", "ab", "é", "a\x01")
KEYS = ("k", "l", "", "\x00", "k\x01", "ключ")
TEXTS = ("tea", "tea with milk", "coffee", " ", "rain")
FOREVER = 1000.0
AT_ONCE = 1e-7
"""Minutes: six microseconds, so a memory has expired before its put returns."""

Op = tuple[Any, ...]


@dataclass
class Kept:
    """What the model knows of one memory, dead ones included."""

    live: bool = False
    version: int = 0
    value: dict[str, Any] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    expired: bool = False
    created: datetime | None = None
    updated: datetime | None = None


Place = tuple[tuple[str, ...], str]


class Model:
    def __init__(self, omits: bool) -> None:
        self.omits = omits
        self.kept: dict[Place, Kept] = {}

    def seen(self, place: Place) -> Kept | None:
        kept = self.kept.get(place)
        return kept if kept and kept.live and not (self.omits and kept.expired) else None

    def under(self, prefix: tuple[str, ...]) -> Iterator[tuple[Place, Kept]]:
        for place in self.kept:
            kept = self.seen(place)
            if kept is not None and place[0][: len(prefix)] == prefix:
                yield place, kept

    def put(self, place: Place, value: dict[str, Any], index: Any, ttl: float | None) -> None:
        kept = self.kept.setdefault(place, Kept())
        if self.seen(place) is None:
            kept.created = None
        kept.live, kept.version, kept.value = True, kept.version + 1, value
        kept.texts = texts_of(value, index)
        kept.expired = ttl == AT_ONCE
        kept.updated = None

    def delete(self, place: Place) -> None:
        kept = self.kept.get(place)
        if kept and kept.live:
            kept.live, kept.version, kept.expired = False, kept.version + 1, False

    def version(self, place: Place) -> int:
        kept = self.seen(place)
        return kept.version if kept else 0

    def sweep(self) -> int:
        dead = [place for place, kept in self.kept.items() if kept.live and kept.expired]
        for place in dead:
            self.delete(place)
        return len(dead)

    def namespaces(
        self, prefix: tuple[str, ...], suffix: tuple[str, ...], depth: int | None
    ) -> list[tuple[str, ...]]:
        found = {
            namespace
            for (namespace, _), _ in self.under(())
            if len(namespace) >= max(len(prefix), len(suffix))
            and all(want in ("*", have) for want, have in zip(prefix, namespace, strict=False))
            and all(want in ("*", have) for want, have in zip(suffix[::-1], namespace[::-1], strict=False))
        }
        return sorted({namespace[:depth] for namespace in found})


def texts_of(value: dict[str, Any], index: Any) -> list[str]:
    if index is False:
        return []
    paths = ["t", "tags[*]"] if index is None else index
    texts: list[str] = []
    if "t" in paths and "t" in value:
        texts.append(value["t"])
    if "tags[*]" in paths:
        texts += value.get("tags", [])
    return texts


def passes(value: dict[str, Any], wanted: dict[str, Any] | None) -> bool:
    for name, operand in (wanted or {}).items():
        if name not in value:
            return False
        if isinstance(operand, dict):
            if not value[name] >= operand["$gte"]:
                return False
        elif value[name] != operand:
            return False
    return True


def cosine(a: list[float], b: list[float]) -> float:
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.dot(a, b)) / scale if scale else 0.0


class Driver:
    """Carries out operations on a store and on the model, and compares."""

    def __init__(self, places: Places, sub: str = "store", *, omits: bool = False) -> None:
        self.places = places
        self.sub = sub
        self.embedder = TinyEmbedder()
        self.model = Model(omits)
        self.omits = omits
        self.loop = asyncio.new_event_loop()
        self.store = self._open(places.open)

    def _open(self, open_: OpenStore) -> EventStore:
        return open_(
            index_of(self.embedder),
            {"omit_expired": self.omits},
            self.sub,
            config={"segment_bytes": 64 * 1024},
        )

    def close(self) -> None:
        self.store.close()
        self.loop.close()

    def run(self, op: Op) -> None:
        getattr(self, f"do_{op[0]}")(*op[1:])

    # ------------------------------------------------------------------ writing

    def do_put(
        self, namespace: tuple[str, ...], key: str, value: dict[str, Any], index: Any, ttl: Any
    ) -> None:
        self.store.put(namespace, key, value, index, ttl=ttl)
        self.model.put((namespace, key), value, index, ttl)
        self._observe([(namespace, key)])

    def do_delete(self, namespace: tuple[str, ...], key: str) -> None:
        self.store.delete(namespace, key)
        self.model.delete((namespace, key))
        self._observe([(namespace, key)])

    def do_put_if(
        self, namespace: tuple[str, ...], key: str, value: dict[str, Any], expected: int | None
    ) -> None:
        place = (namespace, key)
        current = self.model.version(place)
        if expected is None:
            expected = current
        if expected == current:
            self.store.put(namespace, key, value, expected_version=expected)
            self.model.put(place, value, None, None)
        else:
            with pytest.raises(VersionConflict) as caught:
                self.store.put(namespace, key, value, expected_version=expected)
            assert caught.value.current == current
        self._observe([place])

    def do_batch(self, parts: list[Op], through_loop: bool) -> None:
        ops: list[Any] = []
        checks: list[Callable[[Any], None]] = []
        puts: dict[Place, Op] = {}
        for part in parts:
            op, check = self._op(part)
            ops.append(op)
            checks.append(check)
            if isinstance(op, PutOp):
                puts[op.namespace, op.key] = part
        results = (
            self.loop.run_until_complete(self.store.abatch(ops)) if through_loop else self.store.batch(ops)
        )
        assert len(results) == len(ops)
        for check, result in zip(checks, results, strict=True):
            check(result)
        for place, part in puts.items():
            if part[0] == "delete":
                self.model.delete(place)
            else:
                self.model.put(place, *part[3:])
        self._observe(list(puts))

    def _observe(self, places: list[Place]) -> None:
        """Take the times of fresh writes from the store; what has none yet was just written."""
        for place in places:
            kept = self.model.seen(place)
            item = self.store.get(*place, refresh_ttl=False)
            if kept is None:
                assert item is None, place
                continue
            assert item is not None, place
            if kept.updated is None:
                kept.updated = item.updated_at
                kept.created = kept.created or item.updated_at
            self._same(item, place, kept)

    def _same(self, item: Any, place: Place, kept: Kept) -> None:
        assert (item.namespace, item.key, item.value) == (*place, kept.value)
        assert (item.created_at, item.updated_at) == (kept.created, kept.updated)

    # ------------------------------------------------------------------ reading

    def do_get(self, *part: Any) -> None:
        self.do_batch([("get", *part)], False)

    def do_search(self, *part: Any) -> None:
        self.do_batch([("search", *part)], False)

    def do_namespaces(self, *part: Any) -> None:
        self.do_batch([("namespaces", *part)], False)

    def _op(self, part: Op) -> tuple[Any, Callable[[Any], None]]:
        kind, *rest = part
        if kind == "put":
            return PutOp(*rest), lambda result: _is_none(result)
        if kind == "delete":
            return PutOp(*rest, None), lambda result: _is_none(result)
        if kind == "get":
            return GetOp(*rest), lambda result: self._check_get(result, *rest)
        if kind == "search":
            prefix, wanted, limit, offset, query = rest
            op = SearchOp(prefix, wanted, limit, offset, query, refresh_ttl=limit % 2 == 0)
            return op, lambda result: self._check_search(result, *rest)
        prefix, suffix, depth, limit, offset = rest
        conditions = [
            MatchCondition(kind, path) for kind, path in (("prefix", prefix), ("suffix", suffix)) if path
        ]
        return (
            ListNamespacesOp(tuple(conditions) or None, depth, limit, offset),
            lambda result: self._check_namespaces(result, *rest),
        )

    def _check_get(self, result: Any, namespace: tuple[str, ...], key: str, refresh: bool) -> None:
        kept = self.model.seen((namespace, key))
        if kept is None:
            assert result is None
        else:
            self._same(result, (namespace, key), kept)

    def _check_search(
        self,
        result: Any,
        prefix: tuple[str, ...],
        wanted: dict[str, Any] | None,
        limit: int,
        offset: int,
        query: str | None,
    ) -> None:
        found = {place: kept for place, kept in self.model.under(prefix) if passes(kept.value, wanted)}
        got = [(hit.namespace, hit.key) for hit in result]
        for hit, place in zip(result, got, strict=True):
            self._same(hit, place, found[place])
        if not query:
            assert all(hit.score is None for hit in result)
            order = sorted(found, key=lambda place: (-_us(found[place].updated), place))
            assert got == order[offset : offset + limit]
            return
        asked = self.embedder.vector(query)
        scores = {
            place: max(cosine(self.embedder.vector(text), asked) for text in kept.texts)
            for place, kept in found.items()
            if kept.texts
        }
        best = sorted(scores.values(), reverse=True)[offset : offset + limit]
        assert [hit.score for hit in result] == pytest.approx(best, abs=1e-5)
        for hit, place in zip(result, got, strict=True):
            assert hit.score == pytest.approx(scores[place], abs=1e-5)
        assert got == sorted(got, key=lambda place: (-result[got.index(place)].score, place))
        assert len(set(got)) == len(got)

    def _check_namespaces(
        self,
        result: Any,
        prefix: tuple[str, ...],
        suffix: tuple[str, ...],
        depth: int | None,
        limit: int,
        offset: int,
    ) -> None:
        assert result == self.model.namespaces(prefix, suffix, depth)[offset : offset + limit]

    # ------------------------------------------------------------------ life cycle

    def do_sweep(self) -> None:
        assert self.store.sweep_ttl() == self.model.sweep()

    def do_reopen(self) -> None:
        self._again(self.places.open)

    def do_fresh(self) -> None:
        """Open with nothing but the log."""
        self._again(self.places.fresh)

    def _again(self, open_: OpenStore) -> None:
        """What is in memory ends with its store, so that store is kept, and only checked."""
        calls = self.embedder.calls
        if self.places.can_reopen:
            self.store.close()
            self.store = self._open(open_)
        self.check_all()
        assert self.embedder.calls == calls

    def check_all(self) -> None:
        self._check_search(self.store.search((), limit=10**6, refresh_ttl=False), (), None, 10**6, 0, None)
        self._check_namespaces(self.store.list_namespaces(limit=10**6), (), (), None, 10**6, 0)
        for (namespace, key), kept in self.model.kept.items():
            past = self.store.history(namespace, key)
            numbers = [version.version for version in past if not version.rejected]
            assert numbers == list(range(kept.version, 0, -1))
            offsets = [version.offset for version in past]
            assert offsets == sorted(offsets, reverse=True)
            if kept.live:
                newest = next(version for version in past if not version.rejected)
                assert newest.kind == "put"
                assert newest.value == kept.value


def _us(moment: datetime | None) -> int:
    assert moment is not None
    return round(moment.timestamp() * 1_000_000)


def _is_none(result: Any) -> None:
    assert result is None


# ---------------------------------------------------------------------- random operations


def some_value(chance: random.Random) -> dict[str, Any]:
    value: dict[str, Any] = {"n": chance.randrange(4)}
    if chance.random() < 0.8:
        value["t"] = chance.choice(TEXTS)
    if chance.random() < 0.4:
        value["tags"] = [chance.choice(TEXTS) for _ in range(chance.randrange(3))]
    return value


def some_namespace(chance: random.Random, least: int = 1) -> tuple[str, ...]:
    return tuple(chance.choice(LABELS) for _ in range(chance.randint(least, 3)))


def some_index(chance: random.Random) -> Any:
    return chance.choice([None, None, None, False, ["t"], ["tags[*]"], []])


def some_write(chance: random.Random) -> Op:
    place = (some_namespace(chance), chance.choice(KEYS))
    if chance.random() < 0.25:
        return ("delete", *place)
    ttl = chance.choice([None, None, None, FOREVER, AT_ONCE])
    return ("put", *place, some_value(chance), some_index(chance), ttl)


def some_read(chance: random.Random) -> Op:
    kind = chance.random()
    if kind < 0.3:
        return ("get", some_namespace(chance), chance.choice(KEYS), chance.random() < 0.5)
    page = (chance.choice([0, 1, 3, 10, 1000]), chance.choice([0, 0, 1, 5]))
    if kind < 0.8:
        wanted = chance.choice([None, None, {"n": 1}, {"n": {"$gte": 2}}, {"t": "tea"}, {"n": 9}])
        query = chance.choice([None, None, *TEXTS])
        return ("search", some_namespace(chance, 0), wanted, *page, query)
    pattern = lambda: tuple(chance.choice([*LABELS, "*"]) for _ in range(chance.randrange(3)))  # noqa: E731
    return ("namespaces", pattern(), pattern(), chance.choice([None, None, 1, 2, 5]), *page)


def some_op(chance: random.Random, reopening: float = 0.01) -> Op:
    kind = chance.random()
    if kind < reopening:
        return (chance.choice(["reopen", "fresh"]),)
    if kind < reopening + 0.01:
        return ("sweep",)
    if kind < 0.5:
        return some_write(chance)
    if kind < 0.56:
        place = (some_namespace(chance), chance.choice(KEYS))
        return ("put_if", *place, some_value(chance), chance.choice([None, None, 0, 1, 2]))
    if kind < 0.70:
        parts = [
            some_write(chance) if chance.random() < 0.6 else some_read(chance)
            for _ in range(chance.randrange(6))
        ]
        return ("batch", parts, chance.random() < 0.5)
    return some_read(chance)
