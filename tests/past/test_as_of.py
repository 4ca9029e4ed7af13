"""The store as of a moment answers as it did then: S44 and S45."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.embeddings import Embeddings
from langgraph.store.base import GetOp, PutOp, SearchOp

from eventstore import EventStore, Position, VersionConflict, acting_as
from eventstore.errors import InvalidInput, InvalidType, NoSuchMoment, ReadOnlyStore, StoreClosed
from eventstore.history import microseconds, moment
from tests.logs import OpenStore, Places, can_be_opened_twice, embedded_only
from tests.past.replay import Replayed, answers, records_of, seen
from tests.properties.model import some_index, some_namespace, some_value, some_write
from tests.scenarios.kit import TinyEmbedder, index_of, runtime_of

KEYS = ("k", "", "\x00")
PLACES = [((label,), key) for label in ("a", "ab", "é", "a\x01") for key in KEYS]


def some_place(chance: random.Random) -> tuple[tuple[str, ...], str]:
    return chance.choice(PLACES) if chance.random() < 0.6 else (some_namespace(chance), chance.choice(KEYS))


def put_op(what: str, *rest: Any) -> PutOp:
    return PutOp(*rest, None) if what == "delete" else PutOp(*rest)


def act(store: EventStore, chance: random.Random) -> None:
    """One random operation of any kind that writes, by one of two actors."""
    with acting_as(chance.choice("xy")):
        write(store, chance)


def write(store: EventStore, chance: random.Random) -> None:
    kind = chance.random()
    namespace, key = some_place(chance)
    if kind < 0.5:
        ttl = chance.choice([None, None, 1000.0, 1e-7, 0.0005])
        store.put(namespace, key, some_value(chance), some_index(chance), ttl=ttl)
    elif kind < 0.62:
        store.delete(namespace, key)
    elif kind < 0.72:
        store.batch([put_op(*some_write(chance)) for _ in range(chance.randint(2, 4))])
    elif kind < 0.82:
        with contextlib.suppress(VersionConflict):
            store.put(namespace, key, some_value(chance), expected_version=chance.randrange(4))
    elif kind < 0.88:
        store.get(namespace, key, refresh_ttl=True)
        store._expiry.flush()
    elif kind < 0.91:
        store.sweep_ttl()
    elif kind < 0.97:
        versions = [v for v in store.history(namespace, key) if v.value is not None and not v.rejected]
        if versions:
            store.restore(namespace, key, chance.choice(versions).version)
    else:
        store.revert(actor=chance.choice("xy"), dry_run=False)


# ---------------------------------------------------------------------- equal to a replay


def check_every_position(
    places: Places, sub: str, monkeypatch: pytest.MonkeyPatch, seed: int, operations: int, omits: bool
) -> None:
    chance = random.Random(seed)
    options: dict[str, Any] = {"index": index_of(TinyEmbedder()), "ttl": {"omit_expired": omits}}
    store = places.open(sub=sub, config={"segment_bytes": 64 * 1024}, **options)
    replayed = None
    position = Position.start(places.partitions)
    try:
        for _ in range(operations):
            act(store, chance)
        records = records_of(store)
        replayed = Replayed(monkeypatch, places.partitions, **options)
        for record in records:
            replayed.replay([record])
            position = position.advanced(record.partition, record.offset + 1)
            then = store.as_of(position)
            places = chance.sample(PLACES, 4)
            expected = answers(replayed.store, places)
            for question, answer in answers(then, places).items():
                assert answer == expected[question], (seed, position, question)
    finally:
        store.close()
        if replayed is not None:
            replayed.close()


@pytest.mark.parametrize("omits", [False, True])
def test_every_position_of_two_hundred_operations(
    places: Places, monkeypatch: pytest.MonkeyPatch, omits: bool
) -> None:
    """Of fewer on a topic, where the broker is asked for each moment."""
    operations = 12 if places.kind == "kafka" else 200
    check_every_position(places, "store", monkeypatch, 45 + omits, operations, omits)


def test_short_histories(places: Places) -> None:
    number = itertools.count()

    @settings(
        max_examples=2 if places.kind == "kafka" else 8,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(seed=st.integers(0, 2**32), omits=st.booleans())
    def check(seed: int, omits: bool) -> None:
        with pytest.MonkeyPatch.context() as patched:
            check_every_position(places, f"store-{next(number)}", patched, seed, 15, omits)

    check()


@pytest.mark.parametrize("omits", [False, True])
def test_times_give_what_the_live_store_gave(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, omits: bool
) -> None:
    """S45: a dump is kept after each of 100 operations and asked for by its time at the end."""
    chance = random.Random(4 + omits)
    store = open_store(index=index_of(TinyEmbedder()), ttl={"omit_expired": omits})
    kept = []
    for _ in range(100):
        act(store, chance)
        at_us = time.time_ns() // 1000
        if not any(store.position):
            continue
        with monkeypatch.context() as frozen:
            frozen.setattr("eventstore.expiry.now_us", lambda at_us=at_us: at_us)
            kept.append((moment(at_us), answers(store, PLACES[:4])))
    for at, expected in kept:
        assert answers(store.as_of(at), PLACES[:4]) == expected
    zone = timezone(timedelta(hours=-7))
    at, expected = kept[50]
    assert answers(store.as_of(at.astimezone(zone)), PLACES[:4]) == expected


class Noise(Embeddings):
    """Vectors of no structure, so that every bit of a score counts."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        seed = sum(ord(letter) << 5 * at for at, letter in enumerate(text)) % 2**32
        return np.random.default_rng(seed).standard_normal(48).tolist()


