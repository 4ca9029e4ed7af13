"""Random operations, with reopenings and rebuilds among them, against an independent model."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.logs import Places
from tests.properties.model import TEXTS, Driver, some_op
from tests.scenarios.kit import listed, ranked, rows


def test_short_histories(places: Places) -> None:
    number = itertools.count()

    @settings(
        max_examples=4 if places.kind == "kafka" else 12,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        database=None,
    )
    @given(chance=st.randoms(use_true_random=False), omits=st.booleans(), count=st.integers(1, 40))
    def check(chance: random.Random, omits: bool, count: int) -> None:
        driver = Driver(places, f"store-{next(number)}", omits=omits)
        try:
            for _ in range(count):
                driver.run(some_op(chance, reopening=0.03))
            driver.do_fresh()
        finally:
            driver.close()

    check()


@pytest.mark.parametrize("omits", [False, True])
def test_thousands_of_operations_then_a_rebuild(places: Places, omits: bool) -> None:
    """S14 and S18: the rebuilt view is the live one, row for row, and no model was asked.

    Of hundreds on a topic. In memory there is nothing to rebuild from once the store is closed.
    """
    chance = random.Random(7 + omits)
    driver = Driver(places, omits=omits)
    until = time.monotonic() + 60
    count = {False: 5000, True: 1500}[omits]
    try:
        for _ in range(count // 10 if places.kind == "kafka" else count):
            driver.run(some_op(chance, reopening=0.002))
            assert time.monotonic() < until
        driver.check_all()
        if places.can_reopen:
            driver.store._expiry.flush()
            live = rows(driver.store), listed(driver.store), ranked(driver.store, TEXTS)
            driver.do_fresh()
            before = driver.embedder.calls
            assert listed(driver.store) == live[1]
            if places.partitions == 1:
                # Rows tell the order of arrival, which between partitions is each view's own.
                assert rows(driver.store) == live[0]
            assert driver.embedder.calls == before
            assert ranked(driver.store, TEXTS) == live[2]
            assert driver.embedder.calls == before + len(TEXTS)
    finally:
        driver.close()
