"""Expiry under clocks that step and zones that change, replayed a day later: S44."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from langgraph.store.base import PutOp

from eventstore import EventStore, Position
from eventstore.codec import decode
from eventstore.events import Kind
from eventstore.history import moment
from projector.digests import digest
from projector.integrity import verify
from projector.rebuild import rebuild
from tests.logs import Places, can_be_opened_twice, embedded_only
from tests.past.replay import answers, records_of
from tests.scenarios.kit import TinyEmbedder, index_of, python

MINUTE = 60_000_000
HOUR = 60 * MINUTE
USERS = ("a", "ab", "é")
KEYS = ("k", "", "\x00", "m")
PLACES = [((user,), key) for user in USERS for key in KEYS]


class Clock:
    """The clock of this process, which goes when it is told to, and is never read twice alike."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, start_us: int) -> None:
        self.us = start_us
        monkeypatch.setattr(time, "time_ns", self._tick)

    def _tick(self) -> int:
        self.us += 1
        return self.us * 1000

    def advance(self, us: int) -> None:
        self.us += us


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, time.time_ns() // 1000)


def act(store: EventStore, chance: random.Random) -> None:
    """A write, a read that refreshes, or a sweep."""
    kind = chance.random()
    namespace, key = chance.choice(PLACES)
    value = {"t": chance.choice(["tea", "rain"]), "n": chance.randrange(5)}
    ttl = chance.choice([None, 2, 10, 30, 90])
    if kind < 0.5:
        store.put(namespace, key, value, ttl=ttl)
    elif kind < 0.6:
        places = chance.sample(PLACES, 3)
        store.batch([PutOp(*place, value, ttl=ttl) for place in places])
    elif kind < 0.68:
        store.delete(namespace, key)
    elif kind < 0.9:
        store.get(namespace, key, refresh_ttl=True)
        store._expiry.flush()
    else:
        store.sweep_ttl()


class Kept(NamedTuple):
    """What the live store said once."""

    position: Position
    at: datetime
    in_step: bool
    """Whether the clock was not behind the log."""
    answers: dict[str, Any]


def live_through(store: EventStore, clock: Clock, chance: random.Random, count: int) -> Iterator[Kept]:
    """A few hours of use; halfway, the clock is set back by one."""
    latest = 0
    store.put(*PLACES[0], {"t": "tea"}, ttl=30)
    for number in range(count):
        if number == count // 2:
            clock.advance(-HOUR)
        clock.advance(chance.randrange(1, 8) * MINUTE)
        act(store, chance)
        clock.advance(MINUTE)
        kept_us = clock.us
        found = answers(store, PLACES)
        clock.advance(MINUTE)
        yield Kept(Position.of(store.status().applied), moment(kept_us), kept_us > latest, found)
        latest = max(latest, clock.us)


OPTIONS: dict[str, Any] = {"ttl": {"omit_expired": True, "refresh_on_read": True}}


@can_be_opened_twice
def test_the_past_looks_the_same_live_and_rebuilt_a_day_later(places: Places, clock: Clock) -> None:
    """At every position, and at every time that the log knows or that a clock showed."""
    store = places.open(index=index_of(TinyEmbedder()), **OPTIONS)
    kept, live = [], []
    for each in live_through(store, clock, random.Random(44), 10 if places.kind == "kafka" else 100):
        kept.append(each)
        live.append(answers(store.as_of(each.position), PLACES))
    moments: list[Any] = [each.position for each in kept]
    moments += [each.at for each in kept if places.kind == "embedded"]
    moments += [store.as_of(each.position).at for each in kept if any(each.position)]
    live += [answers(store.as_of(each), PLACES) for each in moments[len(live) :]]
    before = digest(store)
    clock.advance(24 * HOUR)
    assert [answers(store.as_of(each), PLACES) for each in moments] == live
    fresh = places.fresh(index=index_of(TinyEmbedder()), **OPTIONS)
    assert digest(fresh) == before
    assert [answers(fresh.as_of(each), PLACES) for each in moments] == live
    rebuild(store)
    assert digest(store) == before and verify(store).exit_code == 0
    assert [answers(store.as_of(each), PLACES) for each in moments] == live
    shown = {len(each["all"]) for each in live}
    assert len(shown) > 2, "memories came and went"


