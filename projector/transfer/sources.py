"""Opening what others keep their data in, by a connection string or by a factory of one's own."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from eventstore.errors import EventStoreError, InvalidConfig, InvalidType

T = TypeVar("T")


@contextmanager
def opened(
    name: str, built_in: Mapping[str, tuple[str, str]], kind: type[T], look: Callable[[T], object]
) -> Iterator[T]:
    """A source of a ``kind``, closed at the end of the block; ``look`` asks it for a first thing.

    ``built_in`` gives module and class by what a connection string begins with. A factory is called
    without arguments and gives a source, or a context manager that does. Raises ``InvalidConfig`` for
    what cannot be opened or looked at, ``InvalidType`` for what is of another kind.
    """
    scheme, separator, rest = name.partition(":")
    if not separator:
        raise InvalidConfig(
            f"{name!r} names no store or saver; give {', '.join(sorted(built_in))} with ':', "
            "or module:factory"
        )
    if scheme in built_in:
        module, attribute = built_in[scheme]
        target = rest.removeprefix("//") if scheme == "sqlite" else name
        if scheme == "sqlite" and not Path(target).is_file():
            raise InvalidConfig(f"there is no SQLite file {target}")
        made = _attribute(module, attribute).from_conn_string(target)
    else:
        made = _attribute(scheme, rest)()
    shown = re.sub(r"//[^/@]*@", "//", name)  # no secret of an address
    with ExitStack() as stack:
        if hasattr(made, "__enter__") and not isinstance(made, kind):
            with _naming(shown):
                made = stack.enter_context(made)
        if not isinstance(made, kind):
            raise InvalidType(f"{shown!r} gives a {type(made).__name__}, which is no {kind.__name__}")
        with _naming(shown):
            look(made)
        yield made


@contextmanager
def _naming(source: str) -> Iterator[None]:
    """Whatever a driver raises where its server or its tables are missing, as one of our errors."""
    try:
        yield
    except EventStoreError:
        raise
    except Exception as error:
        raise InvalidConfig(
            f"what is at {source} cannot be read: {type(error).__name__}: {str(error).strip()}"
        ) from error


def _attribute(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            f"{error.name} is not installed, or not where Python looks for it; {module}:{name} needs it"
        ) from error
    except AttributeError as error:
        raise InvalidConfig(f"there is no {name} in {module}") from error
