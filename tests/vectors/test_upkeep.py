"""What the background thread makes of many rows: segments, graphs, reclaimed space."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from projector.vectors import Limits, Metric, VectorChange
from tests.vectors.oracle import Fed, clustered, fed, ranking


def put_all(made: Fed, vectors: np.ndarray) -> list[bytes]:
    names = [b"u%d/%06d" % (number % 7, number) for number in range(len(vectors))]
    changes = [VectorChange(offset, name, vectors[offset : offset + 1]) for offset, name in enumerate(names)]
    for start in range(0, len(changes), 500):
        made.feed(changes[start : start + 500])
    return names


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_wide_searches_by_graph_find_nearly_all(tmp_path: Path, metric: Metric) -> None:
    rng = np.random.default_rng(31)
    rows = 60_000 if metric == "cosine" else 12_000
    vectors = clustered(rng, rows, 32, 600)
    limits = Limits(delta_rows=4_096, segment_rows=rows, wide_rows=10_000, graph_rows=4_096)
    with fed(tmp_path, 32, metric, limits=limits) as made:
        put_all(made, vectors)
        made.index.checkpoint()
        assert made.index.settle(60)
        assert made.index.stats().graphs >= 1
        state = made.state()
        alike = 0
        for _ in range(100):
            query = (vectors[rng.integers(rows)] + 0.2 * rng.standard_normal(32)).astype(np.float32)
            best = state.rank(query, b"", 10, exact=True).hits
            near = state.rank(query, b"", 10)
            assert len(near.hits) == 10
            assert not near.complete
            assert near.hits == sorted(near.hits, key=lambda hit: (-hit[0], hit[1]))
            exact_scores = {key: value for value, key in best}
            assert all(exact_scores.get(key, value) == value for value, key in near.hits)
            alike += len({key for _, key in best} & {key for _, key in near.hits})
        assert alike / 1_000 >= 0.95


def test_many_deletes_leave_exact_answers_and_give_space_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(32)
    vectors = rng.standard_normal((20_000, 16)).astype(np.float32)
    limits = Limits(delta_rows=4_096, segment_rows=32_768, wide_rows=1_000, graph_rows=4_096)
    with fed(tmp_path, 16, limits=limits) as made:
        names = put_all(made, vectors)
        made.index.checkpoint()
        assert made.index.settle(60)
        full = made.index.stats()
        assert (full.rows, full.live) == (20_000, 20_000)
        gone = rng.permutation(20_000)[:18_000].tolist()
        made.feed([VectorChange(20_000 + at, names[number], None) for at, number in enumerate(gone)])
        live = {names[number]: vectors[number : number + 1] for number in set(range(20_000)) - set(gone)}
        queries = rng.standard_normal((10, 16)).astype(np.float32)
        wanted = [ranking("cosine", live, query, b"", 10) for query in queries]

        def answers(exact: bool) -> list[list[tuple[float, bytes]]]:
            return [made.state().rank(query, b"", 10, exact=exact).hits for query in queries]

        assert answers(exact=True) == wanted
        for hits in answers(exact=False):
            assert len(hits) == 10
            assert all(key in live for _, key in hits)
        made.index.checkpoint()
        assert made.index.settle(60)
        after = made.index.stats()
        assert (after.rows, after.live) == (2_000, 2_000)
        assert after.bytes < full.bytes / 4
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < full.bytes / 4
        assert answers(exact=True) == wanted


def test_segments_stay_few_and_within_their_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(33)
    limits = Limits(delta_rows=50, segment_rows=1_000)
    with fed(tmp_path, 4, limits=limits) as made:
        put_all(made, rng.standard_normal((4_000, 4)).astype(np.float32))
        made.index.checkpoint()
        assert made.index.settle(60)
        saved = json.loads((tmp_path / "manifest.json").read_text())["state"]
        sizes = sorted(entry["rows"] for entry in saved["segments"])
        assert sum(sizes) == 4_000
        assert sizes[-1] <= 1_000
        assert len(sizes) <= 12


@pytest.mark.parametrize("alike", ["equal vectors", "equal scores"])
def test_ties_come_by_key_even_where_a_graph_is(tmp_path: Path, alike: str) -> None:
    rng = np.random.default_rng(34)
    limits = Limits(delta_rows=500, wide_rows=500, graph_rows=500)
    vectors = rng.standard_normal((3_000, 9)).astype(np.float32)
    vectors[:1_500] = 1.0
    if alike == "equal scores":
        vectors[:1_500, :8] = rng.choice([-1.0, 1.0], (1_500, 8))
        vectors[1_500:, 8] = 0.0
    query = np.eye(9, dtype=np.float32)[8] if alike == "equal scores" else vectors[0]
    order = rng.permutation(3_000)
    with fed(tmp_path, 9, limits=limits) as made:
        names = put_all(made, vectors[order])
        made.index.checkpoint()
        assert made.index.settle(60)
        assert made.index.stats().graphs >= 1
        same = sorted(name for name, number in zip(names, order.tolist(), strict=True) if number < 1_500)
        assert [key for _, key in made.ranked(query, b"", 20)] == same[:20]


def test_searches_start_no_native_threads(tmp_path: Path) -> None:
    rng = np.random.default_rng(35)
    with fed(tmp_path, 64, limits=Limits(delta_rows=2_000)) as made:
        put_all(made, rng.standard_normal((6_000, 64)).astype(np.float32))
        assert made.index.settle(30)
        state, inside, peak = made.state(), threading.Barrier(4), []

        def search() -> None:
            for _ in range(5):
                state.rank(rng.standard_normal(64).astype(np.float32), b"", 10)
            inside.wait(10)
            peak.append(len(list(Path("/proc/self/task").iterdir())))
            inside.wait(10)

        before = len(list(Path("/proc/self/task").iterdir()))
        threads = [threading.Thread(target=search) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert max(peak) <= before + 4
