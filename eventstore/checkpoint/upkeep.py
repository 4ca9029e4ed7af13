"""The part of :class:`eventstore.checkpoint.EventSaver` that looks after whole threads.

What LangGraph asks of a saver about them (``delete_thread``, ``prune``, …) is in ``saver``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from langgraph.checkpoint.serde.base import SerializerProtocol

from eventstore import targets
from eventstore.checkpoint import retention, survey
from eventstore.checkpoint.engine import Engine
from eventstore.checkpoint.retention import Age, Thinned
from eventstore.checkpoint.survey import Thread, ThreadCheckpoint
from eventstore.errors import InvalidInput, InvalidType


class Upkeep:
    """Methods about threads, sync and async."""

    _engine: Engine
    serde: SerializerProtocol

    def threads(self, *, limit: int | None = None) -> list[Thread]:
        """The threads there are, the last active first. No value of a state is read."""
        return survey.threads(self._engine, _checked(limit))

    async def athreads(self, *, limit: int | None = None) -> list[Thread]:
        """:meth:`threads` for coroutines."""
        return await asyncio.to_thread(self.threads, limit=limit)

    def checkpoints(self, thread_id: str, *, limit: int | None = None) -> list[ThreadCheckpoint]:
        """The checkpoints of a thread in all its namespaces, newest id first, without their values."""
        return survey.checkpoints(self._engine, targets.thread_id(thread_id), _checked(limit), self.serde)

    async def acheckpoints(self, thread_id: str, *, limit: int | None = None) -> list[ThreadCheckpoint]:
        """:meth:`checkpoints` for coroutines."""
        return await asyncio.to_thread(self.checkpoints, thread_id, limit=limit)

    def thin_out(
        self,
        thread_ids: Iterable[str] | None = None,
        *,
        keep: int | None = None,
        older_than: Age | None = None,
        delete_idle: Age | None = None,
        dry_run: bool = False,
    ) -> list[Thinned]:
        """Remove checkpoints by number and age, and idle threads whole; what went of each thread.

        ``keep``: so many of the newest stay in each namespace. ``older_than``: older ones go. With both,
        either is reason enough. The newest checkpoint of a namespace always stays, unless its thread
        goes: ``delete_idle`` removes threads whose last checkpoint is older, as :meth:`delete_thread`
        does. Ages are a ``timedelta`` from now, or a ``datetime`` with its zone. Without ``thread_ids``
        all threads are looked at. With ``dry_run`` nothing goes, and the answer says what would.
        Raises ``InvalidInput`` where no rule is given, ``CheckpointSealed`` for a thread without its key,
        ``CheckpointUnreadable`` for one of another serializer.
        """
        by = retention.rule(keep, older_than, delete_idle)
        if isinstance(thread_ids, str):
            raise InvalidType("thread_ids is a list of ids, not one str")
        named = None if thread_ids is None else [targets.thread_id(each) for each in thread_ids]
        return retention.apply(self._engine, named, by, self.serde, dry_run=dry_run)

    async def athin_out(
        self,
        thread_ids: Iterable[str] | None = None,
        *,
        keep: int | None = None,
        older_than: Age | None = None,
        delete_idle: Age | None = None,
        dry_run: bool = False,
    ) -> list[Thinned]:
        """:meth:`thin_out` for coroutines."""
        return await asyncio.to_thread(
            self.thin_out,
            thread_ids,
            keep=keep,
            older_than=older_than,
            delete_idle=delete_idle,
            dry_run=dry_run,
        )


def _checked(limit: int | None) -> int | None:
    if limit is not None and limit < 0:
        raise InvalidInput(f"limit is not negative; got {limit}. Leave it out to list everything")
    return limit
