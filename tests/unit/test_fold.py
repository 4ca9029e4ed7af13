"""The rule that every reader applies alike, as a table and over random histories."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.events import Embedded, Event, Kind
from eventstore.log.base import StoredRecord
from projector.fold import (
    ABSENT,
    MINUTE_US,
    WRITER_MEMORY_US,
    ItemState,
    WriterState,
    fold,
    is_duplicate,
    version_seen,
)

NOW = 1_700_000_000_000_000


def event(kind: Kind, **parts: Any) -> Event:
    return Event(kind, b"key", bytes(16), b"{}" if kind is Kind.PUT else None)._replace(**parts)


def put(state: ItemState = ABSENT, time_us: int = NOW, **parts: Any) -> ItemState:
    decision = fold(state, event(Kind.PUT, **parts), time_us)
    assert decision.outcome == "applied"
    return decision.state


def test_a_first_put_is_version_1_created_and_updated_at_its_time() -> None:
    assert put() == ItemState(True, 1, NOW, NOW)


def test_an_update_keeps_created_and_moves_updated() -> None:
    assert put(put(), NOW + 5) == ItemState(True, 2, NOW, NOW + 5)


def test_updated_grows_though_clocks_step_back_and_across_a_delete() -> None:
    first = put(put(), NOW - 1000)
    assert first.updated_us == NOW + 1
    gone = fold(first, event(Kind.DELETE), NOW - 5000).state
    assert gone == ItemState(False, 3, updated_us=NOW + 2)
    assert put(gone, NOW - 9000) == ItemState(True, 4, NOW + 3, NOW + 3)


def test_deleting_what_is_not_there_is_void() -> None:
    assert fold(ABSENT, event(Kind.DELETE), NOW) == ("void", ABSENT)
    gone = fold(put(), event(Kind.DELETE), NOW).state
    assert fold(gone, event(Kind.DELETE), NOW + 9) == ("void", gone)


def test_a_condition_is_held_against_the_version_that_is_seen() -> None:
    state = put(put())
    assert fold(state, event(Kind.PUT, expected_version=1), NOW) == ("rejected", state)
    assert fold(state, event(Kind.PUT, expected_version=2), NOW).outcome == "applied"
    assert fold(ABSENT, event(Kind.PUT, expected_version=0), NOW).outcome == "applied"
    assert fold(ABSENT, event(Kind.PUT, expected_version=1), NOW) == ("rejected", ABSENT)
    gone = fold(state, event(Kind.DELETE), NOW).state
    assert fold(gone, event(Kind.PUT, expected_version=0), NOW).state.version == 4
    assert fold(gone, event(Kind.DELETE, expected_version=3), NOW) == ("rejected", gone)


def test_an_expired_memory_is_gone_for_those_who_omit_it_only() -> None:
    state = put(ttl=1.0)
    later = NOW + 2 * MINUTE_US
    assert put(state, later).created_us == NOW
    assert put(state, later, omits_expired=True).created_us == later
    assert put(state, NOW + 1, omits_expired=True).created_us == NOW
    omitting = event(Kind.PUT, omits_expired=True, expected_version=1)
    assert fold(state, omitting, later).outcome == "rejected"
    assert version_seen(state, omitting, later) == 0
    assert version_seen(state, event(Kind.PUT, expected_version=1), later) == 1


def test_every_put_sets_expiry_and_vectors_anew() -> None:
    made = Embedded("m/1", 1, ("a", "b"), bytes(8))
    state = put(ttl=1.5, embedded=made)
    assert (state.ttl_us, state.expires_us) == (90_000_000, NOW + 90_000_000)
    assert state.vectors == 2
    assert put(state)[4:] == (0, 0, 0)
    assert put(ttl=1e-9).ttl_us == 1


def test_a_touch_moves_an_expiry_on_and_nothing_else() -> None:
    state = put(ttl=1.0)
    later = state.expires_us + 7
    touched = fold(state, event(Kind.TOUCH, seen_version=1, expires_us=later), NOW)
    assert touched == ("applied", state._replace(expires_us=later))
    for void in (
        event(Kind.TOUCH, seen_version=2, expires_us=later),
        event(Kind.TOUCH, seen_version=1, expires_us=state.expires_us),
    ):
        assert fold(state, void, NOW) == ("void", state)
    forever = put()
    assert fold(forever, event(Kind.TOUCH, seen_version=1, expires_us=later), NOW) == ("void", forever)


def test_an_expiry_is_about_the_version_and_the_expiry_that_were_seen() -> None:
    state = put(ttl=1.0)
    right = event(Kind.EXPIRE, seen_version=1, expires_us=state.expires_us)
    assert not fold(state, right, NOW).state.live
    assert fold(state, right._replace(seen_version=2), NOW) == ("void", state)
    refreshed = state._replace(expires_us=state.expires_us + 1)
    assert fold(refreshed, right, NOW) == ("void", refreshed)


events = st.builds(
    lambda kind, ttl, expected, seen, omits: event(
        kind, ttl=ttl, expected_version=expected, seen_version=seen, omits_expired=omits
    ),
    st.sampled_from(Kind),
    st.sampled_from([None, 0.5, 10.0]),
    st.sampled_from([None, None, 0, 1, 2]),
    st.integers(0, 4),
    st.booleans(),
)


def test_further_vectors_hold_for_the_version_they_were_made_of_and_change_nothing_else() -> None:
    more = Embedded("new/2", 2, ("a", "b"), bytes(16))
    _, put = fold(ABSENT, event(Kind.PUT, ttl=1.0), NOW)
    made = event(Kind.EMBED, seen_version=1, embedded=more, fields=("a",))
    assert fold(put, made, NOW) == ("applied", put._replace(vectors=2))
    assert fold(put._replace(vectors=3), made, NOW) == ("applied", put._replace(vectors=3))
    _, later = fold(put, event(Kind.PUT), NOW)
    _, gone = fold(put, event(Kind.DELETE), NOW)
    for state in (ABSENT, later, gone):
        assert fold(state, made, NOW) == ("void", state)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(events, st.integers(-(10**8), 10**8)), max_size=30))
def test_versions_and_times_only_ever_grow(history: list[tuple[Event, int]]) -> None:
    state = ABSENT
    for each, drift in history:
        outcome, after = fold(state, each, NOW + drift)
        assert fold(state, each, NOW + drift) == (outcome, after)
        if outcome != "applied":
            assert after == state
        elif each.kind is Kind.TOUCH:
            assert after[:4] == state[:4]
            assert after.expires_us > state.expires_us
        elif each.kind is Kind.EMBED:
            assert after._replace(vectors=0) == state._replace(vectors=0)
            assert after.vectors >= state.vectors
        else:
            assert each.kind is not Kind.MODEL
            assert after.version == state.version + 1
            assert after.updated_us > state.updated_us
            assert after.created_us <= after.updated_us
        state = after


def stored(sequence: int, appended_us: int = NOW) -> StoredRecord:
    return StoredRecord(0, 9, appended_us, NOW, bytes(16), sequence, b"key", None, ())


def test_retries_and_stragglers_are_duplicates_until_their_writer_is_forgotten() -> None:
    writer = WriterState(5, NOW)
    assert not is_duplicate(None, stored(1))
    assert [is_duplicate(writer, stored(n)) for n in (4, 5, 6)] == [True, True, False]
    assert is_duplicate(writer, stored(5, NOW + WRITER_MEMORY_US))
    assert not is_duplicate(writer, stored(5, NOW + WRITER_MEMORY_US + 1))
