"""The benchmark itself: every cell runs, is right, and is told apart when it is not."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks import growth, loop, servers
from benchmarks import run as command
from benchmarks.cells import CELLS, Cell, Goal
from benchmarks.figures import Figure, Results, met
from benchmarks.growing import Pair
from benchmarks.measure import Slice, timed
from benchmarks.questions import Questions
from benchmarks.race import Limits, Race
from benchmarks.report import as_json, growth_table, main_table, markdown
from benchmarks.workload import NumberedEmbeddings, Spec, Workload

TINY = Spec(items=300, dims=32)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    limits = Limits(seconds=0.03, turns=1)
    folder = tmp_path_factory.mktemp("benchmark")
    (found,) = command.run(
        [TINY.items],
        peers=["inmemory", "sqlite"],
        dims=TINY.dims,
        limits=limits,
        directory=folder,
        console=Console(quiet=True),
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


def test_a_peer_whose_server_cannot_be_had_stays_in_the_table_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none_here(address: str | None = None) -> Any:
        raise servers.Unavailable("there is none here")

    monkeypatch.setattr(servers, "kafka", none_here)
    with contextlib.ExitStack() as stack:
        missing = command._start_servers(stack, ["inmemory", "kafka", "sqlite"], {})
    assert missing == {"kafka": "no server: there is none here"}
    assert servers.KAFKA not in os.environ
    race = Race(TINY, ["eventstore", "kafka"], Limits(), tmp_path, lambda text: None, missing)
    for cell in CELLS:
        reason = race._excuse(cell, "kafka", False)
        assert reason is not None and Figure.of([reason]).reason == "no server: there is none here"


def test_growth_is_measured_in_processes_of_its_own(tmp_path: Path) -> None:
    found = growth.measure([400, 800], updates=40, deleted=60, dims=16, seconds=0.02, directory=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert sorted(found.sizes) == [400, 800]
    for figures in found.sizes.values():
        assert all(value >= 0 for value in figures.values())
        assert {*growth.FLAT, *growth.AT_MOST} <= figures.keys()
        assert figures["semantic, everything: found, share"] == 1.0
    written = json.loads(json.dumps(growth.as_json(found, command.machine())))
    assert written["updates"].keys() == found.updates.keys() and len(written["deletions"]) == 5
    console = Console(width=250, record=True, file=io.StringIO())
    for table in growth.tables(found, 40, 60):
        console.print(table)
    text = console.export_text()
    assert "history of the hot memory" in text and "list, five left" in text and "open and first get" in text


def test_growth_says_which_goals_are_missed() -> None:
    flat = dict.fromkeys([*growth.FLAT, *growth.AT_MOST], 1.0)
    found = growth.Growth(
        {1_000: flat, 2_000: {**flat, growth.FLAT[0]: 2.1, "open and first get": 2.5}},
        {"list": Pair(1.0, 1.9)},
        {"list": Pair(1.0, 2.2)},
    )
    assert growth.missed(found) == [
        "get, its work: 2.1 times slower among 2,000 memories",
        "open and first get: 2.5 s at 2,000 memories",
        "list: 2.2 times slower after the deletions",
    ]


def test_the_watchdog_of_the_loop_hears_every_kind_of_call(tmp_path: Path) -> None:
    found = loop.measure(200, 0.05, tmp_path, model_seconds=0.001)
    assert found[loop.IDLE].calls == 0
    for name, late in found.items():
        assert late.beats > 0 and late.worst >= late.median, name
        assert name == loop.IDLE or late.calls > 0, name
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(loop.table(found))
    assert all(name in console.export_text(clear=False) for name in found)


def test_tables_and_json_name_every_cell(results: Results, tmp_path: Path) -> None:
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(main_table(results))
    console.print(growth_table([results, results]))
    text = console.export_text()
    written = json.loads(json.dumps(as_json([results], command.machine())))
    page = markdown(main_table(results))
    (size,) = written["sizes"]
    for cell in CELLS:
        assert cell.title in text and f"| {cell.title}" in page
    assert len({line.count("|") for line in page.splitlines()[2:]}) == 1
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
