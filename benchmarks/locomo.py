"""LoCoMo: long conversations as memories, and the questions asked about them.

Ten conversations of two people over months, 5,882 turns, 1,986 questions, each with the turns
that hold its answer (Maharana et al., 2024). Every turn becomes a memory in the namespace of
its conversation; every question is one ``store.search(namespace, query=question, limit=10)``.
Printed: loading rate, query latency and evidence recall@10, for EventStore and for LangGraph's
InMemoryStore in the same run, taking turns at every step.

The embedding model is real (WordLlama, 256 dimensions) but runs once, beforehand, for both:
the stores get its vectors from a table, so that the figures are about the stores.

    python benchmarks/locomo.py locomo.json.gz [--json] [--store both|eventstore|inmemory]

The data is not part of this project. The file is a JSON list (``.gz`` or not) of conversations:
``{"conversation", "turns": [{"id", "session", "when", "speaker", "text"}], "questions":
[{"question", "evidence": [turn ids], "category"}]}``.

Exit code 1 when the recall of any single question differs between the two stores.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, IndexConfig, PutOp, SearchItem
from langgraph.store.memory import InMemoryStore

from eventstore import EventStore
from projector.demo.embedding import DIMS, WordLlamaEmbeddings

LIMIT = 10
TIE = 1e-5
"""Scores closer than this count as equal: one store computes in float32, the other in float64."""

TURN_ID = re.compile(r"D\d+:\d+")


@dataclass(frozen=True)
class Question:
    text: str
    evidence: frozenset[str]
    category: int


@dataclass(frozen=True)
class Conversation:
    namespace: tuple[str, ...]
    memories: list[tuple[str, dict[str, Any]]]
    questions: list[Question]


@dataclass
class Contender:
    """One store and what it took. Times are in seconds."""

    name: str
    store: BaseStore
    load_s: float = 0.0
    loaded: int = 0
    query_s: list[float] = field(default_factory=list)
    recall: list[float | None] = field(default_factory=list)
    found: list[list[SearchItem]] = field(default_factory=list)


class TableEmbeddings(Embeddings):
    """Vectors computed beforehand; an unknown text is an error, not a computation."""

    def __init__(self, texts: Sequence[str]) -> None:
        model = WordLlamaEmbeddings()
        unique = list(dict.fromkeys(texts))
        began = time.perf_counter()
        rows = model.embed_array(unique)
        self.seconds = time.perf_counter() - began
        self._table: dict[str, list[float]] = dict(zip(unique, rows.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self._table)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self._table[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self._table[text]


def read(path: Path) -> list[Conversation]:
    """The conversations of a file. Evidence that names no turn of its conversation is left out."""
    raw = path.read_bytes()
    conversations = []
    for entry in json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw):
        memories = [
            (
                turn["id"],
                {
                    "text": f"{turn['speaker']}: {turn['text']}",
                    "speaker": turn["speaker"],
                    "session": turn["session"],
                    "when": turn["when"],
                },
            )
            for turn in entry["turns"]
        ]
        known = {key for key, _ in memories}
        questions = [
            Question(
                text=asked["question"],
                # Some entries join several ids in one string.
                evidence=frozenset(TURN_ID.findall(" ".join(asked["evidence"]))) & known,
                category=asked["category"],
            )
            for asked in entry["questions"]
        ]
        conversations.append(Conversation(("locomo", str(entry["conversation"])), memories, questions))
    return conversations


def taking_turns(contenders: Sequence[Contender], round_number: int) -> Iterable[Contender]:
    """Everybody once, another one first each time, so that no one always finds warm caches."""
    first = round_number % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def batches(ops: Sequence[PutOp], size: int) -> Iterable[list[PutOp]]:
    """``ops`` in order, at most ``size`` to a batch and no text twice in one.

    InMemoryStore 4.3 raises ``ValueError`` for a batch that holds the same text twice.
    """
    batch: list[PutOp] = []
    seen: set[str] = set()
    for op in ops:
        text = op.value["text"] if op.value is not None else ""
        if len(batch) == size or text in seen:
            yield batch
            batch, seen = [], set()
        batch.append(op)
        seen.add(text)
    if batch:
        yield batch


def load(contenders: Sequence[Contender], conversations: Sequence[Conversation], size: int) -> None:
    """Put every memory, at most ``size`` to a batch; a batch is durable before the next one begins."""
    for number, conversation in enumerate(conversations):
        ops = [PutOp(conversation.namespace, key, value) for key, value in conversation.memories]
        cut = list(batches(ops, size))
        for contender in taking_turns(contenders, number):
            began = time.perf_counter()
            for batch in cut:
                contender.store.batch(batch)
            contender.load_s += time.perf_counter() - began
            contender.loaded += len(ops)


def ask(contenders: Sequence[Contender], conversations: Sequence[Conversation]) -> None:
    """Ask every question of every contender."""
    number = 0
    for conversation in conversations:
        for question in conversation.questions:
            for contender in taking_turns(contenders, number):
                began = time.perf_counter()
                items = contender.store.search(conversation.namespace, query=question.text, limit=LIMIT)
                contender.query_s.append(time.perf_counter() - began)
                found = {item.key for item in items}
                wanted = question.evidence
                contender.recall.append(len(found & wanted) / len(wanted) if wanted else None)
                contender.found.append(items)
            number += 1


def differ(left: list[SearchItem], right: list[SearchItem]) -> str | None:
    """How two answers to one question differ: not at all, by ``"ties"`` only, or by ``"scores"``."""
    if [item.key for item in left] == [item.key for item in right]:
        return None
    if len(left) != len(right):
        return "scores"
    gaps = (abs((a.score or 0.0) - (b.score or 0.0)) for a, b in zip(left, right, strict=True))
    return "ties" if max(gaps) <= TIE else "scores"


def summary(contender: Contender) -> dict[str, Any]:
    times = np.array(contender.query_s) * 1e3
    scored = [one for one in contender.recall if one is not None]
    return {
        "store": contender.name,
        "memories": contender.loaded,
        "memories_per_s": contender.loaded / contender.load_s,
        "queries": len(times),
        "query_p50_ms": float(np.percentile(times, 50)),
        "query_p99_ms": float(np.percentile(times, 99)),
        "recall_at_10": float(np.mean(scored)),
        "scored_questions": len(scored),
    }


def by_category(contender: Contender, conversations: Sequence[Conversation]) -> dict[str, float]:
    kept: dict[int, list[float]] = {}
    questions = (question for conversation in conversations for question in conversation.questions)
    for question, recall in zip(questions, contender.recall, strict=True):
        if recall is not None:
            kept.setdefault(question.category, []).append(recall)
    return {str(category): float(np.mean(kept[category])) for category in sorted(kept)}


def compare(ours: Contender, theirs: Contender) -> dict[str, Any]:
    kinds = [differ(left, right) for left, right in zip(ours.found, theirs.found, strict=True)]
    a, b = summary(ours), summary(theirs)
    return {
        "questions_with_other_recall": sum(x != y for x, y in zip(ours.recall, theirs.recall, strict=True)),
        "differing_lists": sum(kind is not None for kind in kinds),
        "differing_lists_by_ties_only": kinds.count("ties"),
        "load_ratio": a["memories_per_s"] / b["memories_per_s"],
        "query_p50_ratio": b["query_p50_ms"] / a["query_p50_ms"],
        "query_p99_ratio": b["query_p99_ms"] / a["query_p99_ms"],
    }


def report(result: dict[str, Any], say: Callable[[str], None] = print) -> None:
    embedding = result["embedding"]
    say(
        f"LoCoMo: {result['conversations']} conversations, {result['memories']:,} memories, "
        f"{result['questions']:,} questions\n"
        f"Embedding, shared by both stores and in none of the figures below: {embedding['model']}, "
        f"{embedding['texts']:,} texts in {embedding['seconds']:.2f} s\n"
        f"Puts per batch: {result['batch']}. EventStore syncs every batch to disk; "
        "InMemoryStore keeps nothing.\n"
    )
    say(f"{'':14}{'memories/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'recall@10':>12}   by category")
    for one in result["stores"]:
        categories = "  ".join(f"{name}: {value:.3f}" for name, value in one["recall_by_category"].items())
        say(
            f"{one['store']:14}{one['memories_per_s']:>12,.0f}{one['query_p50_ms']:>10.3f}"
            f"{one['query_p99_ms']:>10.3f}{one['recall_at_10']:>12.4f}   {categories}"
        )
    compared = result.get("comparison")
    if compared is None:
        return
    say(
        f"{'times better':14}{compared['load_ratio']:>12.2f}{compared['query_p50_ratio']:>10.1f}"
        f"{compared['query_p99_ratio']:>10.1f}\n"
    )
    say(
        f"Questions whose recall differs: {compared['questions_with_other_recall']}\n"
        f"Answers whose list of ids differs: {compared['differing_lists']}, of which "
        f"{compared['differing_lists_by_ties_only']} only in the order of equal scores"
    )


def run(path: Path, which: str, size: int, folder: Path) -> dict[str, Any]:
    """Load and ask. ``folder`` is where EventStore keeps its files."""
    conversations = read(path)
    texts = [value["text"] for one in conversations for _, value in one.memories]
    texts += [question.text for one in conversations for question in one.questions]
    table = TableEmbeddings(texts)
    index: IndexConfig = {"dims": DIMS, "embed": table, "fields": ["text"]}
    contenders: list[Contender] = []
    try:
        if which in ("both", "eventstore"):
            contenders.append(
                Contender("EventStore", EventStore.from_conn_string(str(folder / "memory"), index=index))
            )
        if which in ("both", "inmemory"):
            contenders.append(Contender("InMemoryStore", InMemoryStore(index=index)))
        load(contenders, conversations, size)
        ask(contenders, conversations)
    finally:
        for contender in contenders:
            if isinstance(contender.store, EventStore):
                contender.store.close()
    result: dict[str, Any] = {
        "conversations": len(conversations),
        "memories": sum(len(one.memories) for one in conversations),
        "questions": sum(len(one.questions) for one in conversations),
        "batch": size,
        "embedding": {"model": f"WordLlama, {DIMS} dims", "texts": len(table), "seconds": table.seconds},
        "stores": [
            {**summary(one), "recall_by_category": by_category(one, conversations)} for one in contenders
        ],
    }
    if len(contenders) == 2:
        result["comparison"] = compare(*contenders)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    # WordLlama turns on INFO for every library when it is imported.
    logging.getLogger().setLevel(logging.WARNING)
    parser = argparse.ArgumentParser(description="LoCoMo on EventStore and InMemoryStore.")
    parser.add_argument("path", type=Path, help="locomo.json or locomo.json.gz")
    parser.add_argument("--store", choices=["both", "eventstore", "inmemory"], default="both")
    parser.add_argument("--batch", type=int, default=1, help="puts per batch; 1 syncs each memory")
    parser.add_argument("--dir", type=Path, help="where EventStore keeps its files (default: temporary)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    if options.batch < 1:
        parser.error("--batch must be at least 1")
    if not options.path.is_file():
        parser.error(f"{options.path} is not a file")
    folder = Path(tempfile.mkdtemp(prefix="locomo-", dir=options.dir))
    try:
        result = run(options.path, options.store, options.batch, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        report(result)
    return 1 if result.get("comparison", {}).get("questions_with_other_recall") else 0


if __name__ == "__main__":
    sys.exit(main())
