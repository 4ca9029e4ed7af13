"""What each process of the demonstration does, from opening the store to closing it.

Nothing is handed from one process to the next except the folder the store is in.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast
from uuid import uuid4

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig

from eventstore import EventStore
from projector.demo import stage
from projector.demo.conversation import (
    AFTERWARDS,
    CORRECTION,
    LEARNING,
    LEARNING_THREAD,
    RECALL_THREAD,
    RECALLS,
    USER,
)
from projector.demo.embedding import DIMS, WordLlamaEmbeddings
from projector.demo.graph import Agent, Context, Turn, agent

MAYA = Context(USER)
ASK_THREAD = "a-question"


def open_store(data: Path) -> EventStore:
    """The store in a folder; made if it is not there. Provenance names this process."""
    return EventStore.from_conn_string(
        str(data),
        index={"dims": DIMS, "embed": WordLlamaEmbeddings(), "fields": ["text"]},
        actor=f"process {os.getpid()}",
    )


def learn(data: Path) -> None:
    """First process: listen, and keep what was said."""
    with open_store(data) as store:
        graph = agent(store)
        stage.act(1, "Monday", f"process {os.getpid()}, thread {LEARNING_THREAD}")
        for message in LEARNING:
            turn = _turn(graph, LEARNING_THREAD, message)
            count = len(turn["touched"])
            stage.note(
                f"{count} {'memory' if count == 1 else 'memories'} embedded and "
                f"synced to disk in {turn['store_ms']:.1f} ms"
            )


def recall(data: Path) -> None:
    """Second process: remember by meaning, correct one memory, and show its history."""
    with open_store(data) as store:
        graph = agent(store)
        stage.act(2, "Thursday", f"process {os.getpid()}, thread {RECALL_THREAD}, no message in it yet")
        for question, _ in RECALLS:
            _ask(store, graph, RECALL_THREAD, question)

        stage.act(3, "Something changes", f"process {os.getpid()}, thread {RECALL_THREAD}")
        corrected = _turn(graph, RECALL_THREAD, CORRECTION)["touched"][0]
        stage.note(f"in place of: “{corrected['was']}”")
        _ask(store, graph, RECALL_THREAD, AFTERWARDS.question)

        stage.act(4, "Nothing is lost", "store.history(namespace, key): every version and where it came from")
        stage.history(corrected["key"], store.history(MAYA.namespace, corrected["key"]))


def ask(data: Path, question: str) -> None:
    """A question of the reader's own, in a process of its own."""
    with open_store(data) as store:
        _ask(store, agent(store), ASK_THREAD, question if question.endswith("?") else f"{question}?")


def memories(data: Path) -> None:
    """Everything the agent knows."""
    with open_store(data) as store:
        items = store.search(MAYA.namespace, limit=1000)
        stage.memories(
            (item.key, item.value["text"], len(store.history(MAYA.namespace, item.key))) for item in items
        )


def _turn(graph: Agent, thread: str, message: str) -> Turn:
    """One run of the graph, printed."""
    stage.says(USER.capitalize(), message)
    config: RunnableConfig = {"configurable": {"thread_id": thread}, "run_id": uuid4()}
    said: Turn = {"messages": [HumanMessage(message)], "touched": [], "store_ms": 0.0}
    turn = cast(Turn, graph.invoke(said, config, context=MAYA))
    stage.says("agent", turn["messages"][-1].text)
    return turn


def _ask(store: EventStore, graph: Agent, thread: str, question: str) -> None:
    turn = _turn(graph, thread, question)
    if not turn["touched"]:
        return
    best, *others = turn["touched"]
    origin = store.history(MAYA.namespace, best["key"])[0]
    runner_up = f" (next {others[0]['score']:.2f})" if others else ""
    stage.note(
        f"similarity {best['score']:.2f}{runner_up} in {turn['store_ms']:.1f} ms, from thread {origin.thread}"
    )
