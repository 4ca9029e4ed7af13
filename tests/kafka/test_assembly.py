"""Records of an atomic batch come out together, in order, once; the position passes none that did not."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.log.base import StoredRecord
from eventstore.log.kafka.assembly import Assembly
from eventstore.log.kafka.stamps import Incoming
from eventstore.log.position import Position


def incoming(partition: int, offset: int, batch: bytes | None = None, size: int = 1) -> Incoming:
    record = StoredRecord(partition, offset, 0, 0, bytes(16), 1, b"k", b"{}", ())
    return Incoming(record, batch, size)


Topic = list[list[Incoming]]


@st.composite
def topics(draw: st.DrawFn) -> Topic:
    """Committed batches spread over partitions; markers and aborted records leave gaps in the offsets."""
    partitions = draw(st.integers(1, 4))
    chance = random.Random(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.sampled_from([1, 1, 1, 2, 3, 5]), max_size=25))
    # Writers run beside each other, so their records interleave in every partition.
    queue: list[tuple[bytes | None, int]] = []
    for number, size in enumerate(sizes):
        name = None if size == 1 else b"%d" % number
        queue += [(name, size)] * size
    span = draw(st.integers(0, 8))
    queue = [each for _, each in sorted(enumerate(queue), key=lambda pair: pair[0] + chance.uniform(0, span))]
    topic: Topic = [[] for _ in range(partitions)]
    next_offset = [0] * partitions
    for name, size in queue:
        partition = chance.randrange(partitions)
        next_offset[partition] += chance.choice([0, 0, 0, 1, 2])
        topic[partition].append(incoming(partition, next_offset[partition], name, size))
        next_offset[partition] += 1
    return topic


@settings(max_examples=400, deadline=None)
@given(topics(), st.integers(0, 2**32))
def test_any_interleaving_and_any_split(topic: Topic, seed: int) -> None:
    chance = random.Random(seed)
    assembly = Assembly(Position.start(len(topic)))
    fed = [0] * len(topic)
    out: list[Incoming] = []
    by_place = {(each.stored.partition, each.stored.offset): each for part in topic for each in part}
    position = assembly.position
    while any(fed[number] < len(part) for number, part in enumerate(topic)):
        number = chance.randrange(len(topic))
        part = topic[number]
        count = chance.randrange(0, 4)
        taken = part[fed[number] : fed[number] + count]
        assembly.add(number, taken)
        fed[number] += len(taken)
        # The client stands before the next record, or anywhere in the gap in front of it.
        if fed[number]:
            low = part[fed[number] - 1].stored.offset + 1
            high = part[fed[number]].stored.offset if fed[number] < len(part) else low + 2
            assembly.moved(number, chance.randint(low, high))
        for chunk in assembly.ready():
            assert chunk.position.covers(position)
            position = chunk.position
            names: dict[bytes, int] = {}
            for record in chunk.records:
                each = by_place[record.partition, record.offset]
                out.append(each)
                if each.batch is not None:
                    names[each.batch] = names.get(each.batch, 0) + 1
            for name, seen in names.items():
                assert seen == next(each.size for each in by_place.values() if each.batch == name)
            done = {(each.stored.partition, each.stored.offset) for each in out}
            for at in by_place:
                assert (at in done) == (at[1] < position[at[0]])
        assert assembly.position == position
    assert len(out) == len(by_place)
    for number, part in enumerate(topic):
        assert [each for each in out if each.stored.partition == number] == part
    assert assembly.incomplete is None


def test_each_record_at_once_when_it_is_its_own() -> None:
    assembly = Assembly(Position(5, 0))
    assembly.add(0, [incoming(0, 5), incoming(0, 6)])
    chunks = assembly.ready()
    assert [len(chunk.records) for chunk in chunks] == [1, 1]
    assert [str(chunk.position) for chunk in chunks] == ["6,0", "7,0"]


def test_batches_that_cross_go_together() -> None:
    assembly = Assembly(Position(0, 0))
    a, b = b"a", b"b"
    assembly.add(0, [incoming(0, 0, a, 2), incoming(0, 1, b, 2)])
    assert assembly.ready() == []
    assembly.add(1, [incoming(1, 0, b, 2)])
    assert assembly.ready() == []
    assert assembly.incomplete is not None
    assembly.add(1, [incoming(1, 1, a, 2), incoming(1, 2)])
    first, second = assembly.ready()
    assert [(each.partition, each.offset) for each in first.records] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(each.partition, each.offset) for each in second.records] == [(1, 2)]


def test_markers_alone_move_the_position() -> None:
    assembly = Assembly(Position(3, 3))
    assembly.moved(1, 7)
    (chunk,) = assembly.ready()
    assert chunk.records == [] and chunk.position == Position(3, 7)
    assert assembly.ready() == []


def test_a_long_backlog_of_batches_takes_time_in_proportion() -> None:
    assembly = Assembly(Position.start(2))
    for number in range(20_000):
        name = b"%d" % number
        for partition in range(2):
            assembly.add(partition, [incoming(partition, number, name, 2)])
    assert len(assembly.ready()) == 20_000
