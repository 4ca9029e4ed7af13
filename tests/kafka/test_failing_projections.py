"""An event that a projection fails on, written by another process: one policy, live and rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from eventstore.errors import UnappliedEvent, ViewError
from eventstore.keys import encode_item
from projector.digests import digest
from projector.projections.items import Items
from tests.kafka.kit import Place, runtime_of, within

BAD = encode_item(("u",), "bad")


def fails_on_bad(real: Callable[..., Any]) -> Callable[..., Any]:
    def write(items: Items, batch: Any, change: Any, handle: Any) -> Any:
        if change.event.key == BAD:
            raise ValueError
        return real(items, batch, change, handle)

    return write


def test_it_stops_in_front_of_the_event_and_reads_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario S12."""
    store, other = place.open(), place.open(views="other")
    store.put(("u",), "k0", {"n": 0})
    with monkeypatch.context() as broken:
        broken.setattr(Items, "write", fails_on_bad(Items.write))
        with pytest.raises((UnappliedEvent, ViewError)):
            other.put(("u",), "bad", {"n": 1})
        assert within(10, lambda: runtime_of(store).stopped is not None)
        trouble = runtime_of(store).stopped
        assert isinstance(trouble, UnappliedEvent) and "partition" in str(trouble)
        item = store.get(("u",), "k0")
        assert item is not None and item.value == {"n": 0}
        assert store.get(("u",), "bad") is None
        with pytest.raises(UnappliedEvent):
            store.put(("u",), "k1", {"n": 2})
    store.close()
    other.close()
    again = place.open()
    item = again.get(("u",), "bad")
    assert item is not None and item.value == {"n": 1}


def test_it_is_set_aside_and_what_is_behind_it_applies(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario S12."""
    settings = {"on_undecodable": "quarantine"}
    store, other = place.open(config=settings), place.open(views="other", config=settings)
    with monkeypatch.context() as broken:
        broken.setattr(Items, "write", fails_on_bad(Items.write))
        with pytest.raises(UnappliedEvent):
            other.put(("u",), "bad", {"n": 1})
        other.put(("u",), "k1", {"n": 2})
        store.wait_for(other.position)
        item = store.get(("u",), "k1")
        assert item is not None and item.value == {"n": 2}
        assert store.get(("u",), "bad") is None
        (aside,) = store.status().quarantine
        assert (aside.namespace, aside.key) == (("u",), "bad")
        fresh = place.open(views="fresh", config=settings)
        fresh.wait_for(other.position)
        assert digest(store) == digest(other) == digest(fresh)
