"""Processes that join and leave a topic of many partitions while it is written to: S26."""

from __future__ import annotations

from eventstore import EventStore, Position
from projector.digests import digest
from projector.integrity import verify
from tests.kafka.broker import Broker
from tests.kafka.kit import NewPlace, runtime_of, within
from tests.kafka.members import COUNTER, USERS, Member

ROUNDS = 10


def test_every_event_counts_once_whoever_joins_and_leaves(kafka_broker: Broker, new_place: NewPlace) -> None:
    """Two stay, one of them with a slow disk; ten come and go, every other one killed. All share a folder."""
    place = new_place(kafka_broker, partitions=8)
    views = place.folder / "shared"
    members = [Member(place.url, views, "quick"), Member(place.url, views, "slow", 0.04)]
    guests: list[Member] = []
    try:
        for number in range(ROUNDS):
            guest = Member(place.url, views, f"guest{number}")
            guests.append(guest)
            # A directory that somebody has is passed over; that of who has left is taken over.
            assert {member.view for member in members} == {"0", "1"} and guest.view == "2"
            assert within(30, lambda guest=guest: sum(guest.acknowledged.values()) > 30)
            if number % 2:
                guest.kill()
            else:
                assert guest.leave() == 0, "waited for a file lock"
        written = [member.ask("stop") for member in members]
        last = place.open("last")
        end = runtime_of(last).log.high_water_mark()
        assert all(end.covers(Position.of(each)) for each in written)
        passed_on = Member(place.url, views, "late")
        members.append(passed_on)
        assert passed_on.view == "2" and passed_on.ask("stop")
        end = runtime_of(last).log.high_water_mark()
        last.wait_for(end, timeout=30)
        found = digest(last)
        assert [member.ask("digest", str(end)) for member in members] == [found] * 3
        assert verify(last).exit_code == 0
        assert [member.leave() for member in members] == [0, 0, 0]
    finally:
        for member in (*members, *guests):
            member.kill()
    check_each_memory(last, [*members, *guests])
    check_the_counter(last, sum(member.counted for member in (*members, *guests)))


def check_each_memory(store: EventStore, members: list[Member]) -> None:
    """Nothing twice, nothing left out, and in order; what was acknowledged is there."""
    for member in members:
        for user in range(USERS):
            namespace = (f"user{user}",)
            versions = store.history(namespace, member.name)[::-1]
            numbers = [version.value["n"] for version in versions if version.value]
            assert numbers == [version.version for version in versions] == [*range(1, len(versions) + 1)]
            acknowledged = member.acknowledged.get(namespace[0], 0)
            assert acknowledged <= len(numbers) <= acknowledged + 1, "only the last may be without an answer"


def check_the_counter(store: EventStore, counted: int) -> None:
    versions = [version for version in store.history(*COUNTER)[::-1] if not version.rejected]
    assert [version.value["n"] for version in versions if version.value] == [*range(1, len(versions) + 1)]
    assert counted <= len(versions) <= counted + ROUNDS
