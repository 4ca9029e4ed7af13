"""``EventSaver``: LangGraph's checkpointer on the log that holds the memories.

The sync and async methods are the same steps; they differ in how they wait for the append. What
is slow, serializing most of all, is done off the event loop.
"""

from __future__ import annotations

import asyncio
import importlib
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from eventstore import targets
from eventstore.checkpoint import lifecycle
from eventstore.checkpoint.engine import Compose, Engine
from eventstore.checkpoint.events import Where, config_of
from eventstore.checkpoint.place import HasCheckpoints
from eventstore.checkpoint.sealing import ThreadKeys
from eventstore.checkpoint.upkeep import Upkeep
from eventstore.config import StoreConfig
from eventstore.errors import InvalidInput, InvalidType
from eventstore.opened import Opened
from eventstore.store import EventStore
from eventstore.views import Runtime

_LONG_VERSION: Final = 32
"""Digits before the dot in the versions of the savers that ship with LangGraph."""
_STRATEGIES: Final = ("keep_latest", "delete")


class EventSaver(Opened, Upkeep, BaseCheckpointSaver[str]):
    """A durable checkpointer that processes share. One class, sync and async.

    Safe to use from several threads and event loops at once. Make one with :meth:`open`,
    :meth:`from_conn_string` or :meth:`from_store`.
    """

    def __init__(self, engine: Engine, *, serde: SerializerProtocol | None = None) -> None:
        """On an open engine, which ends with it."""
        super().__init__(serde=serde or JsonPlusSerializer(allowed_msgpack_modules=None))
        self._engine = engine

    # ------------------------------------------------------------------ life cycle

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str | Path,
        *,
        views: str | Path | None = None,
        serde: SerializerProtocol | None = None,
        allowed_types: Iterable[type] = (),
        keys: ThreadKeys | None = None,
        config: StoreConfig | Mapping[str, Any] | None = None,
    ) -> EventSaver:
        """Open the checkpoints beside the store that a connection string names.

        ``allowed_types`` are classes of yours that a state may hold: others are not constructed when a
        state is loaded, and come back as plain data. A ``serde`` of your own decides by itself.
        ``keys`` seals every thread under a key of its own. Raises as :meth:`EventStore.open`.
        """
        settings = StoreConfig.of(config)
        given = _serde(serde, allowed_types)
        opener = importlib.import_module("projector.runtime")
        runtime = cast(Runtime, opener.open_runtime(conn_string, views, settings))
        try:
            return cls(_engine(runtime, keys, settings, runtime.release), serde=given)
        except BaseException:
            runtime.release()
            raise

    open = from_conn_string

    @classmethod
    def from_store(
        cls,
        store: EventStore,
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: Iterable[type] = (),
        keys: ThreadKeys | None = None,
    ) -> EventSaver:
        """The checkpoints beside a store that is open, with which the saver ends."""
        if not isinstance(store, EventStore):
            raise InvalidType(f"a saver is made from an EventStore, not from a {type(store).__name__}")
        store.setup()
        given = _serde(serde, allowed_types)
        return cls(_engine(store._runtime, keys, store._config, lambda: None), serde=given)

    def setup(self) -> None:
        """Nothing to do: opening sets up. Kept so that savers that need it can be replaced."""
        self._engine.check()

    def close(self) -> None:
        """Give up log and view. Idempotent."""
        self._engine.close()

    def _check(self) -> None:
        self._engine.check()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._engine.runtime.log.location!r})"

    # ------------------------------------------------------------------ reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint a config names, or the newest of its thread and namespace.

        Raises ``CheckpointSealed``, ``CheckpointUnreadable`` where the serializer does not load it, and
        ``LogUnavailable`` where the log's end has to be asked for.
        """
        wanted = targets.target(config)
        self._engine.refresh(wanted)
        return self._engine.reading.get(wanted, self.serde)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """:meth:`get_tuple` for coroutines."""
        return await asyncio.to_thread(self.get_tuple, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest id first: of a thread, of a namespace of it, or of all threads.

        ``filter`` holds what metadata must equal; ``None`` there means missing, too. Raises
        ``InvalidInput`` for a negative limit, and as :meth:`get_tuple` while the checkpoints are taken.
        """
        wanted = None if config is None else targets.target(config)
        if limit is not None and limit < 0:
            raise InvalidInput(f"limit is not negative; got {limit}. Leave it out to list everything")
        self._engine.refresh()
        return self._engine.reading.list(wanted, filter, targets.checkpoint(before), limit, self.serde)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """:meth:`list` for coroutines."""
        found = await asyncio.to_thread(self.list, config, filter=filter, before=before, limit=limit)
        while (each := await asyncio.to_thread(next, found, None)) is not None:
            yield each

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What a checkpoint's ancestors wrote to delta channels; see ``BaseCheckpointSaver``."""
        if not channels:
            return {}
        wanted = targets.target(config)
        self._engine.refresh(wanted)
        return self._engine.reading.history(wanted, channels, self.serde)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """:meth:`get_delta_channel_history` for coroutines."""
        return await asyncio.to_thread(self.get_delta_channel_history, config=config, channels=channels)

    # ------------------------------------------------------------------ writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; returns when it is durable and visible, with the config that names it."""
        at, compose = self._put(config, checkpoint, metadata, new_versions)
        self._engine.wait_for_writes(at.thread)
        self._engine.write(at.thread, compose)
        return config_of(at)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """:meth:`put` for coroutines. Cancelling the wait does not undo it."""
        at, compose = self._put(config, checkpoint, metadata, new_versions)
        await self._engine.await_writes(at.thread)
        await self._engine.awrite(at.thread, compose)
        return config_of(at)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote at a checkpoint, which may be still to come."""
        at = self._at(config)
        if writes:
            with self._engine.entrances.entered(at.thread):
                compose = self._engine.writes(at, task_id, task_path, writes, self.serde)
                self._engine.write(at.thread, compose)

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """:meth:`put_writes` for coroutines."""
        at = self._at(config)
        if writes:
            with self._engine.entrances.entered(at.thread):
                compose = self._engine.writes(at, task_id, task_path, writes, self.serde)
                await self._engine.awrite(at.thread, compose)

    # ------------------------------------------------------------------ whole threads

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with all it has. With ``keys``, its key is destroyed too."""
        self._engine.delete(targets.thread_id(thread_id))

    async def adelete_thread(self, thread_id: str) -> None:
        """:meth:`delete_thread` for coroutines."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints that runs put, and their writes; others keep what they need of them."""
        lifecycle.delete_for_runs(self._engine, [str(run) for run in run_ids], self.serde)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """:meth:`delete_for_runs` for coroutines."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all it has; what the target has stays, but for checkpoints of the same id."""
        source, to = targets.thread_id(source_thread_id), targets.thread_id(target_thread_id)
        lifecycle.copy_thread(self._engine, source, to)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """:meth:`copy_thread` for coroutines."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all but the newest checkpoint of each namespace, or (``"delete"``) whole threads.

        Raises ``InvalidInput`` for another strategy.
        """
        if strategy not in _STRATEGIES:
            raise InvalidInput(f"strategy is one of {', '.join(_STRATEGIES)}; got {strategy!r}")
        for thread in [targets.thread_id(each) for each in thread_ids]:
            if strategy == "delete":
                self._engine.delete(thread)
            else:
                lifecycle.thin_out(self._engine, thread, lifecycle.Kept(newest=1), self.serde)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """:meth:`prune` for coroutines."""
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)

    def get_next_version(self, current: str | int | float | None, channel: None) -> Any:
        """A version above ``current``: eight hex digits that count, and six by chance.

        What other savers count with is counted on in its own kind, since versions of one thread
        are compared with each other; only their long texts give way to short ones, which sort above.
        """
        if isinstance(current, (int, float)):
            return current + 1
        counted = 0
        if current is not None:
            number = current.partition(".")[0]
            try:
                counted = int(number, 10 if len(number) == _LONG_VERSION else 16)
            except ValueError:
                raise InvalidInput(
                    f"{current!r} is no version that can be counted on: they begin with a number, as those "
                    "of the savers that ship with LangGraph do"
                ) from None
        return self._engine.moments.note(f"{counted + 1:08x}.{random.getrandbits(24):06x}")

    # ------------------------------------------------------------------ inside

    def _at(self, config: RunnableConfig) -> Where:
        wanted = targets.target(config)
        if wanted.checkpoint is None:
            raise InvalidInput(
                "the config names no checkpoint that the writes belong to: checkpoint_id is missing"
            )
        return Where(wanted.thread, wanted.namespace or "", wanted.checkpoint)

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[Where, Compose]:
        wanted = targets.target(config)
        at = Where(wanted.thread, wanted.namespace or "", checkpoint["id"])
        kept = get_checkpoint_metadata(config, metadata)
        return at, self._engine.put(at, wanted.checkpoint, checkpoint, kept, new_versions, self.serde)


def _serde(given: SerializerProtocol | None, allowed: Iterable[type]) -> SerializerProtocol:
    modules = [(each.__module__, each.__name__) for each in allowed]
    if given is None:
        return JsonPlusSerializer(allowed_msgpack_modules=modules or None)
    if modules:
        raise InvalidInput("a serde of your own decides which types it loads; give it or allowed_types")
    return given


def _engine(runtime: Runtime, keys: ThreadKeys | None, config: StoreConfig, on_close: Any) -> Engine:
    if not isinstance(runtime, HasCheckpoints):
        raise InvalidType(f"a {type(runtime).__name__} has no place for checkpoints")
    return Engine(runtime.open_checkpoints(), runtime, keys, config.read_consistency, on_close)
