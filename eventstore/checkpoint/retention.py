"""How long checkpoints are kept: by age, by number, and whole threads by idleness.

The rule is applied here, at the caller's time; what goes to the log is the decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol
from pydantic import BaseModel, ConfigDict

from eventstore.checkpoint.engine import Engine
from eventstore.checkpoint.events import Delete, Where
from eventstore.checkpoint.lifecycle import Kept, thin_out
from eventstore.checkpoint.views import ThreadRow
from eventstore.errors import InvalidInput, InvalidType
from eventstore.history import microseconds
from eventstore.ttl import now_us

Age = timedelta | datetime
"""A time that has passed since, or a moment with its zone."""


class Rule(NamedTuple):
    """What stays."""

    kept: Kept | None
    idle_since_us: int
    """Threads whose last checkpoint is older go whole; µs since the epoch."""


class Thinned(BaseModel):
    """What went of a thread, or would go."""

    model_config = ConfigDict(frozen=True)

    thread: str
    whole: bool
    """Whether it went with all it had."""
    dropped: int
    """Checkpoints that went."""
    hidden: int
    """Of those, how many later checkpoints are still rebuilt from: their writes stay."""
    kept: int
    """Checkpoints that stay."""
    bytes: int
    """What the view holds less, before compression. The log keeps its records."""


def rule(keep: int | None, older_than: Age | None, delete_idle: Age | None) -> Rule:
    """The rule that a caller means. Raises ``InvalidInput`` for none at all, or an impossible one."""
    if keep is None and older_than is None and delete_idle is None:
        raise InvalidInput("say what is to go: give keep, older_than or delete_idle")
    if keep is not None and keep < 1:
        raise InvalidInput(f"keep is at least 1, since the newest checkpoint always stays; got {keep}")
    kept = Kept(keep, 0 if older_than is None else _moment_us(older_than, "older_than"))
    idle = 0 if delete_idle is None else _moment_us(delete_idle, "delete_idle")
    return Rule(None if keep is None and older_than is None else kept, idle)


def apply(
    engine: Engine, threads: Iterable[str] | None, by: Rule, serde: SerializerProtocol, *, dry_run: bool
) -> list[Thinned]:
    """Thin threads out, all of them where none is named; those that lose something, by id."""
    engine.refresh()
    view = engine.runtime.checkpoints
    named = None if threads is None else set(threads)
    done = []
    for thread in view.threads():
        if named is None or thread.thread in named:
            thinned = _thinned(engine, thread, by, serde, dry_run)
            if thinned is not None:
                done.append(thinned)
    return done


def _thinned(
    engine: Engine, thread: ThreadRow, by: Rule, serde: SerializerProtocol, dry_run: bool
) -> Thinned | None:
    view, name = engine.runtime.checkpoints, thread.thread
    if thread.updated_us < by.idle_since_us and _is_idle(engine, name, by.idle_since_us):
        freed = view.freed(Delete(Where(name)))
        if not dry_run:
            engine.delete(name)
        return Thinned(thread=name, whole=True, dropped=thread.checkpoints, hidden=0, kept=0, bytes=freed)
    # Which checkpoints others are rebuilt from stands in the metadata; without that it is not guessed.
    drop = None if by.kept is None else thin_out(engine, name, by.kept, serde, dry_run=True)
    if drop is None:
        return None
    there = {row.at for row in view.of_thread(name) if not row.hidden}
    going = sum(Where(name, *each) in there for each in (*drop.dropped, *drop.hidden))
    freed = view.freed(drop)
    if not dry_run:
        engine.append([drop])
    return Thinned(
        thread=name,
        whole=False,
        dropped=going,
        hidden=len(drop.hidden),
        kept=len(there) - going,
        bytes=freed,
    )


def _is_idle(engine: Engine, thread: str, since_us: int) -> bool:
    """Whether it still is: others were looked at meanwhile, and that may have taken long."""
    engine.refresh()
    return all(row.appended_us < since_us for row in engine.runtime.checkpoints.of_thread(thread))


def _moment_us(given: Age, name: str) -> int:
    if isinstance(given, timedelta):
        if given < timedelta(0):
            raise InvalidInput(f"{name} is a time that has passed, not {given}")
        return now_us() - given // timedelta(microseconds=1)
    if not isinstance(given, datetime):
        raise InvalidType(f"{name} is a timedelta or a datetime, not {type(given).__name__}")
    return microseconds(given, name)
