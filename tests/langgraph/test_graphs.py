"""EventStore inside real LangGraph graphs: every way a node or tool gets at its store.

No model is needed: tool calls are written by hand, and the embedder knows a handful of topics.
"""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict
from uuid import UUID, uuid4

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedStore, ToolNode, ToolRuntime
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.types import Send
from langmem import create_manage_memory_tool, create_search_memory_tool

from eventstore import EventStore

OpenStore = Callable[..., EventStore]

ALICE = ("alice", "memories")

TOPICS = (
    ("tea", "drink", "beverage", "coffee"),
    ("cello", "piano", "instrument", "music"),
    ("train", "travel", "journey"),
    ("dog", "pet", "cat"),
)


class TopicEmbeddings(Embeddings):
    """One dimension per topic, and a small constant one so that no vector is zero."""

    def embed_query(self, text: str) -> list[float]:
        words = set(re.findall(r"[a-z]+", text.lower()))
        return [float(len(words.intersection(topic))) for topic in TOPICS] + [0.1]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]


@pytest.fixture
def store(open_store: OpenStore) -> EventStore:
    index = {"dims": len(TOPICS) + 1, "embed": TopicEmbeddings(), "fields": ["text", "content"]}
    return open_store(index=index, actor="the-agent")


class State(TypedDict, total=False):
    said: str
    found: list[str]


class Fan(TypedDict, total=False):
    number: int
    done: Annotated[list[int], operator.add]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def config(thread: str, run: UUID | None = None, **configurable: str) -> RunnableConfig:
    made: RunnableConfig = {"configurable": {"thread_id": thread, **configurable}}
    if run is not None:
        made["run_id"] = run
    return made


def handed_down(thread: str, run: UUID) -> RunnableConfig:
    """LangGraph does not tell subgraphs and tasks a config's ``run_id``; metadata reaches them."""
    return {"configurable": {"thread_id": thread}, "metadata": {"run_id": str(run)}}


