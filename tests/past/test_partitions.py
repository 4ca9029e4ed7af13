"""The past of a log with several partitions: positions are cut per partition, orders are one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eventstore import EventStore, Position
from eventstore.errors import InvalidInput, InvalidType
from eventstore.log import StoredRecord
from tests.past.replay import Replayed, answers, records_of
from tests.past.test_as_of import PLACES, act
from tests.scenarios.kit import TinyEmbedder, index_of

PARTITIONS = 3


def spread(records: list[StoredRecord], chance: random.Random) -> list[StoredRecord]:
    """The same records on several partitions by their first label, arriving interleaved."""
    queues: list[list[StoredRecord]] = [[] for _ in range(PARTITIONS)]
    for record in records:
        number = sum(record.key.lstrip(b"\x00").partition(b"\x00")[0]) % PARTITIONS
        queues[number].append(
            record._replace(partition=number, offset=len(queues[number]), session=bytes(16))
        )
    arrived = []
    while any(queues):
        queue = chance.choice([queue for queue in queues if queue])
        # One writer, whose sequence is its own on every partition.
        arrived.append(queue.pop(0))
    return [each._replace(sequence=each.offset + 1) for each in arrived]


@pytest.fixture
def records(tmp_path: Path) -> list[StoredRecord]:
    chance = random.Random(11)
    with EventStore.open(tmp_path / "store", index=index_of(TinyEmbedder())) as store:
        for _ in range(120):
            act(store, chance)
        found = spread(records_of(store), chance)
    assert all(any(each.partition == number for each in found) for number in range(PARTITIONS))
    return found


@pytest.fixture
def whole(records: list[StoredRecord], monkeypatch: pytest.MonkeyPatch) -> Iterator[Replayed]:
    replayed = Replayed(monkeypatch, PARTITIONS, index=index_of(TinyEmbedder()))
    replayed.replay(records)
    yield replayed
    replayed.close()


def test_as_of_any_cut(whole: Replayed, records: list[StoredRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(2)
    end = whole.runtime.log.high_water_mark()
    for _ in range(12):
        cut = Position(*(chance.randint(0, offset) for offset in end))
        fresh = Replayed(monkeypatch, PARTITIONS, index=index_of(TinyEmbedder()))
        try:
            before = [each for each in records if each.offset < cut[each.partition]]
            if before:
                fresh.replay(before)
            expected = answers(fresh.store, PLACES)
            for moment in (cut, str(cut)):
                assert answers(whole.store.as_of(moment), PLACES) == expected
        finally:
            fresh.close()


def test_the_feed_resumes_from_every_change(whole: Replayed) -> None:
    changes = list(whole.store.changes(follow=False))
    assert len({(each.partition, each.offset) for each in changes}) == len(changes) > 80
    for at in range(0, len(changes), 9):
        rest = list(whole.store.changes(start=changes[at].position, follow=False))
        assert rest == changes[at + 1 :]
    by_memory: dict[Any, list[int]] = {}
    for each in changes:
        by_memory.setdefault((each.namespace, each.key), []).append(each.offset)
    assert all(offsets == sorted(offsets) for offsets in by_memory.values())


def test_events_have_one_order(whole: Replayed) -> None:
    events = whole.store.events()
    places = [(each.at, each.partition, each.offset) for each in events]
    assert places == sorted(places)
    paged = page = whole.store.events(limit=7)
    while page:
        page = whole.store.events(limit=7, after=page[-1])
        paged = paged + page
    assert paged == events
    with pytest.raises(InvalidType, match="takes a Version"):
        whole.store.events(after=3)
    with pytest.raises(InvalidInput):
        whole.store.as_of(3)
