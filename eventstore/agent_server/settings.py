"""Where the server's store lives, and what ``langgraph.json`` says about it.

The server hands nothing to a custom store. The ``store`` section of its configuration is in the
environment, as it was written; the embedding model it has already loaded is in its own modules,
which are looked at if they are there and never imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from eventstore.errors import InvalidConfig, InvalidType

CONN_STRING: Final = "EVENTSTORE_CONN_STRING"
PATH: Final = "EVENTSTORE_PATH"
VIEWS: Final = "EVENTSTORE_VIEWS"
DEFAULT_PATH: Final = ".eventstore"
"""In the server's working directory, beside its own ``.langgraph_api``."""
SECTION: Final = "LANGGRAPH_STORE"
EDITION: Final = "LANGGRAPH_RUNTIME_EDITION"
IN_MEMORY: Final = "inmem"


@dataclass(frozen=True)
class Settings:
    """What :meth:`EventStore.open` is given, and whether the server's cache is to use the store."""

    conn_string: str | Path
    views: Path | None
    index: Mapping[str, Any] | None
    ttl: Mapping[str, Any]
    config: Mapping[str, Any] | None
    cache: bool | None
    """``None``: not said, and decided by the edition of the server."""

    @classmethod
    def of_server(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """From the environment and the running server, if there is one.

        Raises ``InvalidConfig`` and ``InvalidType`` for a section that cannot be used.
        """
        section = _section(environment)
        cache = section.get("cache")
        if not (cache is None or isinstance(cache, bool)):
            raise InvalidType(f"store.cache is true or false, not {type(cache).__name__}")
        views = environment.get(VIEWS)
        return cls(
            environment.get(CONN_STRING) or Path(environment.get(PATH) or DEFAULT_PATH),
            Path(views) if views else None,
            _index(_mapping(section, "index")),
            # The server's own store hides what has expired; so does this one, unless told otherwise.
            {"omit_expired": True, **(_mapping(section, "ttl") or {})},
            _mapping(section, "config"),
            cache,
        )


def runs_in_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a server whose own cache lives in the process: ``langgraph dev``."""
    return "langgraph_api.config" in sys.modules and environment.get(EDITION) == IN_MEMORY


def _section(environment: Mapping[str, str]) -> Mapping[str, Any]:
    """The ``store`` section, with the keys that only this project knows."""
    text = environment.get(SECTION)
    if not text:
        return {}
    try:
        section = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidConfig(f"{SECTION} is not JSON: {error}") from None
    if section is not None and not isinstance(section, dict):
        raise InvalidType(f"{SECTION} holds an object, not a {type(section).__name__}")
    return section or {}


def _mapping(section: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    found = section.get(name)
    if found is not None and not isinstance(found, dict):
        raise InvalidType(f"store.{name} is an object, not a {type(found).__name__}")
    return found or None


def _index(written: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The index settings as written, with the embedding model the server made of ``embed``."""
    if written is None:
        return None
    embed = written.get("embed")
    if not isinstance(embed, str):
        return written
    named = {} if ".py:" in embed else {"model": embed}
    return {**named, **written, "embed": _model(embed, written)}


def _model(embed: str, written: Mapping[str, Any]) -> Any:
    config = getattr(sys.modules.get("langgraph_api.config"), "STORE_CONFIG", None) or {}
    loaded = (config.get("index") or {}).get("embed")
    if loaded is not None and not isinstance(loaded, str):
        return loaded
    resolve = getattr(sys.modules.get("langgraph_api.graph"), "resolve_embeddings", None)
    return embed if resolve is None else resolve(dict(written))
