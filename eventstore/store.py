"""``EventStore``: LangGraph's ``BaseStore`` over a log and its views.

A batch is checked whole, embedded, read from one moment of the view, and then appended as one
atomic batch; the call returns when the log has it and this process's view shows it. The sync
and async methods are the same steps; they differ only in how they wait for the embedding model
and for the append.

This module reads views through protocols only. Opening is its one tie to ``projector``, whose
runtime is looked up when a store is opened, so that a program that only appends events never
loads RocksDB or FAISS.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from langgraph.store.base import (
    NOT_PROVIDED,
    BaseStore,
    GetOp,
    Item,
    NotProvided,
    Op,
    PutOp,
    Result,
    TTLConfig,
)

from eventstore.answers import answer, item
from eventstore.config import StoreConfig
from eventstore.embedding import Embedder, Vectors
from eventstore.errors import InvalidNamespace, InvalidType, StoreClosed, StoreForked
from eventstore.events import Provenance
from eventstore.expiry import Expiry
from eventstore.joining import JoinedWrites
from eventstore.log.base import Batch
from eventstore.log.position import Position
from eventstore.opened import Opened
from eventstore.operations import INLINE_OPS, Conditional, Get, check_get, is_quick
from eventstore.past import Past
from eventstore.plan import Plan, plan, records, refuse_rejected
from eventstore.provenance import current
from eventstore.status import Status, status
from eventstore.ttl import Touched, check_config
from eventstore.turns import EVERY_STEPS, beside, in_turns
from eventstore.views import Runtime, Written


class EventStore(Opened, Past, BaseStore):
    """A durable, event-sourced long-term memory. One class, sync and async.

    Safe to use from several threads and event loops at once. Make one with :meth:`open` or
    :meth:`from_conn_string`, and close it, or use it in ``with`` or ``async with``.
    """

    supports_ttl = True

    def __init__(
        self,
        runtime: Runtime,
        *,
        index: Mapping[str, Any] | Embedder | None = None,
        ttl: Mapping[str, Any] | None = None,
        actor: str | None = None,
        config: StoreConfig | Mapping[str, Any] | None = None,
    ) -> None:
        """A store on an open runtime, which it gives up when closed."""
        if actor is not None and not isinstance(actor, str):
            raise InvalidType(f"actor is a string or None, not {type(actor).__name__}")
        self._config = StoreConfig.of(config)
        self.ttl_config: TTLConfig | None = check_config(ttl)
        self._embedder = index if index is None or isinstance(index, Embedder) else Embedder(index)
        self._runtime = runtime
        self._actor = actor
        self._closed = False
        self._closing = threading.Lock()
        self._writing = threading.Lock()
        keeps = runtime.log.end_is_local and not self._config.attach
        default = "latest" if keeps else "own_writes"
        self._latest = (self._config.read_consistency or default) == "latest"
        self._expiry = Expiry(runtime, self.ttl_config, self._refresh_view, self._who, self._advance)
        self._position = Position.start(runtime.log.partitions)
        self._joined = JoinedWrites(self._embedder, self._prepare, runtime)
        self._use_index()

    # ------------------------------------------------------------------ life cycle

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str | Path,
        *,
        views: str | Path | None = None,
        index: Mapping[str, Any] | None = None,
        ttl: Mapping[str, Any] | None = None,
        actor: str | None = None,
        config: StoreConfig | Mapping[str, Any] | None = None,
    ) -> EventStore:
        """Open the store a connection string names: a folder, ``memory:``, or ``kafka://host:port/topic``.

        ``index`` and ``ttl`` are LangGraph's ``IndexConfig`` and ``TTLConfig``. ``views`` is where
        this machine keeps its views, by default beside the log. ``actor`` names who writes, for
        the history. Raises ``InvalidConfig``, ``IndexMismatch``, ``LogDamaged``, ``LogMismatch``.
        """
        settings = StoreConfig.of(config)
        # Wrong settings are refused before anything is made on disk.
        embedder = None if index is None else Embedder(index)
        check_config(ttl)
        opener = importlib.import_module("projector.runtime")
        indexed = None if embedder is None else embedder.settings
        runtime = cast(Runtime, opener.open_runtime(conn_string, views, settings, indexed))
        try:
            return cls(runtime, index=embedder, ttl=ttl, actor=actor, config=settings)
        except BaseException:
            runtime.release()
            raise

    open = from_conn_string

    def setup(self) -> None:
        """Nothing to do: opening sets up. Kept so that stores that need it can be replaced."""
        self._check()

    def close(self) -> None:
        """Write pending refreshes, stop the sweeper, give up log and views. Idempotent."""
        with self._closing:
            if self._closed:
                return
            self._expiry.stop()
            try:
                with contextlib.suppress(StoreForked):
                    self._expiry.flush()
            finally:
                self._closed = True
                self._runtime.release()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a store cannot be copied or pickled: it holds an open log; open it again by its path"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._runtime.log.location!r}{', closed' if self._closed else ''})"

    # ------------------------------------------------------------------ reading and writing

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations: reads see the state before the batch, writes are all or none."""
        ops = list(ops)
        if len(ops) == 1 and isinstance(ops[0], GetOp):
            return [self._get(check_get(ops[0]))]
        planned = self._plan(ops)
        vectors = None
        if not self._is_indexed(planned):
            self._use_index()
        if self._embedder is not None and planned.needs_model:
            vectors = self._embedder.embed(planned.documents, planned.queries)
        results = self._read(planned, vectors)
        if planned.puts:
            batches, touched = self._prepare(planned, vectors, self._who())
            self._written(self._runtime.write_all(batches), touched)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """:meth:`batch` for coroutines; the event loop is not blocked."""
        ops = list(ops)
        small = len(ops) <= INLINE_OPS
        few = small and self._is_current()
        if len(ops) == 1 and isinstance(ops[0], GetOp):
            get = check_get(ops[0])
            return [self._get(get) if few else await beside(self._get, get)]
        planned = self._plan(ops) if few else await beside(self._plan, ops)
        vectors = None
        if not self._is_indexed(planned):
            await beside(self._use_index)
        if small and planned.writes_only and planned.puts:
            self._written(*await self._joined.write(planned, self._who()))
            return [None] * len(planned.steps)
        if self._embedder is not None and planned.needs_model:
            vectors = await self._embedder.aembed(planned.documents, planned.queries)
        if few and all(map(is_quick, planned.steps)):
            results = self._read(planned, vectors)
        else:
            results = await beside(self._read, planned, vectors)
        if planned.puts:
            who = self._who()
            if few:
                batches, touched = self._prepare(planned, vectors, who)
            else:
                batches, touched = await beside(self._prepare, planned, vectors, who)
            self._written(await self._runtime.awrite_all(batches), touched)
        return results

    def put(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        expected_version: int | None = None,
    ) -> None:
        """Write a memory; see ``BaseStore.put``.

        With ``expected_version``, only if the memory is at that version (0: absent). Raises
        ``VersionConflict`` otherwise, with the version that is there.
        """
        if expected_version is None:
            super().put(namespace, key, value, index, ttl=ttl)
            return
        self.batch([self._conditional(namespace, key, value, index, ttl, expected_version)])

    async def aput(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None = None,
        *,
        ttl: float | NotProvided | None = NOT_PROVIDED,
        expected_version: int | None = None,
    ) -> None:
        """:meth:`put` for coroutines."""
        if expected_version is None:
            await super().aput(namespace, key, value, index, ttl=ttl)
            return
        await self.abatch([self._conditional(namespace, key, value, index, ttl, expected_version)])

    # ------------------------------------------------------------------ positions

    @property
    def position(self) -> Position:
        """Where this store's writes end; pass it, or its text, to :meth:`wait_for` elsewhere."""
        return self._position

    def status(self) -> Status:
        """Where log and view stand; nothing is caught up first."""
        self._check()
        return status(self._runtime)

    def wait_for(self, position: Position | str | int, timeout: float | None = None) -> None:
        """Return when reads here show everything before ``position``.

        Raises ``ViewBehind`` after ``timeout`` seconds (default: config ``wait_timeout``).
        """
        self._check()
        self._runtime.wait_for(
            Position.of(position), self._config.wait_timeout if timeout is None else timeout
        )

    # ------------------------------------------------------------------ expiry

    def sweep_ttl(self) -> int:
        """Delete the memories that have expired; returns how many.

        A memory that is written or refreshed meanwhile, by any process, is left alone.
        """
        self._check()
        return self._expiry.sweep()

    async def asweep_ttl(self) -> int:
        """:meth:`sweep_ttl` for coroutines."""
        return await asyncio.to_thread(self.sweep_ttl)

    def start_ttl_sweeper(
        self, sweep_interval_minutes: float | None = None
    ) -> concurrent.futures.Future[None]:
        """Sweep in the background, first after one interval; see ``PostgresStore``.

        The interval is the argument, else the ttl setting, else 5 minutes. Without ttl settings
        nothing is started and the future is done. Cancelling the future stops the sweeper.
        """
        self._check()
        return self._expiry.sweeper.start(sweep_interval_minutes)

    def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:
        """Stop the sweeper; whether it is gone within ``timeout`` seconds."""
        return self._expiry.sweeper.stop(timeout)

    # ------------------------------------------------------------------ steps of a batch

    def _check(self) -> None:
        self._runtime.check()
        if self._closed:
            raise StoreClosed("the store is closed; open it again to use it")

    def _who(self) -> Provenance:
        return current(self._actor)

    def _refresh_view(self) -> None:
        """Bring the view to what reads of this store are sure to see."""
        if self._config.read_consistency == "latest" and self._runtime.stopped is not None:
            raise self._runtime.stopped
        if self._latest:
            self._runtime.catch_up()

    def _is_current(self) -> bool:
        """Whether reads can be answered at once: nothing has to be asked of the log, or taken from it."""
        log = self._runtime.log
        return not self._latest or (log.end_is_local and not log.ahead_of(self._runtime.applied))

    def _plan(self, ops: Sequence[Op]) -> Plan:
        self._check()
        planned = plan(ops, self._embedder, self._config.max_value_bytes)
        if self._embedder is not None and planned.needs_model:
            # Another process may have been the first to record vectors, after this store was opened.
            self._refresh_view()
            self._embedder.check_same(self._runtime.view.signature())
        return planned

    def _is_indexed(self, planned: Plan) -> bool:
        """Whether nothing has to be done before a ranking: a change of model puts other vectors on record."""
        made = self._embedder
        return made is None or not planned.needs_model or self._runtime.ranks_by(made.ranks)

    def _use_index(self) -> None:
        if (made := self._embedder) is not None:
            made.check_same(self._runtime.view.signature())
            self._runtime.use_vectors(*made.settings)

    def _prepare(
        self, planned: Plan, vectors: Vectors | None, who: Provenance
    ) -> tuple[list[Batch], list[Touched]]:
        touched, refreshes = self._expiry.waiting(planned.puts)
        writes = records(planned, vectors, who, self._expiry.omits)
        # Refreshes stand for themselves: they need not be part of what is all or none.
        return [self._runtime.prepare(part) for part in (*([each] for each in refreshes), writes)], touched

    def _written(self, results: Sequence[Written | BaseException], touched: list[Touched]) -> None:
        written = results[-1]
        if isinstance(written, BaseException):
            raise written
        self._expiry.written(touched)
        self._advance(written)
        refuse_rejected(written)

    def _advance(self, written: Written) -> None:
        ends = {record.partition: record.offset + 1 for record in written.records}
        with self._writing:
            for partition, end in ends.items():
                self._position = self._position.advanced(partition, end)

    # ------------------------------------------------------------------ reading

    def _get(self, step: Get) -> Item | None:
        self._check()
        self._refresh_view()
        return item(step, self._runtime.view.get(step.key), self._expiry)

    def _read(self, planned: Plan, vectors: Vectors | None) -> list[Result]:
        if planned.writes_only:
            return [None] * len(planned.steps)
        self._refresh_view()
        with self._runtime.view.read() as view:
            if self._embedder is not None and planned.queries:
                # The model may have been changed while the query was embedded.
                self._embedder.check_same(view.ranked())
            steps = in_turns(planned.steps, EVERY_STEPS)
            return [answer(view, step, vectors, self._expiry) for step in steps]

    def _conditional(
        self,
        namespace: tuple[str, ...],
        key: str,
        value: Mapping[str, Any],
        index: Literal[False] | list[str] | None,
        ttl: float | NotProvided | None,
        expected_version: int,
    ) -> Op:
        # BaseStore.put, which has no room for a version, checks these two things.
        if namespace and namespace[0] == "langgraph":
            raise InvalidNamespace("namespaces that begin with 'langgraph' are LangGraph's own; use another")
        if isinstance(ttl, NotProvided):
            ttl = self.ttl_config.get("default_ttl") if self.ttl_config else None
        return cast(Op, Conditional(PutOp(namespace, key, value, index, ttl), expected_version))
