"""Who wrote an event: read where the caller stands, before any hop to another thread.

Inside a LangGraph run the thread, run, node and checkpoint come from the run's own context.
Outside one, :func:`acting_as` names them. The store never guesses: what is unknown is ``None``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from langchain_core.runnables.config import var_child_runnable_config

from eventstore.errors import InvalidType
from eventstore.events import Provenance

_acting: ContextVar[Provenance | None] = ContextVar("eventstore_acting_as", default=None)


@contextmanager
def acting_as(
    actor: str | None = None,
    *,
    thread: str | None = None,
    run: str | None = None,
    node: str | None = None,
    checkpoint: str | None = None,
) -> Iterator[None]:
    """Name who writes within the ``with`` block, in this thread or task.

    What is given here goes before what LangGraph's context says; what is left out is taken
    from there. Raises ``InvalidType`` for anything that is not a string.
    """
    given = Provenance(actor, thread, run, node, checkpoint)
    for name, value in zip(given._fields, given, strict=True):
        if value is not None and not isinstance(value, str):
            raise InvalidType(f"acting_as({name}=...) takes a string, not {type(value).__name__}")
    outer = _acting.get()
    token = _acting.set(_merge(given, outer) if outer is not None else given)
    try:
        yield
    finally:
        _acting.reset(token)


def current(actor: str | None = None) -> Provenance:
    """Provenance of the caller; ``actor`` is the store's own and fills in when nobody is named."""
    config = var_child_runnable_config.get()
    acting = _acting.get()
    if config is None:
        return Provenance(actor) if acting is None else _merge(acting, Provenance(actor))
    meta = config.get("metadata") or {}
    conf = config.get("configurable") or {}
    # LangGraph takes a config's run_id out again before a node runs; only its runtime keeps it.
    info = getattr(conf.get("__pregel_runtime"), "execution_info", None)
    run = meta.get("run_id") or conf.get("run_id") or config.get("run_id") or getattr(info, "run_id", None)
    found = Provenance(
        actor=_text(conf.get("actor") or conf.get("langgraph_auth_user_id")) or actor,
        thread=_text(conf.get("thread_id") or meta.get("thread_id")),
        run=_text(run),
        node=_text(meta.get("langgraph_node")),
        checkpoint=_text(_checkpoint(conf)),
    )
    return found if acting is None else _merge(acting, found)


def _checkpoint(conf: dict[str, object]) -> object:
    """The checkpoint a node runs from: its own graph's, else the parent's."""
    own = conf.get("checkpoint_id")
    if own:
        return own
    by_namespace = conf.get("checkpoint_map")
    if isinstance(by_namespace, dict):
        return by_namespace.get(conf.get("checkpoint_ns", ""), by_namespace.get(""))
    return None


def _merge(first: Provenance, second: Provenance) -> Provenance:
    return Provenance(*(a if a is not None else b for a, b in zip(first, second, strict=True)))


def _text(value: object) -> str | None:
    return None if value is None or value == "" else str(value)