def calling(name: str, **arguments: Any) -> Chat:
    """What a model says when it wants one tool."""
    return {
        "messages": [AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": uuid4().hex}])],
    }


def texts(items: Sequence[Any]) -> list[str]:
    return [item.value["text"] for item in items]


def a_graph(store: BaseStore, **nodes: Callable[..., Any]) -> Any:
    """Nodes one after another, with a checkpointer and a store."""
    builder = StateGraph(State)
    builder.add_sequence([(name, node) for name, node in nodes.items()])
    builder.add_edge(START, next(iter(nodes)))
    return builder.compile(checkpointer=InMemorySaver(), store=store)


def remember(state: State, runtime: Runtime) -> State:
    assert runtime.store is not None
    runtime.store.put(ALICE, "last", {"text": state["said"]})
    return {}


def find(state: State, runtime: Runtime) -> State:
    assert runtime.store is not None
    return {"found": texts(runtime.store.search(ALICE, query=state["said"]))}


async def aremember(state: State, runtime: Runtime) -> State:
    assert runtime.store is not None
    await runtime.store.aput(ALICE, "last", {"text": state["said"]})
    return {}


async def afind(state: State, runtime: Runtime) -> State:
    assert runtime.store is not None
    return {"found": texts(await runtime.store.asearch(ALICE, query=state["said"]))}


def test_sync_nodes_share_memory_across_threads(store: EventStore) -> None:
    a_graph(store, remember=remember).invoke({"said": "I play the cello"}, config("monday"))
    out = a_graph(store, find=find).invoke({"said": "which instrument?"}, config("tuesday"))
    assert out["found"] == ["I play the cello"]


def test_async_nodes_share_memory_across_threads(store: EventStore) -> None:
    async def both() -> Any:
        await a_graph(store, remember=aremember).ainvoke({"said": "I drink tea"}, config("monday"))
        return await a_graph(store, find=afind).ainvoke({"said": "a beverage"}, config("tuesday"))

    assert asyncio.run(both())["found"] == ["I drink tea"]


def test_sync_nodes_and_async_nodes_of_one_run_see_each_other(store: EventStore) -> None:
    """LangGraph runs sync nodes of an async run in other threads."""

    async def again(state: State, runtime: Runtime) -> State:
        assert runtime.store is not None
        item = await runtime.store.aget(ALICE, "last")
        assert item is not None
        await runtime.store.aput(ALICE, "last", {"text": item.value["text"] + " every day"})
        return {}

    graph = a_graph(store, remember=remember, again=again, find=find)
    out = asyncio.run(graph.ainvoke({"said": "I drink tea"}, config("monday")))
    assert out["found"] == ["I drink tea every day"]


def test_a_blocking_call_in_an_async_node_does_not_deadlock(store: EventStore) -> None:
    async def careless(state: State, runtime: Runtime) -> State:
        return remember(state, runtime) | find(state, runtime)

    async def bounded() -> Any:
        return await asyncio.wait_for(
            a_graph(store, careless=careless).ainvoke({"said": "a dog"}, config("monday")), timeout=20
        )

    assert asyncio.run(bounded())["found"] == ["a dog"]


def test_get_store_reaches_the_store(store: EventStore) -> None:
    def node(state: State) -> State:
        get_store().put(ALICE, "last", {"text": state["said"]})
        return {}

    a_graph(store, node=node).invoke({"said": "tea"}, config("monday"))
    assert texts(store.search(ALICE)) == ["tea"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_write_carries_thread_run_node_and_checkpoint(store: EventStore, asynchronous: bool) -> None:
    run = uuid4()
    graph = a_graph(store, listen=aremember if asynchronous else remember)
    if asynchronous:
        asyncio.run(graph.ainvoke({"said": "tea"}, config("monday", run)))
    else:
        graph.invoke({"said": "tea"}, config("monday", run))

    (version,) = store.history(ALICE, "last")
    assert (version.kind, version.version, version.value) == ("put", 1, {"text": "tea"})
    assert (version.thread, version.run, version.node) == ("monday", str(run), "listen")
    assert version.actor == "the-agent"
    past = graph.get_state_history(config("monday"))
    assert version.checkpoint in [one.config["configurable"]["checkpoint_id"] for one in past]


def test_each_version_names_the_run_that_wrote_it(store: EventStore) -> None:
    def forget(state: State, runtime: Runtime) -> State:
        assert runtime.store is not None
        runtime.store.delete(ALICE, "last")
        return {}

    first, second, third = uuid4(), uuid4(), uuid4()
    learning = a_graph(store, learn=remember)
    learning.invoke({"said": "tea"}, config("monday", first))
    learning.invoke({"said": "coffee"}, config("tuesday", second))
    a_graph(store, forget=forget).invoke({}, config("wednesday", third))

    told = [(v.kind, v.value, v.thread, v.run, v.node) for v in store.history(ALICE, "last")]
    assert told == [
        ("delete", None, "wednesday", str(third), "forget"),
        ("put", {"text": "coffee"}, "tuesday", str(second), "learn"),
        ("put", {"text": "tea"}, "monday", str(first), "learn"),
    ]
    assert store.get(ALICE, "last") is None


def test_a_write_outside_any_run_has_no_thread(store: EventStore) -> None:
    a_graph(store, remember=remember).invoke({"said": "tea"}, config("monday", uuid4()))
    store.put(ALICE, "last", {"text": "by hand"})
    newest = store.history(ALICE, "last")[0]
    assert (newest.thread, newest.run, newest.node, newest.checkpoint) == (None, None, None, None)
    assert newest.actor == "the-agent"


def test_parallel_nodes_write_under_their_own_names(store: EventStore) -> None:
    def scatter(state: Fan) -> list[Send]:
        return [Send(name, {"number": n}) for n in range(8) for name in ("left", "right")]

    def writer(name: str) -> Callable[..., Fan]:
        def write(state: Fan, runtime: Runtime) -> Fan:
            assert runtime.store is not None
            runtime.store.put((*ALICE, name), str(state["number"]), {"text": f"tea {state['number']}"})
            return {"done": [state["number"]]}

        return write

    builder = StateGraph(Fan)
    builder.add_node("left", writer("left"))
    builder.add_node("right", writer("right"))
    builder.add_conditional_edges(START, scatter, ["left", "right"])
    out = builder.compile(store=store).invoke({"done": []}, config("monday", uuid4()))

    assert sorted(out["done"]) == sorted([*range(8), *range(8)])
    assert len(store.search(ALICE, query="tea", limit=100)) == 16
    for name in ("left", "right"):
        for number in range(8):
            (version,) = store.history((*ALICE, name), str(number))
            assert (version.node, version.thread) == (name, "monday")


def test_a_subgraph_uses_the_store_of_its_parent(store: EventStore) -> None:
    run = uuid4()
    inner = StateGraph(State).add_node("inside", remember).add_edge(START, "inside").compile()
    outer = (
        StateGraph(State)
        .add_node("sub", inner)
        .add_node("find", find)
        .add_edge(START, "sub")
        .add_edge("sub", "find")
        .compile(checkpointer=InMemorySaver(), store=store)
    )
    out = outer.invoke({"said": "a train journey"}, handed_down("monday", run))
    assert out["found"] == ["a train journey"]
    (version,) = store.history(ALICE, "last")
    assert (version.thread, version.run, version.node) == ("monday", str(run), "inside")


def test_a_graph_called_from_a_node_uses_the_store_too(store: EventStore) -> None:
    inner = StateGraph(State).add_node("inside", aremember).add_edge(START, "inside").compile()

    async def call(state: State) -> State:
        await inner.ainvoke(state)
        return {}

    asyncio.run(a_graph(store, call=call).ainvoke({"said": "tea"}, config("monday")))
    (version,) = store.history(ALICE, "last")
    assert (version.thread, version.node) == ("monday", "inside")


def test_functional_api_writes_from_tasks(store: EventStore) -> None:
    @task
    def note(text: str) -> None:
        get_store().put(ALICE, text, {"text": text})

    @entrypoint(checkpointer=InMemorySaver(), store=store)
    def flow(said: list[str]) -> list[str]:
        for future in [note(text) for text in said]:
            future.result()
        return texts(get_store().search(ALICE, query="pet", limit=1))

    run = uuid4()
    assert flow.invoke(["a dog", "a train"], handed_down("monday", run)) == ["a dog"]
    (version,) = store.history(ALICE, "a train")
    assert (version.thread, version.run, version.node) == ("monday", str(run), "note")


def test_what_was_written_before_a_node_failed_stays(store: EventStore) -> None:
    def fail(state: State, runtime: Runtime) -> State:
        remember(state, runtime)
        raise RuntimeError("after the put")

    with pytest.raises(RuntimeError, match="after the put"):
        a_graph(store, fail=fail).invoke({"said": "tea"}, config("monday"))
    assert texts(store.search(ALICE)) == ["tea"]


@tool
def save_memory(text: str, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Keep a memory."""
    store.put(ALICE, "from-tool", {"text": text})
    return "saved"


@tool
async def asave_memory(text: str, runtime: ToolRuntime) -> str:
    """Keep a memory, asynchronously."""
    assert runtime.store is not None
    await runtime.store.aput(ALICE, "from-tool", {"text": text})
    return "saved"


def tool_graph(store: BaseStore, *tools: Any) -> Any:
    builder = StateGraph(Chat).add_node("tools", ToolNode(list(tools))).add_edge(START, "tools")
    return builder.add_edge("tools", END).compile(checkpointer=InMemorySaver(), store=store)


def test_tools_get_the_store_injected(store: EventStore) -> None:
    run = uuid4()
    out = tool_graph(store, save_memory).invoke(calling("save_memory", text="a cat"), config("monday", run))
    assert out["messages"][-1].content == "saved"
    (version,) = store.history(ALICE, "from-tool")
    assert (version.thread, version.run, version.node) == ("monday", str(run), "tools")


def test_async_tools_get_the_store_from_their_runtime(store: EventStore) -> None:
    run = uuid4()
    graph = tool_graph(store, asave_memory)
    out = asyncio.run(graph.ainvoke(calling("asave_memory", text="a cat"), config("monday", run)))
    assert out["messages"][-1].content == "saved"
    (version,) = store.history(ALICE, "from-tool")
    assert (version.thread, version.run, version.node) == ("monday", str(run), "tools")


def langmem_graph(store: BaseStore) -> Any:
    namespace = ("{user}", "memories")
    return tool_graph(store, create_manage_memory_tool(namespace), create_search_memory_tool(namespace))


def answer(out: Any) -> str:
    (*_, last) = out["messages"]
    assert isinstance(last, ToolMessage) and last.status != "error", last
    return str(last.content)


def test_langmem_tools_create_find_change_and_delete(store: EventStore) -> None:
    graph = langmem_graph(store)

    def call(thread: str, name: str, **arguments: Any) -> str:
        return answer(graph.invoke(calling(name, **arguments), config(thread, user="alice")))

    call("monday", "manage_memory", content="Alice plays the cello", action="create")
    call("monday", "manage_memory", content="Alice likes a train journey", action="create")
    found = call("tuesday", "search_memory", query="music", limit=1)
    assert "Alice plays the cello" in found and "train" not in found

    (item,) = store.search(ALICE, query="instrument", limit=1)
    call("wednesday", "manage_memory", content="Alice plays the piano", action="update", id=item.key)
    assert "piano" in call("thursday", "search_memory", query="music", limit=1)

    call("friday", "manage_memory", action="delete", id=item.key)
    assert [one.value["content"] for one in store.search(ALICE)] == ["Alice likes a train journey"]
    past = [(v.kind, v.thread, v.node) for v in store.history(ALICE, item.key)]
    assert past == [("delete", "friday", "tools"), ("put", "wednesday", "tools"), ("put", "monday", "tools")]


def test_langmem_tools_work_asynchronously_and_keep_users_apart(store: EventStore) -> None:
    graph = langmem_graph(store)

    async def call(user: str, name: str, **arguments: Any) -> str:
        return answer(await graph.ainvoke(calling(name, **arguments), config(f"of-{user}", user=user)))

    async def everybody() -> list[str]:
        await asyncio.gather(
            call("alice", "manage_memory", content="my dog is Rex", action="create"),
            call("bob", "manage_memory", content="my cat is Tom", action="create"),
        )
        return await asyncio.gather(*(call(user, "search_memory", query="pet") for user in ("alice", "bob")))

    of_alice, of_bob = asyncio.run(everybody())
    assert "Rex" in of_alice and "Tom" not in of_alice
    assert "Tom" in of_bob and "Rex" not in of_bob


def test_a_user_name_that_is_no_label_is_named_in_the_error(store: EventStore) -> None:
    with pytest.raises(ValueError, match=r"bob\.smith"):
        create_manage_memory_tool(("{user}",), store=store).invoke(
            {"content": "x", "action": "create"}, {"configurable": {"user": "bob.smith"}}
        )
    assert store.search(()) == []
