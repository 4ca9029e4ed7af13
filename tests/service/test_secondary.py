"""Catching up with another process's RocksDB: families agree, whatever was flushed in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from eventstore.errors import ViewDamaged
from projector.rocks import FAMILIES, Database, scan
from projector.secondary import Secondary, identity, look

NAMES = ("default", *FAMILIES)
CACHE = 1 << 20


class Owner:
    """Writes generations: every row of every family changes in each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = Database(path, CACHE)
        self.generation = 0

    def write(self) -> None:
        self.generation += 1
        batch = WriteBatch(raw_mode=True)
        for row in (b"a", b"b"):
            batch.put(row, b"%d" % self.generation)
            for name in FAMILIES:
                batch.put(row, b"%d" % self.generation, self.db.handles[name])
        self.db.default.write(batch)

    def flush(self, *names: str) -> None:
        for name in names:
            getattr(self.db, name).flush()

    def compact(self, name: str) -> None:
        getattr(self.db, name).compact_range(None, None)

    def reopen(self) -> None:
        self.db.close()
        self.db = Database(self.path, CACHE)


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path / "db")
    owner.write()
    yield owner
    owner.db.close()


def generations(secondary: Secondary[Database]) -> set[int]:
    return {int(value) for name in NAMES for _, value in scan(getattr(secondary.db, name), b"")}


def test_rows_flushed_before_they_were_read_are_noticed(owner: Owner) -> None:
    secondary = Secondary(owner.path, CACHE, owner.path.parent, Database)
    owner.write()
    assert secondary.is_behind()
    assert secondary.catch_up()
    assert generations(secondary) == {2}
    owner.write()
    owner.flush(*NAMES)
    assert not secondary.catch_up()
    secondary.close()
    secondary = Secondary(owner.path, CACHE, owner.path.parent, Database)
    assert generations(secondary) == {3}
    assert not secondary.is_behind()
    secondary.close()


def test_rows_that_were_read_before_they_were_flushed_need_no_new_one(owner: Owner) -> None:
    secondary = Secondary(owner.path, CACHE, owner.path.parent, Database)
    chosen = ("items", "recency", "vectors"), ("items", "history")
    for at in range(10):
        owner.write()
        assert secondary.catch_up()
        # The log of the write stays as long as any family has not been flushed.
        owner.flush(*chosen[at % 2])
        owner.compact("items")
        assert secondary.catch_up()
        assert generations(secondary) == {owner.generation}
    secondary.close()


@pytest.mark.parametrize("seed", range(8))
def test_families_agree_after_any_history(owner: Owner, seed: int) -> None:
    chance = random.Random(seed)
    secondary = Secondary(owner.path, CACHE, owner.path.parent, Database)
    reopened = 0
    for _ in range(100):
        act = chance.random()
        if act < 0.5:
            owner.write()
        elif act < 0.7:
            owner.flush(*chance.sample(NAMES, chance.randint(1, len(NAMES))))
        elif act < 0.75:
            owner.compact(chance.choice(NAMES))
        elif act < 0.77:
            owner.reopen()
        else:
            if secondary.is_behind() and not secondary.catch_up():
                secondary.close()
                secondary = Secondary(owner.path, CACHE, owner.path.parent, Database)
                reopened += 1
            assert generations(secondary) == {owner.generation}
    assert reopened
    secondary.close()


def test_it_stands_still_until_it_is_told_to_move(owner: Owner) -> None:
    secondary = Secondary(owner.path, CACHE, owner.path.parent, Database)
    for _ in range(20):
        owner.write()
        owner.flush(*NAMES)
        owner.compact("items")
    assert generations(secondary) == {1}
    secondary.close()


def test_a_database_that_was_made_again_has_another_identity(owner: Owner, tmp_path: Path) -> None:
    secondary = Secondary(owner.path, CACHE, owner.path.parent, Database)
    assert secondary.identity == identity(owner.path) is not None
    other = Owner(tmp_path / "other")
    assert identity(other.path) != secondary.identity
    other.db.close()
    secondary.close()


def test_where_there_is_nothing(tmp_path: Path) -> None:
    assert identity(tmp_path / "none") is None
    assert look(tmp_path / "none").logs == {}
    with pytest.raises(ViewDamaged):
        Secondary(tmp_path / "none", CACHE, tmp_path, Database)