@pytest.mark.parametrize("distance", ["cosine", "l2", "inner_product"])
def test_scores_are_the_same_to_the_last_bit(open_store: OpenStore, distance: str) -> None:
    index = {"dims": 48, "embed": Noise(), "fields": ["t"], "distance_type": distance, "model": "noise"}
    store = open_store(index=index)
    users = [(f"u{number}",) for number in range(4)]
    store.batch([PutOp(user, str(at), {"t": f"{user} {at}", "n": at}) for user in users for at in range(150)])
    position = store.position
    ask: list[dict[str, Any]] = [
        {"query": "x", "limit": 600},
        {"query": "y", "filter": {"n": {"$lt": 9}}, "limit": 20},
    ]
    prefixes = [(), users[1]]
    live = [seen(store.search(prefix, **each)) for prefix in prefixes for each in ask]
    store.batch([PutOp(user, str(at), None) for user in users for at in range(0, 150, 2)])
    then = store.as_of(position)
    assert [seen(then.search(prefix, **each)) for prefix in prefixes for each in ask] == live
    assert len(live[0]) == 600


# ---------------------------------------------------------------------- which moment


def test_before_the_first_event_there_is_an_empty_store(open_store: OpenStore) -> None:
    store = open_store(index=index_of(TinyEmbedder()), partitions=1)
    for _ in range(2):
        then = store.as_of(0)
        assert then.search(()) == [] and then.search((), query="tea") == []
        assert then.get(("a",), "k") is None and then.list_namespaces() == []
        store.put(("a",), "k", {"t": "tea"})


