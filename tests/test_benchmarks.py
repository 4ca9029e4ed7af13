"""The benchmark itself: every cell runs, is right, and is told apart when it is not."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks import run as command
from benchmarks.cells import CELLS, Cell, Goal
from benchmarks.figures import Figure, Results, met
from benchmarks.measure import Slice, timed
from benchmarks.questions import Questions
from benchmarks.race import Limits
from benchmarks.report import as_json, growth_table, main_table
from benchmarks.workload import NumberedEmbeddings, Spec, Workload

TINY = Spec(items=300, dims=32)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    limits = Limits(seconds=0.03, turns=1)
    folder = tmp_path_factory.mktemp("benchmark")
    (found,) = command.run(
        [TINY.items], dims=TINY.dims, limits=limits, directory=folder, console=Console(quiet=True)
    )
    assert list(folder.iterdir()) == []
    return found


def test_every_cell_has_a_figure_of_ours_and_is_right(results: Results) -> None:
    assert command.wrong([results]) == []
    for cell in CELLS:
        figure = results.figures[cell.name]["eventstore"]
        assert figure.middle is not None and figure.middle >= 0, cell.name
        if cell.semantic and cell.phase in ("read", "reopen"):
            assert figure.recall == pytest.approx(1.0, abs=0.01), cell.name


def test_no_peer_is_dropped_in_silence(results: Results) -> None:
    for cell in CELLS:
        for peer in ("inmemory", "sqlite"):
            if not cell.ours_only:
                figure = results.figures[cell.name][peer]
                assert figure.middle is not None or figure.reason, (cell.name, peer)
    assert results.figures["get"]["inmemory"].right == 1.0
    assert results.figures["filter-all"]["sqlite"].right == 1.0
    assert results.figures["reopen-get"]["inmemory"].reason == "nothing to reopen"


def test_tables_and_json_name_every_cell(results: Results, tmp_path: Path) -> None:
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(main_table(results))
    console.print(growth_table([results, results]))
    text = console.export_text()
    written = json.loads(json.dumps(as_json([results], command.machine())))
    (size,) = written["sizes"]
    for cell in CELLS:
        assert cell.title in text
    assert [each["cell"] for each in size["cells"]] == [cell.name for cell in CELLS]
    assert size["cells"][2]["stores"]["sqlite"]["ratio"] > 0


def test_a_goal_needs_speed_recall_right_answers_and_where_it_says_so_the_first_place() -> None:
    cell = Cell("get", "x", "read", lambda bench, seconds: Slice(), goal=Goal(1.0, 0.99, before_durable=True))

    def reached(figure: Figure, peer: Figure | None = None) -> bool | None:
        figures = {"eventstore": figure, "sqlite": peer or Figure(by_turn=(2.0,))}
        return met(cell, Results(TINY, {"get": figures}), "eventstore")

    assert reached(Figure(middle=0.9, recall=0.99, right=1.0, by_turn=(0.9,)))
    assert reached(Figure(middle=1.1, recall=0.99, right=1.0, by_turn=(1.1,))) is False
    assert reached(Figure(middle=0.9, recall=0.9, right=1.0, by_turn=(0.9,))) is False
    assert reached(Figure(middle=0.9, recall=0.99, right=0.99, by_turn=(0.9,))) is False
    assert reached(Figure(middle=0.9, recall=0.99, by_turn=(0.9,)), Figure(by_turn=(0.8,))) is False
    assert reached(Figure(reason="not loaded")) is None


def test_wrong_answers_and_missing_cells_of_ours_are_reported(results: Results) -> None:
    spoiled = Results(results.spec, {name: dict(figures) for name, figures in results.figures.items()})
    spoiled.figures["get"]["eventstore"] = Figure(middle=1e-6, right=0.5)
    spoiled.figures["mixed"]["eventstore"] = Figure(reason="not run")
    reported = command.wrong([spoiled])
    assert len(reported) == 2
    assert "get hit: 50.0% right" in reported[0]
    assert "not run" in reported[1]


def test_ratios_pair_the_turns_and_are_above_one_where_ours_is_better() -> None:
    spec = Spec(1_000)
    figures = {
        "get": {"a": Figure(by_turn=(1.0, 10.0, 1.0)), "b": Figure(by_turn=(3.0, 30.0, 3.0))},
        "load": {"a": Figure(by_turn=(200.0,)), "b": Figure(by_turn=(100.0,))},
        "put": {"a": Figure(by_turn=(1.0,)), "b": Figure(reason="not run")},
    }
    results = Results(spec, figures)
    assert results.ratio("get", "a", "b") == pytest.approx(3.0)
    assert results.ratio("load", "a", "b") == pytest.approx(2.0)
    assert results.ratio("put", "a", "b") is None


def test_a_call_longer_than_the_budget_is_kept_and_marked() -> None:
    calls: list[int] = []
    slow, _ = timed(calls.append, range(5), seconds=0.0)
    assert slow.over and len(slow.times) == len(calls) == 1
    quick, kept = timed(calls.append, range(5), seconds=5.0, most=20)
    assert not quick.over and len(quick.times) == len(kept) == 20


def test_the_workload_is_the_same_in_every_process_and_has_the_shape_it_says(tmp_path: Path) -> None:
    spec = Spec(20_000, dims=16)
    first, again = Workload(spec, tmp_path / "v.npy"), Workload(spec, tmp_path / "v.npy")
    assert np.array_equal(first.vectors, again.vectors)
    assert [first.value(i) for i in range(50)] == [again.value(i) for i in range(50)]
    assert np.allclose(np.linalg.norm(first.vectors, axis=1), 1, atol=1e-5)
    assert first.sizes.sum() + spec.items // 50 + spec.items // 10 == spec.items
    assert first.sizes[0] == pytest.approx(spec.items // 20, rel=0.01) and min(first.sizes) > 5
    assert 200 < np.mean([len(json.dumps(first.value(i))) for i in range(1_000)]) < 400
    batches = [each for turn in range(10) for each in first.batches(turn, 10)]
    assert [number for batch in batches for number in batch] == list(range(spec.items))
    assert {first.namespace(int(number)) for number in first.members(3)} == {first.memories_of(3)}


def test_recall_counts_the_exact_nearest_and_what_ties_with_them() -> None:
    work = Workload(TINY)
    embeddings = NumberedEmbeddings(work)
    question = Questions(work, embeddings).groups["all"].questions[0]
    near = np.argsort(-(work.vectors[work.embedded] @ np.array(embeddings.embed_query(question.text))))
    keys = [work.key(int(work.embedded[each])) for each in near]
    assert question.recall(keys[:10]) == 1.0
    assert question.recall(keys[:5]) == 0.5
    assert question.recall(keys[20:30]) == 0.0
