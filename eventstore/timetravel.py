"""The store as it was: a read-only ``BaseStore`` at one moment of the past.

Steps are planned and answered by the code of the live store, from another view. Nothing is
refreshed, nothing can be written, and what had expired by then is hidden where the live store
hides it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from langgraph.store.base import BaseStore, Op, PutOp, Result

from eventstore.answers import answer
from eventstore.asof import AsOf, Times
from eventstore.embedding import Embedder, Vectors
from eventstore.errors import ReadOnlyStore
from eventstore.history import moment
from eventstore.keys import decode_item, encode_namespace
from eventstore.log.position import Position
from eventstore.operations import NO_LIMIT, Conditional
from eventstore.plan import Plan, plan
from eventstore.turns import beside
from eventstore.views import ReadView, Row, Runtime


class PastSight:
    """What was to be seen at a time; a :class:`eventstore.answers.Sight`."""

    def __init__(self, omits: bool, at_us: int) -> None:
        self.omits = omits
        self._at_us = at_us

    def shows(self, row: Row) -> bool:
        """Whether a memory had not expired, where that matters."""
        return not self.omits or not row.expires_us or row.expires_us > self._at_us

    def read(self, row: Row) -> None:
        """Reading the past refreshes nothing."""

    def hidden(self, view: ReadView) -> Mapping[bytes, int]:
        """How many memories of each namespace had expired and were not swept yet."""
        if not self.omits:
            return {}
        return Counter(encode_namespace(decode_item(key)[0]) for _, key in view.expired(self._at_us))


class PastStore(BaseStore):
    """A store at a moment of its past; made by :meth:`eventstore.EventStore.as_of`.

    Usable for as long as the store it came from is open.
    """

    supports_ttl = True

    def __init__(
        self,
        runtime: Runtime,
        then: AsOf,
        times: Times,
        embedder: Embedder | None,
        omits: bool,
        check: Callable[[], None],
    ) -> None:
        """``omits`` is whether expired memories are hidden; ``check`` raises once the store is closed."""
        self._runtime = runtime
        self._then = then
        self._times = times
        self._embedder = embedder
        self._ranks = None if embedder is None else embedder.ranks
        self._check = check
        self._omits = omits

    @property
    def position(self) -> Position:
        """Everything before it had happened, and nothing else."""
        return self._then.position

    @property
    def at(self) -> datetime:
        """The time asked for, or that of the last event before the position (UTC)."""
        return moment(self._times.us(self._then))

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Answer reads. Raises ``ReadOnlyStore`` for any write among them."""
        planned = self._plan(ops)
        vectors = None
        if self._embedder is not None and planned.needs_model:
            vectors = self._embedder.embed((), planned.queries)
        return self._read(planned, vectors)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """:meth:`batch` for coroutines; the event loop is not blocked."""
        planned = self._plan(ops)
        vectors = None
        if self._embedder is not None and planned.needs_model:
            vectors = await self._embedder.aembed((), planned.queries)
        return await beside(self._read, planned, vectors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._runtime.log.location!r}, {str(self.position)!r})"

    def _plan(self, ops: Iterable[Op]) -> Plan:
        self._check()
        ops = list(ops)
        if any(isinstance(op, (PutOp, Conditional)) for op in ops):
            raise ReadOnlyStore(
                f"this is the store as of {self.position}, and the past cannot be written; "
                "write to the store it was made from"
            )
        return plan(ops, self._embedder, NO_LIMIT)

    def _read(self, planned: Plan, vectors: Vectors | None) -> list[Result]:
        sight = PastSight(self._omits, self._times.us(self._then) if self._omits else 0)
        with self._runtime.view.past(self.position, self._ranks) as view:
            return [answer(view, step, vectors, sight) for step in planned.steps]
