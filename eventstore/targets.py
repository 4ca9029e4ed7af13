"""What a LangGraph config names: a thread, perhaps a namespace and a checkpoint of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from eventstore.errors import InvalidInput, InvalidType


class Target(NamedTuple):
    """What was named; ``None`` for what was not."""

    thread: str
    namespace: str | None
    checkpoint: str | None


def target(config: Mapping[str, Any]) -> Target:
    """What a config names. Raises ``InvalidInput`` for one without a thread, and ``InvalidType``."""
    named = _configurable(config)
    if named.get("thread_id") is None:
        raise InvalidInput("the config names no thread; give {'configurable': {'thread_id': ...}}")
    namespace = named.get("checkpoint_ns")
    return Target(
        _text(named["thread_id"], "thread_id"),
        None if namespace is None else _text(namespace, "checkpoint_ns"),
        checkpoint(config),
    )


def checkpoint(config: Mapping[str, Any] | None) -> str | None:
    """The checkpoint a config names; an empty id names none."""
    found = None if config is None else _configurable(config).get("checkpoint_id")
    return _text(found, "checkpoint_id") if found else None


def thread_id(given: object) -> str:
    """A thread's id as text; LangGraph passes any number on as text, too. Raises ``InvalidType``."""
    return _text(given, "thread_id")


def _configurable(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(found, Mapping):
        raise InvalidType(f"a config is a dict with 'configurable'; got {type(config).__name__}")
    return found


def _text(given: object, name: str) -> str:
    if isinstance(given, str):
        try:
            given.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{name} is not Unicode text: {error}") from None
        return given
    if given is None or isinstance(given, (bytes, list, dict, tuple, set)):
        raise InvalidType(f"{name} is a str, not {type(given).__name__}")
    return str(given)
