"""The agent: a LangGraph graph that keeps what it is told in the store it is compiled with.

No language model runs here, so that the demonstration works anywhere: a plain rule picks the
sentences worth keeping, and answers quote the memory they rest on. What is real is the
graph, the store, and the embedding model that decides what a question means.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AIMessage, AnyMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

SENTENCE = re.compile(r"[^.?!]+[.?!]")
FIRST_PERSON = re.compile(r"\b(I|my|we|our)\b", re.IGNORECASE)
CORRECTS = re.compile(r"^actually,?\s+", re.IGNORECASE)
WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class Context:
    """Whose memories this run may touch."""

    user: str

    @property
    def namespace(self) -> tuple[str, ...]:
        """Where the user's memories live, whatever the thread."""
        return (self.user, "memories")


class Turn(TypedDict):
    """The graph's state: the thread's messages, and what the last turn did with memories."""

    messages: Annotated[list[AnyMessage], add_messages]
    touched: list[dict[str, Any]]
    store_ms: float


Agent = CompiledStateGraph[Turn, Context, Turn, Turn]


def worth_keeping(message: str) -> list[str]:
    """The statements of a message that its writer made about themself."""
    sentences = [found.strip() for found in SENTENCE.findall(message)]
    return [one for one in sentences if not one.endswith("?") and FIRST_PERSON.search(one)]


def name_of(statement: str) -> str:
    """A readable key: the same statement made twice is one memory."""
    digest = hashlib.sha256(statement.encode()).hexdigest()
    return "-".join([*WORD.findall(statement.lower())[:3], digest[:4]])


def choose(state: Turn) -> Literal["learn", "recall", "correct"]:
    """What kind of message came in."""
    said = state["messages"][-1].text
    if CORRECTS.match(said):
        return "correct"
    return "learn" if worth_keeping(said) or not said.endswith("?") else "recall"


def learn(state: Turn, runtime: Runtime[Context]) -> dict[str, Any]:
    """Keep every statement. Each put is on disk when it returns."""
    store, namespace = _store(runtime), runtime.context.namespace
    statements = worth_keeping(state["messages"][-1].text)
    began = time.perf_counter()
    for statement in statements:
        store.put(namespace, name_of(statement), {"text": statement})
    spent = time.perf_counter() - began
    reply = "I'll remember that." if statements else "Nice to hear."
    return _turn(reply, [{"text": statement} for statement in statements], spent)


def recall(state: Turn, runtime: Runtime[Context]) -> dict[str, Any]:
    """Answer with the memory closest in meaning."""
    began = time.perf_counter()
    items = _store(runtime).search(runtime.context.namespace, query=state["messages"][-1].text, limit=2)
    spent = time.perf_counter() - began
    if not items:
        return _turn("You have told me nothing yet.", [], spent)
    touched = [{"key": item.key, "text": item.value["text"], "score": item.score} for item in items]
    return _turn(f"You told me: “{items[0].value['text']}”", touched, spent)


def correct(state: Turn, runtime: Runtime[Context]) -> dict[str, Any]:
    """Replace the memory that a correction is about: the closest one in meaning."""
    store, namespace = _store(runtime), runtime.context.namespace
    said = CORRECTS.sub("", state["messages"][-1].text)
    statement = said[:1].upper() + said[1:]
    began = time.perf_counter()
    found = store.search(namespace, query=statement, limit=1)
    key = found[0].key if found else name_of(statement)
    store.put(namespace, key, {"text": statement})
    spent = time.perf_counter() - began
    was = found[0].value["text"] if found else None
    return _turn("Thank you, I have corrected that.", [{"key": key, "was": was, "text": statement}], spent)


def agent(store: BaseStore) -> Agent:
    """The compiled graph. Its threads live in memory and end with the process; the store does not."""
    graph = StateGraph(Turn, context_schema=Context)
    graph.add_node("learn", learn)
    graph.add_node("recall", recall)
    graph.add_node("correct", correct)
    graph.add_conditional_edges(START, choose)
    for node in ("learn", "recall", "correct"):
        graph.add_edge(node, END)
    return graph.compile(checkpointer=InMemorySaver(), store=store)


def _store(runtime: Runtime[Context]) -> BaseStore:
    assert runtime.store is not None, "the agent is compiled with a store"
    return runtime.store


def _turn(reply: str, touched: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    return {"messages": [AIMessage(reply)], "touched": touched, "store_ms": seconds * 1e3}