def test_an_empty_log_has_no_times(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    with pytest.raises(NoSuchMoment, match="no event at or before"):
        store.as_of(datetime.now(UTC))
    assert store.events() == [] and list(store.changes(follow=False)) == []
    assert store.diff(0, 0).added == []


def test_moments_the_log_does_not_hold(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    before = datetime.now(UTC) - timedelta(seconds=1)
    for number in range(3):
        store.put(("a",), "k", {"n": number})
    with pytest.raises(NoSuchMoment, match="position 4 lies beyond the end of the log, which is 3"):
        store.as_of(4)
    with pytest.raises(NoSuchMoment, match="position 0 is the store before the first one"):
        store.as_of(before)
    with pytest.raises(NoSuchMoment, match="still to come; the log ends at 3"):
        store.as_of(datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(InvalidInput, match="time zone"):
        store.as_of(datetime.now())
    with pytest.raises(InvalidInput, match="is no position"):
        store.as_of("yesterday")
    with pytest.raises(InvalidInput):
        store.as_of(Position(1, 2))
    with pytest.raises(InvalidType):
        store.as_of(cast(Any, 1.5))
    for same in (3, "3", Position(3), store.position, datetime.now(UTC)):
        found = store.as_of(same).get(("a",), "k")
        assert found is not None and found.value == {"n": 2}


@embedded_only
def test_times_are_found_across_segments(open_store: OpenStore, tmp_path: Path) -> None:
    """The position of each time is the one after the last record appended by then."""
    chance = random.Random(1)
    store = open_store(config={"segment_bytes": 4096})
    for number in range(200):
        ops = [PutOp(("a",), str(at), {"n": number, "text": "x" * 40}) for at in range(chance.randint(1, 3))]
        store.batch(ops)
    assert len(list((tmp_path / "store" / "log").glob("*.seg"))) > 10
    records = records_of(store)
    log = runtime_of(store).log
    times = [record.appended_us for record in records]
    for at_us in (0, times[0] - 1, *times, times[-1] + 1):
        for us in (at_us, at_us + 1):
            expected = sum(1 for each in times if each <= us)
            assert log.position_at(us) == Position(expected)


def test_the_moment_of_a_position_is_that_of_the_event_before_it(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    store.put(("a",), "k", {})
    store.put(("a",), "k", {})
    newest, oldest = store.history(("a",), "k")
    assert store.as_of(1).at == oldest.at and store.as_of(2).at == newest.at
    assert store.as_of(newest.at).position == Position(2)
    assert microseconds(newest.at, "at") == round(newest.at.timestamp() * 1_000_000)


def test_the_moment_of_a_position_is_asked_of_the_log_once(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For all partitions together: each look at a topic is a connection."""
    store = open_store(ttl={"omit_expired": True})
    positions = [store.position]
    for number in range(6):
        store.put((f"u{number}",), "k", {}, ttl=1000)
        store.batch([PutOp((f"u{user}",), "b", {}) for user in range(number)])
        positions.append(Position.of(store.status().applied))
    records = records_of(store)
    log, looks = runtime_of(store).log, []

    def chunks(*arguments: Any, **options: Any) -> Any:
        looks.append(arguments)
        return type(log).chunks(log, *arguments, **options)

    monkeypatch.setattr(log, "chunks", chunks)
    for position in positions:
        for _ in range(3):
            before = [each.appended_us for each in records if each.offset < position[each.partition]]
            assert microseconds(store.as_of(position).at, "at") == max(before, default=0)
            assert store.as_of(position).search((), filter={"n": 1}) == []
            assert store.diff(position, position).added == []
    assert len(looks) <= len(positions) - 1


# ---------------------------------------------------------------------- read-only


def test_the_past_cannot_be_written(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    store.put(("a",), "k", {"n": 1})
    then = store.as_of(store.position)
    for write in (
        lambda: then.put(("a",), "k", {"n": 2}),
        lambda: then.delete(("a",), "k"),
        lambda: then.batch([GetOp(("a",), "k"), PutOp(("a",), "k", {"n": 2})]),
        lambda: asyncio.run(then.aput(("a",), "k", {"n": 2})),
    ):
        with pytest.raises(ReadOnlyStore, match="as of 1"):
            write()
    assert store.status().end == "1"


def test_reading_the_past_refreshes_nothing(open_store: OpenStore) -> None:
    store = open_store(ttl={"refresh_on_read": True}, partitions=1)
    store.put(("a",), "k", {"n": 1}, ttl=1)
    then = store.as_of(store.position)
    time.sleep(0.02)
    assert then.get(("a",), "k", refresh_ttl=True) and then.search((), refresh_ttl=True)
    store._expiry.flush()
    assert store.status().end == "1"


def test_a_refresh_moves_the_expiry_of_the_past_too(open_store: OpenStore) -> None:
    store = open_store(ttl={"omit_expired": True}, partitions=1)
    store.put(("a",), "k", {"n": 1}, ttl=0.01)
    time.sleep(0.3)
    assert store.get(("a",), "k", refresh_ttl=True) is not None
    store._expiry.flush()
    time.sleep(0.4)
    assert store.get(("a",), "k", refresh_ttl=False) is not None, "beyond the expiry the put gave it"
    store.put(("b",), "k", {})
    assert store.status().end == "3"
    assert store.as_of(3).get(("a",), "k") is not None and len(store.as_of(3).search(("a",))) == 1
    assert store.as_of(3).list_namespaces() == [("a",), ("b",)]
    time.sleep(0.5)
    assert store.as_of(datetime.now(UTC)).get(("a",), "k") is None
    assert store.as_of(datetime.now(UTC)).list_namespaces() == [("b",)]


def test_the_past_of_a_coroutine(open_store: OpenStore) -> None:
    store = open_store(index=index_of(TinyEmbedder()))
    store.put(("a",), "k", {"t": "tea"})
    position = store.position
    store.put(("a",), "k", {"t": "coffee"})

    async def main() -> None:
        then = store.as_of(position)
        got, found = await then.abatch([GetOp(("a",), "k"), SearchOp((), query="tea")])
        assert got.value == found[0].value == {"t": "tea"}  # type: ignore[union-attr, index]
        assert await then.alist_namespaces() == [("a",)]
        assert (await store.adiff(position, store.position)).changed[0].fields[0].after == "coffee"

    asyncio.run(main())


def test_the_past_ends_with_its_store(open_store: OpenStore) -> None:
    store = open_store(partitions=1)
    store.put(("a",), "k", {})
    then = store.as_of(1)
    store.close()
    with pytest.raises(StoreClosed):
        then.get(("a",), "k")
    with pytest.raises(StoreClosed):
        store.as_of(1)


@can_be_opened_twice
def test_the_past_is_seen_from_another_process(places: Places) -> None:
    """A second view of the log, with another directory, answers alike."""
    store = places.open(index=index_of(TinyEmbedder()), partitions=1)
    for number in range(20):
        store.put(("a",), str(number % 7), {"t": "tea" if number % 2 else "rain", "n": number})
    other = places.fresh(index=index_of(TinyEmbedder()))
    for position in range(0, 21, 5):
        assert answers(other.as_of(position), PLACES) == answers(store.as_of(position), PLACES)
