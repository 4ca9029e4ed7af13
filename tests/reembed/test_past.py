"""Whatever models a store has had: its past answers as a replay up to then, by the model of then."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from eventstore import EventStore, VersionConflict
from projector import reembed as changing
from projector.integrity import verify
from projector.reembed import reembed
from tests.past.replay import Replayed, answers, records_of
from tests.reembed.kit import Model

PLACES = [(("a",), "k0"), (("a", "b"), "k1"), (("é",), "k2")]


def write(store: EventStore, chance: random.Random) -> None:
    namespace = chance.choice(PLACES)[0]
    key = f"k{chance.randrange(4)}"
    kind = chance.random()
    value = {
        "t": chance.choice(["tea", "rain", "sun"]),
        "u": f"u{chance.randrange(5)}",
        "n": chance.randrange(4),
    }
    if kind < 0.6:
        store.put(namespace, key, value, chance.choice([None, None, None, False, ["u"]]), ttl=None)
    elif kind < 0.75:
        store.delete(namespace, key)
    elif kind < 0.85:
        versions = [
            each for each in store.history(namespace, key) if each.value is not None and not each.rejected
        ]
        if versions:
            store.restore(namespace, key, chance.choice(versions).version)
    else:
        try:
            store.put(namespace, key, value, expected_version=chance.randrange(3))
        except VersionConflict:
            return


@pytest.mark.parametrize("seed", range(3))
def test_as_of_every_position_by_the_model_of_then(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changing, "SETTLE_SECONDS", 0.0)
    chance = random.Random(seed)
    eras: list[tuple[int, dict[str, Any]]] = []
    settings = [
        Model("one").index("t"),
        Model("two").index("t"),
        Model("two").index("t", "u"),
        Model("three", 9).index("u"),
        Model("one").index("t"),
    ]
    store = EventStore.open(tmp_path / "store", index=settings[0])
    eras.append((0, settings[0]))
    for index in settings[1:]:
        for _ in range(8):
            write(store, chance)
        done = reembed(store, index=index, batch=3)
        assert done.outcome == "switched"
        eras.append((int(done.position), index))
        changed = EventStore.open(tmp_path / "store", index=index)
        store.close()
        store = changed
    for _ in range(8):
        write(store, chance)
    assert verify(store).first is None
    records = records_of(store)
    ends = [*(start for start, _ in eras[1:]), len(records) + 1]
    for (start, index), end in zip(eras, ends, strict=True):
        replayed = Replayed(monkeypatch, index=index)
        try:
            if start:
                replayed.replay(records[:start])
            for position in range(max(1, start), min(end, len(records) + 1)):
                if position > start:
                    replayed.replay(records[position - 1 : position])
                then = store.as_of(position, index=index)
                assert answers(then, PLACES) == answers(replayed.store, PLACES), f"as of {position}"
        finally:
            replayed.close()
    store.close()
