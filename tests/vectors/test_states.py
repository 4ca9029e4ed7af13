"""States: what was visible stays visible, however much changes afterwards."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from eventstore.errors import StoreClosed
from projector.vectors import Limits, Ranking, State, VectorChange
from tests.vectors.oracle import TINY, Live, clustered, fed, ranking


def test_kept_states_answer_as_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    kept: list[tuple[State, Live]] = []
    with fed(tmp_path, 6, exact=True) as made:
        for step in range(2_000):
            key = b"%d/%02d" % (rng.integers(4), rng.integers(50))
            if rng.random() < 0.3:
                made.delete(key)
            else:
                made.put(key, rng.integers(-3, 4, (rng.integers(1, 3), 6)))
            if step % 250 == 125:
                kept.append((made.state(), dict(made.live)))
            if step % 700 == 0:
                made.index.checkpoint()
        assert made.index.settle(20)
        for state, live in kept:
            for prefix in (b"", b"2/"):
                query = rng.integers(-3, 4, 6).astype(np.float32)
                assert state.rank(query, prefix, 15).hits == ranking("cosine", live, query, prefix, 15)
                only = {b"2/%02d" % number for number in range(0, 50, 4)}
                narrowed = state.rank(query, prefix, 15, only=only)
                assert narrowed.hits == ranking("cosine", live, query, prefix, 15, only)


def test_a_state_outlives_its_index(tmp_path: Path) -> None:
    with fed(tmp_path, 2) as made:
        for number in range(100):
            made.put(b"%03d" % number, [1, number])
        state, live = made.state(), dict(made.live)
        for number in range(100):
            made.delete(b"%03d" % number)
        made.index.checkpoint()
        made.index.close()
        query = np.array([1, 7], np.float32)
        assert state.rank(query, b"", 5).hits == ranking("cosine", live, query, b"", 5)
        made.index.close()
        with pytest.raises(StoreClosed):
            made.put(b"x", [1, 1])
        with pytest.raises(StoreClosed):
            made.index.checkpoint()


def test_offsets_at_or_below_the_applied_one_do_nothing(tmp_path: Path) -> None:
    with fed(tmp_path, 2) as made:
        made.put(b"a", [1, 0])
        made.put(b"a", [0, 1])
        made.feed(made.log)
        assert made.ranked([1, 0]) == [(0.0, b"a")]
        assert made.index.stats().live == 1


def test_one_offset_may_change_several_items_and_one_item_twice(tmp_path: Path) -> None:
    first, second = np.array([[1, 0]], np.float32), np.array([[0, 1], [1, 1]], np.float32)
    with fed(tmp_path, 2) as made:
        made.feed([VectorChange(0, b"a", first), VectorChange(0, b"b", first), VectorChange(0, b"a", second)])
        assert made.ranked([0, 1]) == [(1.0, b"a"), (0.0, b"b")]
        assert made.index.stats().live == 3


def test_a_key_that_begins_another_is_another_item(tmp_path: Path) -> None:
    keys = [b"k" + b"\0" * number for number in range(3)]
    with fed(tmp_path, 2) as made:
        for key in keys:
            made.put(key, [[1, 0], [0, 1]])
        made.index.checkpoint()
        made.delete(keys[1])
        made.put(keys[0], [[1, 1], [2, 2]])
        for query in ([1, 0], [1, 1]):
            assert made.ranked(query) == made.expected(query)
        made.index.checkpoint()
        only = [keys[0]]
        assert made.ranked([1, 0], only=only) == made.expected([1, 0], only=only)


def test_through_moves_the_offset_without_changes(tmp_path: Path) -> None:
    with fed(tmp_path, 2) as made:
        with made.index.lock:
            made.index.apply([], through=41)
        assert made.state().offset == 41
        assert made.index.checkpoint() == 41
        assert made.reopen() == 41


def test_search_while_changes_are_applied(tmp_path: Path) -> None:
    """Four threads search while one writes: every hit was live at its state, with its own score."""
    rng = np.random.default_rng(12)
    dims, names = 16, [b"u%d/%03d" % (number % 5, number) for number in range(400)]
    limits = Limits(delta_rows=200, segment_rows=2_000, wide_rows=250, graph_rows=150, build_threads=1)
    versions = clustered(rng, 4_000, dims, 40)
    history: dict[bytes, list[tuple[int, int]]] = {name: [] for name in names}
    found: list[tuple[int, int, Ranking]] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    with fed(tmp_path, dims, limits=limits) as made:

        def search(seed: int) -> None:
            own = np.random.default_rng(seed)
            try:
                while not stop.is_set():
                    number = int(own.integers(len(versions)))
                    with made.index.lock:
                        state = made.index.state()
                    prefix = b"" if own.random() < 0.5 else b"u%d/" % own.integers(5)
                    hits = state.rank(versions[number], prefix, 8)
                    assert all(key.startswith(prefix) for _, key in hits.hits)
                    found.append((state.offset, number, hits))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=search, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        ends, offset = time.monotonic() + 2.0, 0
        while time.monotonic() < ends:
            with made.index.lock:
                changes = []
                for _ in range(20):
                    name = names[int(rng.integers(len(names)))]
                    version = int(rng.integers(-1_000, len(versions)))
                    row = versions[version : version + 1] if version >= 0 else None
                    changes.append(VectorChange(offset, name, row))
                    history[name].append((offset, version))
                    offset += 1
                made.index.apply(changes)
            time.sleep(0.002)
        stop.set()
        for thread in threads:
            thread.join(10)
        assert made.index.stats().graphs or made.index.settle(20)
    assert not failures
    assert len(found) > 50
    assert offset > 500
    for at, number, ranked in found[:: max(1, len(found) // 400)]:
        live = {name: _version_at(history[name], at) for name in names}
        for value, key in ranked.hits:
            version = live[key]
            assert version >= 0
            assert [(value, key)] == ranking(
                "cosine", {key: versions[version : version + 1]}, versions[number], key
            )


def _version_at(changes: list[tuple[int, int]], offset: int) -> int:
    return next((version for at, version in reversed(changes) if at <= offset), -1)


def test_limits_are_what_the_tests_think(tmp_path: Path) -> None:
    with fed(tmp_path, 2, limits=TINY) as made:
        for number in range(200):
            made.put(b"%03d" % number, [1, number])
        assert made.index.settle(20)
        stats = made.index.stats()
        assert (stats.rows, stats.live, stats.applied) == (200, 200, 199)
        assert stats.segments >= 3
        assert stats.graphs >= 1
        assert stats.delta_rows < TINY.delta_rows
        assert stats.covered == 199 - stats.delta_rows
        assert stats.bytes > 200 * 2 * 4
