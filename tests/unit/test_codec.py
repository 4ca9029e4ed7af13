"""Events to records and back: everything comes back, equal events give equal bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.codec import TOUCH_PREFIX, decode, encode
from eventstore.errors import UndecodableEvent
from eventstore.events import Embedded, Event, Kind, Provenance, new_id
from eventstore.keys import MODEL_KEY, encode_item, memory_of
from eventstore.log.base import Record, StoredRecord

KEY = encode_item(("a", "ü"), "k\x00")
texts = st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


def stored(record: Record, offset: int = 7) -> StoredRecord:
    """As it is read back: bytes, without what its writer knows of them."""
    return StoredRecord(0, offset, 1, 1, bytes(16), 1, record.key, record.value, tuple(record.headers))


def embedded(paths: list[str], dims: int) -> Embedded:
    return Embedded(f"some/model/{dims}", dims, tuple(paths), bytes(range(4)) * dims * len(paths))


puts = st.builds(
    lambda **parts: Event(Kind.PUT, KEY, new_id(), **parts),
    value=st.binary(min_size=2, max_size=40),
    provenance=st.builds(Provenance, texts, texts, texts, texts, texts),
    ttl=st.none() | st.floats(1e-6, 1e9),
    indexing=st.sampled_from([None, False, (), ("a.b", "$")]),
    embedded=st.none()
    | st.builds(embedded, st.lists(st.text(max_size=5), min_size=1, max_size=3), st.integers(1, 4)),
    expected_version=st.none() | st.integers(0, 2**40),
    omits_expired=st.booleans(),
)


@settings(max_examples=100, deadline=None)
@given(puts)
def test_a_put_comes_back_whole_and_its_bytes_are_always_the_same(event: Event) -> None:
    record = encode(event)
    assert encode(event) == record
    assert record.value == event.value
    assert decode(stored(record)) == event


@settings(max_examples=100, deadline=None)
@given(puts)
def test_who_made_a_record_is_given_the_event_that_everybody_else_reads(event: Event) -> None:
    record = encode(event)
    own = StoredRecord(0, 7, 1, 1, bytes(16), 1, *record)
    assert decode(own) is event
    assert own == stored(record) and decode(stored(record)) == event


def test_a_record_that_was_changed_is_read_anew() -> None:
    event = Event(Kind.PUT, KEY, new_id(), b'{"n":1}')
    own = StoredRecord(0, 7, 1, 1, bytes(16), 1, *encode(event))
    other = encode_item(("b",), "k")
    assert decode(own._replace(key=other)) == event._replace(key=other)
    assert decode(own._replace(value=b"{}")) == event._replace(value=b"{}")
    with pytest.raises(UndecodableEvent):
        decode(own._replace(value=None))


@pytest.mark.parametrize("kind", [Kind.DELETE, Kind.EXPIRE, Kind.TOUCH])
def test_other_events_come_back_whole(kind: Kind) -> None:
    event = Event(kind, KEY, new_id(), seen_version=3, expires_us=99, expected_version=None)
    record = encode(event)
    assert decode(stored(record)) == event
    if kind is Kind.TOUCH:
        assert record.key == TOUCH_PREFIX + KEY, "a touch must not push out its put where logs are compacted"
    else:
        assert (record.key, record.value) == (KEY, None)


def test_further_vectors_and_a_change_of_model_come_back_whole() -> None:
    made = embedded(["a", "b"], 3)
    for vectors in (made, made._replace(paths=(), data=b"")):
        event = Event(Kind.EMBED, KEY, new_id(), embedded=vectors, seen_version=3, fields=("$",))
        record = encode(event)
        assert decode(stored(record)) == event
        assert memory_of(record.key) == KEY
        assert record.key not in (KEY, TOUCH_PREFIX + KEY), "it must push out neither put nor refresh"
    for replaced in (None, ("old/2", None), ("old/2", ("a", "b"))):
        none = Embedded("new/3", 3, (), b"")
        event = Event(Kind.MODEL, MODEL_KEY, new_id(), embedded=none, fields=("a",), replaced=replaced)
        record = encode(event)
        assert decode(stored(record)) == event
        for wrong in (record._replace(key=KEY), record._replace(headers=record.headers[:2])):
            with pytest.raises(UndecodableEvent):
                decode(stored(wrong))


def _changed(**headers: bytes | None) -> Record:
    record = encode(Event(Kind.PUT, KEY, new_id(), b"{}", ttl=1.0, embedded=embedded(["a"], 2)))
    named = {name.replace("-", "_"): (name, data) for name, data in record.headers}
    for name, data in headers.items():
        if data is None:
            named.pop(name)
        else:
            named[name] = (name.replace("_", "-"), data)
    return record._replace(headers=tuple(named.values()))


@pytest.mark.parametrize(
    "changes",
    [
        {"type": None},
        {"type": b"merge/1"},
        {"type": b"put/2"},
        {"type": b"put/-1"},
        {"type": b"\xff/1"},
        {"id": None},
        {"id": b"xyz"},
        {"encoding": b"sealed/1"},
        {"ttl": b"nan"},
        {"ttl": b"-3"},
        {"index": b"{"},
        {"model": None},
        {"model": b"no size"},
        {"vectors": b"123"},
        {"vectors": np.array([1, np.nan], "<f4").tobytes()},
        {"vectors": np.array([-np.inf, np.inf], "<f4").tobytes()},
        {"vector_paths": b"[]"},
        {"expected_version": b"many"},
    ],
)
def test_what_cannot_be_understood_is_refused_by_its_place(changes: dict[str, Any]) -> None:
    with pytest.raises(UndecodableEvent, match="partition 0, offset 7"):
        decode(stored(_changed(**changes)))


def test_large_numbers_whose_sum_is_not_finite_are_vectors() -> None:
    large = np.array([3e38, 3e38], "<f4").tobytes()
    made = decode(stored(_changed(vectors=large))).embedded
    assert made is not None and made.data == large


def test_an_error_about_an_event_shows_nothing_of_its_content() -> None:
    secret = Record(KEY, b'{"secret":"tea"}', (("type", b"put/1"),))
    with pytest.raises(UndecodableEvent) as caught:
        decode(stored(secret))
    assert "tea" not in str(caught.value)


def test_ids_sort_by_time_and_are_uuids_of_version_7() -> None:
    ids = [new_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert [each[:6] for each in ids] == sorted(each[:6] for each in ids)
    assert all(each[6] >> 4 == 7 and each[8] >> 6 == 2 for each in ids)
