"""Rankings equal a brute-force search in float64, order and ties included, on every path."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.errors import InvalidEmbedding
from projector.vectors import Limits, Metric, VectorChange
from projector.vectors.scoring import Picked, Scorer, norms_of
from tests.vectors.oracle import TINY, Fed, clustered, fed

METRICS: list[Metric] = ["cosine", "l2", "inner_product"]
KEYS = [
    head + tail
    for head in (b"", b"a\x00", b"a\x00\x01", b"a\xff", b"a\xff\xff", b"ab\x00", b"\xff", b"\xff\xff")
    for tail in (b"k", b"k\x00", b"\xff", b"z")
]
PREFIXES = [b"", b"a", b"a\x00", b"a\x00\x01", b"a\xff", b"a\xff\xff", b"\xff", b"\xff\xff", b"zz"]

# Small whole numbers make many exact ties.
numbers = st.integers(-2, 2).map(float)
rows = st.lists(st.lists(numbers, min_size=3, max_size=3), max_size=4)
steps = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(KEYS), rows),
    st.tuples(st.just("put"), st.sampled_from(KEYS), rows),
    st.tuples(st.sampled_from(["checkpoint", "settle", "reopen", "look"]), st.just(b""), st.just([])),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(steps, max_size=60),
    st.sampled_from(METRICS),
    st.lists(numbers, min_size=3, max_size=3),
    st.integers(0, 12),
    st.sets(st.sampled_from(KEYS), max_size=20),
)
def test_any_history_ranks_like_brute_force(
    history: list[tuple[str, bytes, list[list[float]]]],
    metric: Metric,
    query: list[float],
    k: int,
    only: set[bytes],
) -> None:
    limits = Limits(delta_rows=5, segment_rows=20, checkpoint_changes=9)
    with tempfile.TemporaryDirectory() as folder, fed(Path(folder), 3, metric, limits=limits) as made:
        for step, key, vectors in history:
            if step == "put":
                made.put(key, vectors)
            elif step == "checkpoint":
                assert made.index.checkpoint() == len(made.log) - 1
            elif step == "settle":
                assert made.index.settle(20)
            elif step == "reopen":
                made.reopen()
            else:
                _compare(made, query, k, only)
        _compare(made, query, k, only)


def _compare(made: Fed, query: list[float], k: int, only: set[bytes]) -> None:
    state = made.state()
    wanted = np.array(query, np.float32)
    for prefix in PREFIXES:
        for narrowed in (None, only):
            found = state.rank(wanted, prefix, k, only=narrowed)
            assert found.hits == made.expected(query, prefix, k, only=narrowed)
            everything = made.expected(query, prefix, 10_000, only=narrowed)
            assert not found.complete or len(everything) == len(found.hits)
            assert found.complete or len(found.hits) == k
        assert state.count(prefix) >= len(made.expected(query, prefix, 10_000))


@pytest.mark.parametrize("metric", METRICS)
def test_real_valued_vectors_through_sealing_and_merging(tmp_path: Path, metric: Metric) -> None:
    rng = np.random.default_rng(5)
    with fed(tmp_path, 24, metric, exact=True) as made:
        for step in range(1_500):
            key = b"user%02d/%03d" % (rng.integers(12), rng.integers(60))
            if rng.random() < 0.25:
                made.delete(key)
            else:
                made.put(
                    key, rng.standard_normal((rng.choice([1, 1, 1, 3]), 24)) * 10.0 ** rng.integers(-2, 3)
                )
            if step % 100 == 50:
                query = rng.standard_normal(24)
                for prefix in (b"", b"user0", b"user07/", b"user1"):
                    for k in (1, 10, 200):
                        assert made.ranked(query, prefix, k) == made.expected(query, prefix, k)
        assert made.index.stats().segments >= 2


def test_equal_texts_come_back_by_key(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with fed(tmp_path, 8) as made:
        same = rng.standard_normal(8)
        for number in rng.permutation(1_000).tolist():
            made.put(b"t/%04d" % number, same)
        for number in range(100):
            made.put(b"o/%03d" % number, rng.standard_normal(8))
        for settled in (False, True):
            assert not settled or made.index.settle(30)
            assert [key for _, key in made.ranked(same, b"", 25)] == [b"t/%04d" % n for n in range(25)]


def test_an_item_of_a_thousand_vectors_starves_nobody(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    with fed(tmp_path, 8) as made:
        made.put(b"long", np.ones((1_000, 8)) + 0.001 * rng.standard_normal((1_000, 8)))
        for number in range(200):
            made.put(b"short%03d" % number, rng.standard_normal(8))
        for settled in (False, True):
            assert not settled or made.index.settle(30)
            hits = made.ranked(np.ones(8), b"", 10)
            assert hits == made.expected(np.ones(8), b"", 10)
            assert hits[0][1] == b"long"
            assert len({key for _, key in hits}) == 10


def test_a_row_has_one_score_on_every_path(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    dims = 96
    vectors = clustered(rng, 300, dims, 20)
    query = vectors[7] + 0.1 * rng.standard_normal(dims)
    seen: dict[bytes, set[float]] = {}

    def look(made: Fed, **narrowed: object) -> None:
        for value, key in made.ranked(query, b"", 20, **narrowed):
            seen.setdefault(key, set()).add(value)

    with fed(tmp_path, dims, limits=Limits(delta_rows=1_000, wide_rows=100, graph_rows=64)) as made:
        for number, vector in enumerate(vectors):
            made.put(b"k%03d" % number, vector)
        look(made)
        look(made, only=[b"k%03d" % number for number in range(0, 300, 3)])
        look(made, only=[b"k007", b"k008"])
        made.index.checkpoint()
        assert made.index.settle(30)
        assert made.index.stats().graphs == 1
        look(made)
        look(made, exact=True)
        look(made, only=[b"k%03d" % number for number in range(0, 300, 3)])
        made.reopen()
        look(made)
    assert len(seen) >= 20
    assert all(len(values) == 1 for values in seen.values())


def test_scores_do_not_depend_on_neighbouring_rows() -> None:
    rng = np.random.default_rng(4)
    for dims in (1, 2, 3, 7, 8, 9, 127, 128, 129, 384, 1_000):
        vectors = rng.standard_normal((64, dims)).astype(np.float32)
        norms = norms_of(vectors)
        for metric in METRICS:
            scorer = Scorer(metric, dims)
            query = scorer.query(vectors[0])
            assert query is not None and query.norm == norms[0]
            together = scorer.scores(query, [Picked(vectors, norms, slice(0, 64))])
            for row in range(64):
                assert norms[row] == norms_of(vectors[row : row + 1])[0]
                for low in {row, max(0, row - 5), 0}:
                    part = scorer.scores(query, [Picked(vectors, norms, slice(low, row + 1))])
                    assert part[-1] == together[row]
                    pair = [Picked(vectors, norms, slice(0, 3)), Picked(vectors, norms, np.array([5, row]))]
                    assert scorer.scores(query, pair)[-1] == together[row]


@pytest.mark.parametrize("metric", METRICS)
def test_bounds_hold(metric: Metric) -> None:
    rng = np.random.default_rng(6)
    for dims in (2, 17, 384):
        vectors = (rng.standard_normal((500, dims)) * 10.0 ** rng.integers(-6, 7, (500, 1))).astype(
            np.float32
        )
        vectors[3] = 0.0
        norms = norms_of(vectors)
        scorer = Scorer(metric, dims)
        for number in range(20):
            query = scorer.query(vectors[number])
            assert query is not None
            for rows in (slice(0, 500), np.arange(0, 500, 3)):
                bounds = scorer.bounds(query, vectors, norms, rows)
                assert (bounds >= scorer.scores(query, [Picked(vectors, norms, rows)])).all()


@pytest.mark.parametrize("metric", METRICS)
def test_many_rows_are_scored_in_pieces_in_the_order_given(metric: Metric) -> None:
    vectors = np.random.default_rng(7).standard_normal((2_500, 5)).astype(np.float32)
    norms = norms_of(vectors)
    scorer = Scorer(metric, 5)
    query = scorer.query(vectors[0])
    assert query is not None
    order = np.random.default_rng(8).permutation(2_500)
    whole = scorer.scores(query, [Picked(vectors, norms, slice(0, 2_500))])
    parts = [Picked(vectors, norms, slice(0, 7)), Picked(vectors, norms, order)]
    assert np.array_equal(scorer.scores(query, parts), np.concatenate([whole[:7], whole[order]]))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_query_that_is_not_finite_is_told_from_a_huge_one(number: float) -> None:
    scorer = Scorer("cosine", 3)
    assert scorer.query(np.array([1.0, number, 0.0], np.float32)) is None
    assert scorer.query(np.full(3, 3e38, np.float32)) is not None
    zero = scorer.query(np.zeros(3, np.float32))
    assert zero is not None and zero.norm == np.inf


@pytest.mark.parametrize("metric", METRICS)
def test_zero_huge_and_tiny_vectors(tmp_path: Path, metric: Metric) -> None:
    rng = np.random.default_rng(8)
    with fed(tmp_path, 4, metric) as made:
        for number in range(120):
            scale = [0.0, 1e-42, 1e-25, 1.0, 1e25, 3e38][number % 6]
            made.put(b"k%03d" % number, rng.uniform(-1, 1, 4) * scale)
        assert made.index.settle(20)
        for query in ([0.0] * 4, [1e-40, 0, 0, 0], [1.0, 2, 3, 4], [3e38, 3e38, 0, 0]):
            for k in (5, 80):
                hits = made.ranked(query, b"", k)
                assert hits == made.expected(query, b"", k)
                assert np.isfinite([value for value, _ in hits]).all()
        if metric == "cosine":
            assert {value for value, _ in made.ranked([0.0] * 4, b"", 200)} == {0.0}
            assert made.ranked([1.0, 2, 3, 4], only=[b"k000"]) == [(0.0, b"k000")]


def test_a_selective_filter_gets_the_exact_best(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    vectors = clustered(rng, 20_000, 16, 200)
    limits = Limits(delta_rows=4_000, wide_rows=5_000, graph_rows=4_000, build_threads=1)
    with fed(tmp_path, 16, limits=limits) as made:
        scope = {b"u%03d/%03d" % (n % 650, n // 650) for n in range(20_000) if n % 650 == 17}
        for number, vector in enumerate(vectors):
            made.put(b"u%03d/%03d" % (number % 650, number // 650), vector)
        few = [b"u%03d/%03d" % (n % 650, n // 650) for n in range(0, 20_000, 667)]
        assert len(scope) in (30, 31)
        for _ in range(3):
            query = rng.standard_normal(16)
            inside = made.ranked(query, b"u017/", 20)
            assert len(inside) == 20
            assert inside == made.expected(query, b"u017/", 20)
            assert inside == made.ranked(query, b"", 20, only=scope)
            assert made.ranked(query, b"", 20, only=few) == made.expected(query, b"", 20, only=few)
            made.index.settle(30)


def test_wrong_vectors_are_refused_and_change_nothing(tmp_path: Path) -> None:
    with fed(tmp_path, 4, limits=TINY) as made:
        made.put(b"a", [1, 0, 0, 0])
        good = np.ones((1, 4), np.float32)
        for bad in (np.ones((1, 5), np.float32), np.ones(4, np.float32), np.full((1, 4), np.nan, np.float32)):
            with pytest.raises(InvalidEmbedding):
                made.feed([VectorChange(1, b"b", good), VectorChange(2, b"c", bad)])
        with pytest.raises(ValueError, match="offset order"):
            made.feed([VectorChange(5, b"b", good), VectorChange(4, b"c", good)])
        assert made.index.applied == 0
        for query in ([1.0] * 5, [np.inf, 0, 0, 0]):
            with pytest.raises(InvalidEmbedding):
                made.ranked(query)
        assert made.ranked([1, 0, 0, 0]) == [(1.0, b"a")]


def test_asking_for_more_than_there_is_gives_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(12)
    with fed(tmp_path, 8) as made:
        for number, row in enumerate(clustered(rng, 200, 8, 4)):
            made.put(b"%03d" % number, row)
        assert made.index.settle(20)
        assert made.index.stats().graphs > 0
        query = rng.standard_normal(8)
        assert made.ranked(query, k=2**62) == made.expected(query, k=200)
