"""Stores that list less than they hold, as real ones do, are read to the last memory all the same."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any, cast

import pytest
from langgraph.store.base import ListNamespacesOp, Op, PutOp, Result, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore

from eventstore.errors import InvalidConfig
from projector.transfer import listing, migrate
from tests.conftest import OpenStore
from tests.migration.test_postgres import told
from tests.scenarios.kit import warnings_in


class FewNamespaces(InMemoryStore):
    """Lists the namespaces of its first ten memories, as RedisStore does."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        found = super().batch(ops := list(ops))
        pairs = zip(ops, found, strict=True)
        return [cast(Any, each)[:10] if isinstance(op, ListNamespacesOp) else each for op, each in pairs]


class LooseOrder(InMemoryStore):
    """Pages of memories of one time come in another order each, as PostgresStore's may."""

    chance = random.Random(1)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return [
            self._search(op) if isinstance(op, SearchOp) else super(LooseOrder, self).batch([op])[0]
            for op in ops
        ]

    def _search(self, op: SearchOp) -> Any:
        whole = super().batch([op._replace(limit=10**6, offset=0)])[0]
        assert isinstance(whole, list)
        self.chance.shuffle(whole)
        return whole[op.offset : op.offset + op.limit]


class PrefixesAsText(InMemoryStore):
    """Finds ("u30",) under ("u3",)."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return [self._loosely(op) for op in ops]

    def _loosely(self, op: Op) -> Any:
        if isinstance(op, SearchOp) and op.namespace_prefix:
            whole: Any = super().batch([SearchOp((), limit=10**6)])[0]
            text = ".".join(op.namespace_prefix)
            under = [item for item in whole if ".".join(item.namespace).startswith(text)]
            return under[op.offset : op.offset + op.limit]
        if isinstance(op, ListNamespacesOp):
            op = op._replace(match_conditions=None)
        return super().batch([op])[0]


class Bounded(InMemoryStore):
    """Lists so many at the most, as Redis does unless told otherwise."""

    most = 300

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        for op in (ops := list(ops)):
            if isinstance(op, SearchOp) and max(op.limit, op.offset) > self.most:
                raise ValueError(f"LIMIT exceeds maximum of {self.most}")
        found = super().batch(ops)
        return [
            [] if isinstance(op, SearchOp) and op.offset == self.most else each
            for op, each in zip(ops, found, strict=True)
        ]


class Forgetful(InMemoryStore):
    """Counts memories that it then does not list."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        found = super().batch(ops := list(ops))
        return [
            [each for each in cast(list[SearchItem], page) if op.limit == 1 or each.key != "k7"]
            if isinstance(op, SearchOp)
            else page
            for op, page in zip(ops, found, strict=True)
        ]


def filled(store: InMemoryStore) -> InMemoryStore:
    store.batch([PutOp((f"u{n % 40}", *["deep"] * (n % 3)), f"k{n}", {"n": n}) for n in range(300)])
    return store


@pytest.mark.parametrize("kind", [FewNamespaces, LooseOrder, PrefixesAsText])
@pytest.mark.parametrize("prefix", [(), ("u3",)])
def test_all_are_read(
    kind: type[InMemoryStore], prefix: tuple[str, ...], open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PAGE", 4)
    source, store = filled(kind()), open_store()
    expected = {at: value for at, value in told(source).items() if at[0][: len(prefix)] == prefix}
    assert migrate(source, store, prefix=prefix).written == len(expected)
    assert told(store) == expected
    again = migrate(source, store, prefix=prefix)
    assert (again.read, again.written) == (len(expected), 0)


def test_a_store_that_counts_more_than_it_lists_is_told_of(
    open_store: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    assert migrate(filled(Forgetful()), open_store()).written == 299
    assert "counts 300 memories under no prefix and lists 299" in warnings_in(caplog)


def test_a_store_that_lists_only_so_many(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is enough, or it is said, and one prefix after the other goes."""
    monkeypatch.setattr(listing, "PAGE", 70)
    source, store = filled(Bounded()), open_store()
    monkeypatch.setattr(Bounded, "most", 302)
    assert migrate(source, store).written == 300
    monkeypatch.setattr(Bounded, "most", 299)
    with pytest.raises(
        InvalidConfig, match=r"lists no more than 299 memories under no prefix .*LIMIT exceeds"
    ):
        migrate(source, store)
    part = open_store(sub="part")
    for user in range(40):
        migrate(source, part, prefix=(f"u{user}",))
    assert told(part) == told(store)
