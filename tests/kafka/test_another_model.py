"""The model changed on a topic: one change for all partitions, whatever order a view reads them in."""

from __future__ import annotations

import pytest

from eventstore.errors import IndexMismatch
from projector import reembed as changing
from projector.digests import digest
from projector.integrity import verify
from projector.reembed import reembed
from tests.kafka.broker import Broker
from tests.kafka.kit import NewPlace
from tests.reembed.kit import Model, fill, found, oracle


@pytest.mark.parametrize("partitions", [1, 6])
def test_a_change_of_model_on_a_topic(
    kafka_broker: Broker, new_place: NewPlace, partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "SETTLE_SECONDS", 0.1)
    old, new = Model("old"), Model("new", 9)
    place = new_place(kafka_broker, partitions=partitions)
    store = place.open(index=old.index())
    fill(store, 20)
    other = place.open("other", index=old.index())
    before, then = found(store), str(store.status().applied)
    new.before = lambda: None if found(store) == before else pytest.fail("not the old results")
    done = reembed(store, index=new.index(), batch=6)
    new.before = lambda: None
    assert (done.outcome, done.memories) == ("switched", 20)
    other.wait_for(done.position)
    with pytest.raises(IndexMismatch, match="new/9"):
        other.search((), query="tea")
    changed = place.open(index=new.index())
    expected = found(changed)
    assert expected == oracle(changed, new.index())
    assert found(changed.as_of(then, index=old.index())) == before
    changed.put(("users", "u9"), "later", {"t": "later"})
    fresh = place.open("fresh", index=new.index())
    assert digest(fresh) == digest(changed)
    assert found(fresh) == found(changed)
    assert found(fresh.as_of(then, index=old.index())) == before
    assert verify(changed).first is None
