"""An agent that books a trip, is killed half-way, goes on where it was, and is sent back for another one.

No language model is needed: ``python agent.py ask``, then ``resume``, then ``back``.
"""

import os
import signal
import sys
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime

from eventstore import EventStore
from eventstore.checkpoint import EventSaver

TRIPS = ("alice", "trips")
THREAD = {"configurable": {"thread_id": "alice-1"}}


class Trip(TypedDict, total=False):
    """What goes from node to node."""

    city: str
    flight: str
    booked: str


def find(state: Trip, runtime: Runtime) -> Trip:
    """Something slow that nobody wants done twice."""
    print(f"looking for a flight to {state['city']}")
    return {"flight": f"{state['city']}, 9:40"}


def book(state: Trip, runtime: Runtime) -> Trip:
    """Remembers what it has booked, for other conversations."""
    if sys.argv[1] == "ask":
        print("booking ... and the power fails", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    runtime.store.put(TRIPS, "next", {"text": state["flight"]})
    return {"booked": state["flight"]}


builder = StateGraph(Trip)
builder.add_node("find", find)
builder.add_node("book", book)
builder.add_edge(START, "find")
builder.add_edge("find", "book")
builder.add_edge("book", END)

with EventStore.open("./trips") as store:
    graph = builder.compile(checkpointer=EventSaver.from_store(store), store=store)
    if sys.argv[1] == "ask":
        graph.invoke({"city": "Lisbon"}, THREAD, durability="sync")
    elif sys.argv[1] == "resume":
        print("to do:", *graph.get_state(THREAD).next)
        print("booked:", graph.invoke(None, THREAD)["booked"])
    else:
        lisbon = graph.get_state(THREAD)
        start = next(each for each in graph.get_state_history(THREAD) if each.next == ("find",))
        porto = graph.update_state(start.config, {"city": "Porto"}, as_node=START)
        print("booked:", graph.invoke(None, porto)["booked"])
        print("memory now:", store.get(TRIPS, "next").value["text"])
        print("as Lisbon saw it:", store.as_of(lisbon.config).get(TRIPS, "next").value["text"])
        print("as the start saw it:", store.as_of(start.config).get(TRIPS, "next"))
