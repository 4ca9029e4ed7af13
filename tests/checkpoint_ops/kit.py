"""What the tests of looking after checkpoints share: an agent with memories, interrupts and a subgraph."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.base import BaseStore
from langgraph.types import Command, Send, interrupt

Graph = CompiledStateGraph[Any, Any, Any, Any]


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    seen: Annotated[list[str], operator.add]


class Part(TypedDict):
    seen: Annotated[list[str], operator.add]


def config(thread: str, checkpoint: str | None = None) -> RunnableConfig:
    named = {"thread_id": thread}
    if checkpoint is not None:
        named["checkpoint_id"] = checkpoint
    return cast(RunnableConfig, {"configurable": named})


def agent(saver: BaseCheckpointSaver[Any], store: BaseStore | None = None) -> Graph:
    """Answers, sends to three workers, runs a subgraph that keeps its own checkpoints, and asks a person."""

    def answer(state: State) -> dict[str, Any]:
        if store is not None:
            store.put(("agent",), "turn", {"n": len(state["messages"])})
        return {"messages": [AIMessage(f"answer to {state['messages'][-1].content} {'x' * 600}")]}

    def worker(state: Part) -> dict[str, Any]:
        return {"seen": [f"worked on {state['seen'][0]}"]}

    def inner(state: Part) -> dict[str, Any]:
        return {"seen": ["inside"]}

    def ask(state: State) -> dict[str, Any]:
        return {"messages": [AIMessage(f"approved: {interrupt('go on?')}")]}

    below = StateGraph(Part)
    below.add_node("inner", inner)
    below.add_edge(START, "inner")
    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_node("worker", worker)
    graph.add_node("below", below.compile(checkpointer=True))
    graph.add_node("ask", ask)
    graph.add_edge(START, "answer")
    graph.add_conditional_edges(
        "answer", lambda state: [Send("worker", {"seen": [name]}) for name in "cab"], ["worker"]
    )
    graph.add_edge("worker", "below")
    graph.add_edge("below", "ask")
    return graph.compile(checkpointer=saver)


def talk(graph: Graph, thread: str, turns: Sequence[str], *, approve: bool = True) -> None:
    """Turns of a thread; the last one waits for its answer unless ``approve``."""
    for number, text in enumerate(turns):
        graph.invoke({"messages": [HumanMessage(text)]}, config(thread))
        if approve or number < len(turns) - 1:
            graph.invoke(Command(resume="yes"), config(thread))
