"""Who wrote an event: what is given, what LangGraph's run says, and nothing that is guessed."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.runnables.config import var_child_runnable_config

from eventstore import acting_as
from eventstore.errors import InvalidType
from eventstore.events import Provenance
from eventstore.provenance import current
from tests.conftest import OpenStore


@contextmanager
def run_of(**config: Any) -> Iterator[None]:
    token = var_child_runnable_config.set(config)  # type: ignore[arg-type]
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def test_outside_a_run_nothing_is_known_but_the_stores_own_actor() -> None:
    assert current() == Provenance()
    assert current("support") == Provenance("support")


def test_a_run_says_who_and_where() -> None:
    configurable = {"thread_id": "t", "checkpoint_id": "c", "langgraph_auth_user_id": "ann"}
    with run_of(metadata={"run_id": 7, "langgraph_node": "n"}, configurable=configurable):
        assert current("support") == Provenance("ann", "t", "7", "n", "c")


def test_a_subgraph_without_a_checkpoint_of_its_own_names_its_parents() -> None:
    with run_of(configurable={"checkpoint_map": {"": "parent", "sub": "own"}, "checkpoint_ns": "sub"}):
        assert current().checkpoint == "own"
    with run_of(configurable={"checkpoint_map": {"": "parent"}, "checkpoint_ns": "sub"}):
        assert current().checkpoint == "parent"


def test_what_is_given_goes_before_what_the_run_says() -> None:
    with run_of(configurable={"thread_id": "t", "actor": "run"}), acting_as("me", run="r"):
        assert current("store") == Provenance("me", "t", "r")
    with acting_as("outer", thread="t"), acting_as(run="r"), acting_as("inner"):
        assert current() == Provenance("inner", "t", "r")
    assert current() == Provenance()


@pytest.mark.parametrize("name", ["actor", "thread", "run", "node", "checkpoint"])
def test_only_strings_are_taken(name: str) -> None:
    with pytest.raises(InvalidType, match=name), acting_as(**{name: 5}):  # type: ignore[arg-type]
        pass


def test_tasks_and_contexts_keep_their_own() -> None:
    async def task(actor: str) -> str | None:
        with acting_as(actor):
            await asyncio.sleep(0.001)
            return current().actor

    async def main() -> list[str | None]:
        return await asyncio.gather(*(task(str(n)) for n in range(10)))

    assert asyncio.run(main()) == [str(n) for n in range(10)]
    assert contextvars.copy_context().run(current) == Provenance()


def test_the_history_shows_the_caller_and_not_the_thread_that_wrote(open_store: OpenStore) -> None:
    store = open_store(actor="store")

    async def main() -> None:
        with acting_as("ann", run="1"):
            await store.aput(("a",), "k", {"n": 1})
        await store.aput(("a",), "k", {"n": 2})

    asyncio.run(main())
    assert [(each.actor, each.run) for each in store.history(("a",), "k")] == [("store", None), ("ann", "1")]
