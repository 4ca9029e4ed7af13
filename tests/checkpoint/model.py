"""What a saver must answer, as plain dicts."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, Checkpoint

from tests.checkpoint.kit import config

Place = tuple[str, str, str]
"""Thread, namespace and id."""


class Kept(NamedTuple):
    """One checkpoint."""

    checkpoint: Mapping[str, Any]
    metadata: Mapping[str, Any]
    parent: str | None


class Model:
    """Checkpoints and pending writes."""

    def __init__(self) -> None:
        self.kept: dict[Place, Kept] = {}
        self.writes: dict[Place, dict[tuple[str, int], tuple[str, str, Any]]] = {}

    # ------------------------------------------------------------------ acts

    def put(
        self, at: Place, parent: str | None, given: Checkpoint, metadata: Any, new: Mapping[str, Any]
    ) -> None:
        made: dict[str, Any] = copy.deepcopy(dict(given))
        before = self.kept.get((at[0], at[1], parent or ""))
        if before is not None:
            versions = before.checkpoint["channel_versions"]
            for channel, value in before.checkpoint["channel_values"].items():
                version = given["channel_versions"].get(channel)
                if channel not in new and version is not None and version == versions.get(channel):
                    made["channel_values"][channel] = value
        self.kept[at] = Kept(made, copy.deepcopy(metadata), parent)

    def put_writes(self, at: Place, writes: Sequence[tuple[str, Any]], task: str, path: str) -> None:
        for number, (channel, value) in enumerate(writes):
            key = (task, WRITES_IDX_MAP.get(channel, number))
            of_this = self.writes.setdefault(at, {})
            if key[1] < 0 or key not in of_this:
                of_this[key] = (path, channel, copy.deepcopy(value))

    def delete_thread(self, thread: str) -> None:
        for at in [at for at in self.kept if at[0] == thread]:
            del self.kept[at]
        for at in [at for at in self.writes if at[0] == thread]:
            del self.writes[at]

    def prune(self, thread: str) -> None:
        newest = self._newest(thread)
        self._drop(thread, [at for at in self.kept if at[0] == thread and at[2] != newest[at[1]]])

    def delete_for_runs(self, runs: Sequence[str]) -> None:
        going = [at for at, each in self.kept.items() if each.metadata.get("run_id") in runs]
        for thread in {at[0] for at in going}:
            self._drop(thread, [at for at in going if at[0] == thread])

    def copy_thread(self, source: str, to: str) -> None:
        for at, each in [(at, each) for at, each in self.kept.items() if at[0] == source and source != to]:
            target = (to, at[1], at[2])
            self.kept[target] = copy.deepcopy(each)
            for key, write in self.writes.get(at, {}).items():
                of_this = self.writes.setdefault(target, {})
                if key[1] < 0 or key not in of_this:
                    of_this[key] = write

    def _drop(self, thread: str, going: Sequence[Place]) -> None:
        if not going:
            return
        for at in going:
            del self.kept[at]
            self.writes.pop(at, None)
        newest = self._newest(thread)
        for at in [at for at in self.writes if at[0] == thread and at not in self.kept]:
            if at[2] <= newest.get(at[1], ""):
                del self.writes[at]

    def _newest(self, thread: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for of, namespace, id in self.kept:
            if of == thread:
                found[namespace] = max(id, found.get(namespace, ""))
        return found

    # ------------------------------------------------------------------ answers

    def get(self, thread: str, namespace: str, id: str | None = None) -> Any:
        if id is None:
            found = [at[2] for at in self.kept if at[:2] == (thread, namespace)]
            if not found:
                return None
            id = max(found)
        return self._tuple((thread, namespace, id)) if (thread, namespace, id) in self.kept else None

    def list(
        self,
        thread: str | None = None,
        namespace: str | None = None,
        filter: Mapping[str, Any] | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[Any]:
        def wanted() -> Iterator[Place]:
            for at in sorted(self.kept, key=lambda at: (at[2], at[0], at[1]), reverse=True):
                metadata = self.kept[at].metadata
                if (
                    thread in (None, at[0])
                    and namespace in (None, at[1])
                    and (before is None or at[2] < before)
                    and all(metadata.get(name) == value for name, value in (filter or {}).items())
                ):
                    yield at

        return [self._tuple(at) for at in list(wanted())[:limit]]

    def _tuple(self, at: Place) -> Any:
        thread, namespace, id = at
        checkpoint, metadata, parent = self.kept[at]
        writes = sorted(self.writes.get(at, {}).items(), key=lambda each: (each[1][0], *each[0]))
        parent_config: RunnableConfig | None = None if parent is None else config(thread, namespace, parent)
        return (
            config(thread, namespace, id),
            checkpoint,
            metadata,
            parent_config,
            [(task, channel, value) for (task, _), (_, channel, value) in writes],
        )
