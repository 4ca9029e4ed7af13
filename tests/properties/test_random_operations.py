"""Random operations, with reopenings and rebuilds among them, against an independent model."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventstore import EventStore
from tests.properties.model import TEXTS, Driver, some_op
from tests.scenarios.kit import TinyEmbedder, index_of, listed, ranked, rows


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    database=None,
)
@given(chance=st.randoms(use_true_random=False), omits=st.booleans(), count=st.integers(1, 40))
def test_short_histories(chance: random.Random, omits: bool, count: int) -> None:
    directory = Path(tempfile.mkdtemp(prefix="eventstore-test-"))
    driver = Driver(directory, omits=omits)
    try:
        for _ in range(count):
            driver.run(some_op(chance, reopening=0.03))
        driver.do_fresh()
    finally:
        driver.close()
        shutil.rmtree(directory)


@pytest.mark.parametrize("omits", [False, True])
def test_five_thousand_operations_then_a_rebuild(tmp_path: Path, omits: bool) -> None:
    """S14 and S18: the rebuilt view is the live one, row for row, and no model was asked."""
    chance = random.Random(7 + omits)
    driver = Driver(tmp_path / "store", omits=omits)
    until = time.monotonic() + 60
    try:
        for _ in range(5000 if not omits else 1500):
            driver.run(some_op(chance, reopening=0.002))
            assert time.monotonic() < until
        driver.check_all()
        live = rows(driver.store), listed(driver.store), ranked(driver.store, TEXTS)
    finally:
        driver.close()
    shutil.rmtree(driver.directory / "views")
    embedder = TinyEmbedder()
    with EventStore.open(driver.directory, index=index_of(embedder), ttl={"omit_expired": omits}) as rebuilt:
        assert embedder.calls == 0
        assert (rows(rebuilt), listed(rebuilt)) == live[:2]
        assert ranked(rebuilt, TEXTS) == live[2]
        assert embedder.documents == 0
        assert embedder.queries == len(TEXTS)
