"""What savers may ask of a materialized view of checkpoints, whatever it is made of.

``projector`` implements these protocols. Rows are what the fold made of events; the bytes in them
are as they were written, sealed or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from eventstore.checkpoint.events import Delete, Drop, Packed, Where
from eventstore.views import LogRuntime

Stored = Packed | bytes
"""A small value itself, or the digest that names a larger one."""


class Row(NamedTuple):
    """One checkpoint."""

    at: Where
    parent: str | None
    event: tuple[int, int]
    """Partition and offset of the event it was put by."""
    appended_us: int
    hidden: bool
    """Whether it was dropped, and only its writes stay for later checkpoints."""
    sealed: bool
    body: Stored
    metadata: Stored
    run: str | None
    memories: str | None
    values: Mapping[str, Stored]
    """By channel."""


class WriteRow(NamedTuple):
    """One pending write."""

    task: str
    number: int
    path: str
    channel: str
    value: Stored


class Manifest(NamedTuple):
    """Of what parts a value consists."""

    tag: str
    head: bytes
    sealed: bool
    digests: tuple[bytes, ...]


class ThreadRow(NamedTuple):
    """A thread that has checkpoints. Times are µs since the epoch (UTC), by the log's clock."""

    thread: str
    created_us: int
    updated_us: int
    checkpoints: int


class CheckpointView(Protocol):
    """The checkpoints of one log, as this process sees them. Every answer is whole in itself."""

    def row(self, at: Where) -> Row | None:
        """A checkpoint, hidden or not."""

    def event(self, at: Where) -> tuple[int, int] | None:
        """Partition and offset of the event that a checkpoint was put by, hidden or not."""

    def page(
        self, thread: str | None, namespace: str | None, below: Where | str | None, limit: int
    ) -> Sequence[Where]:
        """Up to so many checkpoints, newest id first; of one thread, and of one namespace of it, if given.

        ``below`` is the last one of the page before, or an id that all have to be below.
        """

    def writes(self, at: Where) -> list[WriteRow]:
        """Pending writes in their order: by path, task and index."""

    def manifest(self, thread: str, value: bytes) -> Manifest | None:
        """How a value is made, by its digest."""

    def parts(self, thread: str, digests: Sequence[bytes]) -> list[bytes | None]:
        """Parts by their digests."""

    def has_part(self, thread: str, digest: bytes) -> bool:
        """Whether a part is there to be named."""

    def run(self, run: str) -> Sequence[Where]:
        """The checkpoints that a run put."""

    def of_thread(self, thread: str) -> Sequence[Row]:
        """Every checkpoint of a thread, hidden ones too, by namespace and id."""

    def has_thread(self, thread: str) -> bool:
        """Whether anything of a thread is there, be it writes without their checkpoint."""

    def threads(self) -> Sequence[ThreadRow]:
        """Threads in order of their ids."""

    def size(self, thread: str) -> int:
        """Bytes that a thread's values take."""

    def mark_damaged(self) -> None:
        """Have the next open rebuild it from the log."""

    def freed(self, event: Drop | Delete) -> int:
        """Bytes of values that the view would hold less after an event."""


class CheckpointRuntime(LogRuntime, Protocol):
    """Log, projector and view of the checkpoints that belong to a store."""

    @property
    def checkpoints(self) -> CheckpointView: ...
