"""The demonstration, run as a user runs it: a command, its output, and a folder left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from projector.demo.conversation import CORRECTION, LEARNING, RECALLS
from projector.demo.embedding import DIMS, WordLlamaEmbeddings
from projector.demo.graph import name_of, worth_keeping

FILLER = set(re.findall(r"\w+", "a am any are at by do for have how i in is my not of or the there to we"))


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The command without a terminal, wide enough that no sentence is broken."""
    return subprocess.run(
        [sys.executable, "-m", "projector.demo", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def shown(folder: Path) -> str:
    """The output of the whole demonstration."""
    done = run("--data", "memory", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def replies(shown: str) -> dict[str, str]:
    """What the agent answered to each thing Maya said."""
    lines = [line.strip() for line in shown.splitlines()]
    return {
        line.removeprefix("Maya").strip(): lines[number + 1].removeprefix("agent").strip()
        for number, line in enumerate(lines)
        if line.startswith("Maya ")
    }


def test_the_second_process_recalls_by_meaning(shown: str) -> None:
    answered = replies(shown)
    for question, remembers in RECALLS[:-1]:
        assert remembers in answered[question]
    assert "similarity 0." in shown


def test_no_question_shares_a_telling_word_with_its_memory() -> None:
    """Otherwise the demonstration would show word matching."""
    statements = [statement for message in LEARNING for statement in worth_keeping(message)]
    for question, remembers in RECALLS:
        (memory,) = [statement for statement in statements if remembers in statement]
        words = [set(re.findall(r"[a-z]+", text.lower())) for text in (question, memory)]
        assert not (words[0] & words[1]) - FILLER


def test_learning_and_recalling_are_two_processes_and_two_threads(shown: str) -> None:
    acts = re.findall(r"process (\d+), thread ([\w-]+)", shown)
    (learner, first_thread), (recaller, second_thread) = acts[:2]
    assert learner != recaller
    assert first_thread != second_thread
    assert f"Process {learner} has ended" in shown


def test_the_correction_replaces_the_memory_it_is_about(shown: str) -> None:
    assert "Lisbon" in shown.split(CORRECTION)[1]
    assert "Porto" in replies(shown)[RECALLS[-1].question]


def test_the_history_shows_both_versions_with_thread_run_node_and_time(shown: str) -> None:
    history = shown.split("history of")[1]
    put = re.findall(r"put: (.+?)\s*│", history)
    assert [("Porto" in text, "Lisbon" in text) for text in put] == [(True, False), (False, True)]
    writers = re.findall(r"thread\s+([\w-]+), node (\w+), by process (\d+)", history)
    assert [(thread, node) for thread, node, _ in writers] == [
        ("thursday-evening", "correct"),
        ("monday-breakfast", "learn"),
    ]
    assert writers[0][2] != writers[1][2]
    runs = re.findall(r"run\s+([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]+)", history)
    assert len(set(runs)) == 2
    newer, older = re.findall(r"at\s+(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}) UTC", history)
    assert newer > older


def test_output_without_a_terminal_is_plain(shown: str) -> None:
    assert "\x1b" not in shown


def test_what_it_left_can_be_asked_again(shown: str, folder: Path) -> None:
    assert "projector.demo ask" in shown
    asked = run("ask", "What is my job?", "--data", "memory", cwd=folder)
    assert asked.returncode == 0, asked.stderr
    assert "nurse" in asked.stdout
    listed = run("memories", "--data", "memory", cwd=folder)
    assert listed.returncode == 0, listed.stderr
    assert "Porto" in listed.stdout and "Lisbon" not in listed.stdout


def test_a_folder_in_use_is_not_written_to(shown: str, folder: Path) -> None:
    again = run("--data", "memory", cwd=folder)
    assert again.returncode == 2
    assert "not empty" in again.stderr


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("Good morning! I work at night. Do you?", ["I work at night."]),
        ("Is my sister well?", []),
        ("It rains.", []),
        ("My flat is small! We moved in May.", ["My flat is small!", "We moved in May."]),
    ],
)
def test_the_rule_keeps_statements_about_the_speaker(message: str, kept: list[str]) -> None:
    assert worth_keeping(message) == kept


def test_keys_are_stable_and_tell_statements_apart() -> None:
    assert name_of("I play chess.") == name_of("I play chess.")
    assert name_of("I play chess on Mondays.") != name_of("I play chess on Fridays.")


def test_the_embedding_model_gives_unit_vectors() -> None:
    model = WordLlamaEmbeddings()
    rows = model.embed_array(["a cello", "a train", ""])
    assert rows.shape == (3, DIMS)
    assert [round(float(row @ row), 5) for row in rows] == [1.0, 1.0, 0.0]
    assert model.embed_query("a cello") == rows[0].tolist()