@embedded_only
def test_a_clock_in_step_with_the_log_showed_what_its_past_shows(places: Places, clock: Clock) -> None:
    store = places.open(index=index_of(TinyEmbedder()), **OPTIONS)
    kept = [*live_through(store, clock, random.Random(45), 120)]
    clock.advance(24 * HOUR)
    compared = 0
    for number, each in enumerate(kept):
        later = (after.position for after in kept[number:] if after.position != each.position)
        position = next(later, None)
        # Events of a clock that is behind have the time of the last one before.
        if each.in_step and (position is None or store.as_of(position).at > each.at):
            assert answers(store.as_of(each.at), PLACES) == each.answers, each.at
            compared += 1
    assert 60 < compared < 119, "the clock was behind the log for a while"


@can_be_opened_twice
def test_a_sweep_took_what_had_expired_by_its_own_time(places: Places, clock: Clock) -> None:
    """So its cutoff can be read off the log: no expiry that it names lies behind its stamp."""
    store = places.open(**OPTIONS)
    chance = random.Random(46)
    for number in range(25 if places.kind == "kafka" else 150):
        if number % 10 == 5:
            clock.advance(-HOUR if number % 20 == 5 else 2 * HOUR)
        clock.advance(3 * MINUTE)
        act(store, chance)
        if number % 4 == 0:
            store.sweep_ttl()
    found = [(record, decode(record)) for record in records_of(store)]
    swept = [(record, event) for record, event in found if event.kind is Kind.EXPIRE]
    assert len(swept) > 3
    assert all(0 < event.expires_us <= record.time_us for record, event in swept)


@can_be_opened_twice
def test_order_follows_positions_when_the_clock_steps_back(places: Places, clock: Clock) -> None:
    store = places.open(**OPTIONS)
    for number in range(12):
        clock.advance(-HOUR if number % 3 == 0 else MINUTE)
        store.put(("a",), "k", {"n": number}, ttl=30)
    newest_first = [version.value["n"] for version in store.history(("a",), "k") if version.value]
    assert newest_first == [*range(12)][::-1]
    assert [event.value["n"] for event in store.events(("a",)) if event.value] == [*range(12)]
    assert [change.value["n"] for change in store.changes(("a",), follow=False)] == [*range(12)]
    times = [version.updated_at for version in store.history(("a",), "k")]
    assert times == sorted(times, reverse=True) and len(set(times)) == 12
    assert store.get(("a",), "k").value == {"n": 11}
    clock.advance(24 * HOUR)
    fresh = places.fresh(**OPTIONS)
    assert digest(fresh) == digest(store)
    for offset in range(12):
        version = store.history(("a",), "k")[11 - offset]
        position = Position.start(len(store.position)).advanced(version.partition, version.offset + 1)
        found = fresh.as_of(position).get(("a",), "k")
        assert found is None or found.value == {"n": offset}


IN_ZONES = """
import json, os, sys, time
from datetime import UTC, datetime, timedelta
from eventstore import EventStore
from projector.digests import digest

def zone(name):
    os.environ["TZ"] = name
    time.tzset()

folder, views, writes, *zones = sys.argv[1:]
zone(zones[0])
options = {"ttl": {"omit_expired": True}}
with EventStore.open(folder, views=views, **options) as store:
    if int(writes):
        for number, name in enumerate(zones):
            zone(name)
            store.put(("a",), f"k{number}", {"n": number}, ttl=0.005)
            store.put(("a",), f"kept{number}", {"n": number}, ttl=600)
        time.sleep(0.5)
        zone(zones[0])
        store.put(("b",), "later", {})
        zone(zones[-1])
        store.sweep_ttl()
    told = []
    events = store.events()
    for event in events:
        local = event.at.astimezone()
        for then in (store.as_of(event.offset + 1), store.as_of(local)):
            zone(zones[len(told) % len(zones)])
            told.append([str(then.position), then.at.isoformat(), [item.dict() for item in then.search(())]])
    told.append([event.model_dump(mode="json") for event in events])
    print(json.dumps([told, digest(store), [item.dict() for item in store.search((), refresh_ttl=False)]],
                     default=datetime.isoformat))
"""


def test_the_zone_of_the_process_changes_nothing(tmp_path: Path) -> None:
    """It is changed while memories are written and expire, and others replay the log in other zones."""
    folder = tmp_path / "zones"

    def told(views: str, writes: int, *zones: str) -> Any:
        done = python(IN_ZONES, folder, tmp_path / views, writes, *zones)
        assert not done.returncode, done.stderr
        return json.loads(done.stdout)

    first = told("views", 1, "Asia/Kolkata", "America/St_Johns", "Pacific/Kiritimati", "UTC")
    assert told("utc", 0, "UTC") == told("far", 0, "Pacific/Kiritimati", "Pacific/Pago_Pago") == first
    events = first[0][-1]
    assert {event["kind"] for event in events} == {"put", "expire"}
    assert len(first[2]) == 5
