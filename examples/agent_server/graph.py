"""An agent that keeps what it is told, and answers with what it knows. No language model is needed."""

import asyncio
from datetime import timedelta
from typing import TypedDict
from uuid import uuid4

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import CachePolicy
from langgraph_sdk.cache import swr

from eventstore.agent_server import node_cache


class State(TypedDict, total=False):
    """What goes from node to node."""

    user: str
    text: str
    known: list[str]
    weather: str
    answer: str


async def recall(state: State, runtime: Runtime) -> State:
    """What is on record and nearest to the text; then the text itself is kept."""
    namespace = ("users", state["user"])
    found = await runtime.store.asearch(namespace, query=state["text"], limit=3)
    await runtime.store.aput(namespace, str(uuid4()), {"text": state["text"]})
    return {"known": [item.value["text"] for item in found]}


async def look_outside(state: State) -> State:
    """Something slow that all users share: the server's own swr, on the log of this store."""

    async def load() -> str:
        await asyncio.sleep(1)
        return "sunny"

    weather = await swr("weather", load, fresh_for=timedelta(minutes=5))
    return {"weather": f"{weather.value} ({weather.status})"}


async def answer(state: State) -> State:
    """Runs once for the same input: its result is in the node cache, which a restart keeps."""
    known = "; ".join(state["known"]) or "nothing yet"
    return {"answer": f"I know: {known}. Outside it is {state['weather']}."}


graph = (
    StateGraph(State)
    .add_node("recall", recall)
    .add_node("look_outside", look_outside)
    .add_node("answer", answer, cache_policy=CachePolicy(ttl=3600))
    .add_edge(START, "recall")
    .add_edge("recall", "look_outside")
    .add_edge("look_outside", "answer")
    .add_edge("answer", END)
    .compile(cache=node_cache())
)
