"""Checkpoints as LangGraph wants them: whole tuples, listings, and the history of delta channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.base import PendingWrite as Pending
from langgraph.checkpoint.serde.base import SerializerProtocol

from eventstore.checkpoint.contents import Contents, Missing
from eventstore.checkpoint.events import Packed, Where, config_of
from eventstore.checkpoint.sealing import Seal
from eventstore.checkpoint.shrinking import grow
from eventstore.checkpoint.views import CheckpointView, Row, Stored, WriteRow
from eventstore.errors import CheckpointUnreadable, EventStoreError, ViewDamaged
from eventstore.targets import Target

PAGE: Final = 64
_ATTEMPTS: Final = 3
"""How often something may be missing of a checkpoint that is itself as it was: one of its writes may
have been replaced and collected meanwhile. Beyond that it is damage."""

Filter = Mapping[str, Any]
T = TypeVar("T")


class Reading:
    """Reads one view. ``seal`` gives what a thread's bytes are opened with. Safe for threads."""

    def __init__(
        self,
        view: Callable[[], CheckpointView],
        contents: Contents,
        seal: Callable[[str, bool], Seal],
    ) -> None:
        self._view = view
        self._contents = contents
        self._seal = seal

    def find(self, wanted: Target) -> Row | None:
        """The row of a checkpoint, or of the newest one of its namespace, that is not hidden."""
        namespace = wanted.namespace or ""
        view = self._view()
        if wanted.checkpoint is not None:
            row = view.row(Where(wanted.thread, namespace, wanted.checkpoint))
            return None if row is None or row.hidden else row
        while newest := view.page(wanted.thread, namespace, None, 1):
            row = view.row(newest[0])
            if row is not None and not row.hidden:
                return row
            # It went in between; another one may be the newest now.
        return None

    def get(self, wanted: Target, serde: SerializerProtocol) -> CheckpointTuple | None:
        """A checkpoint, or the newest one.

        Raises ``CheckpointSealed``, ``CheckpointUnreadable``, ``ViewDamaged``.
        """
        return self._whole(lambda: self.find(wanted), lambda row: self._tuple(row, serde))

    def list(
        self,
        wanted: Target | None,
        filter: Filter | None,
        before: str | None,
        limit: int | None,
        serde: SerializerProtocol,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest id first; nothing is held while the caller pauses."""
        if limit == 0:
            return
        left = limit
        for at in self._places(wanted, before, PAGE if limit is None or filter else min(limit, PAGE)):
            found = self._filtered(at, filter, serde)
            if found is not None:
                yield found
                if left is not None:
                    left -= 1
                    if not left:
                        return

    def history(
        self, wanted: Target, channels: Sequence[str], serde: SerializerProtocol
    ) -> dict[str, DeltaChannelHistory]:
        """What ancestors wrote to delta channels, oldest first, back to a stored value, if there is one."""
        nothing: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
        found = self._whole(lambda: self.find(wanted), lambda row: self._history(row, channels, serde))
        return nothing if found is None else found

    def packed(self, row: Row, stored: Stored, what: bytes = b"") -> Packed:
        """The bytes of a row's value, or of the field ``what`` of the row. Raises :class:`Missing`."""
        if isinstance(stored, Packed):
            if not what:
                return stored
            opened = self._seal(row.at.thread, row.sealed).open(stored, row.at, what)
            try:
                return grow(opened)
            except Exception as error:
                raise _unreadable(row.at, f"the {what.decode()}", opened, error) from error
        return self._contents.read(row.at.thread, stored, lambda: self._seal(row.at.thread, True))

    def body(self, row: Row, serde: SerializerProtocol) -> dict[str, Any]:
        """A checkpoint without its channels' values. Raises :class:`Missing`, ``CheckpointUnreadable``."""
        return {**self._mapping(row, row.body, serde, "body"), "id": row.at.id}

    def metadata(self, row: Row, serde: SerializerProtocol) -> CheckpointMetadata:
        """Of a checkpoint. Raises :class:`Missing`, ``CheckpointUnreadable``."""
        return cast(CheckpointMetadata, self._mapping(row, row.metadata, serde, "metadata"))

    def is_current(self, row: Row) -> bool:
        """Whether a checkpoint is still there as it was put; it may be hidden by now."""
        return self._view().event(row.at) == row.event

    def damaged(self, thread: str) -> ViewDamaged:
        """What to raise when something is missing and nobody removes anything; the view is made anew then."""
        self._view().mark_damaged()
        return ViewDamaged(
            f"part of a checkpoint of thread {thread!r} is missing from the view. The log is intact; open "
            "the saver again and the view is rebuilt from it"
        )

    # ------------------------------------------------------------------ inside

    def _mapping(self, row: Row, stored: Stored, serde: SerializerProtocol, field: str) -> Mapping[str, Any]:
        packed = self.packed(row, stored, field.encode())
        found = _loaded(row.at, f"the {field}", packed, serde)
        if not isinstance(found, Mapping):
            raise _unreadable(row.at, f"the {field}", packed, None)
        return found

    def _value(self, row: Row, channel: str, serde: SerializerProtocol) -> Any:
        what = f"the value of channel {channel!r}"
        return _loaded(row.at, what, self.packed(row, row.values[channel]), serde)

    def _whole(self, find: Callable[[], Row | None], read: Callable[[Row], T]) -> T | None:
        """What is read of a row that nobody changed meanwhile; ``None`` where there is none any more.

        A row, its values and its writes are read one after the other, and a prune, a delete or
        another put of the same checkpoint may come between.
        """
        missing = 0
        while True:
            row = find()
            if row is None:
                return None
            try:
                found = read(row)
            except Missing:
                missing += self.is_current(row)
                if missing == _ATTEMPTS:
                    raise self.damaged(row.at.thread) from None
                continue
            if self.is_current(row):
                return found

    def _history(
        self, row: Row | None, channels: Sequence[str], serde: SerializerProtocol
    ) -> dict[str, DeltaChannelHistory]:
        collected: dict[str, list[Pending]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        open_channels = set(channels)
        seen: set[str] = set()
        while row is not None and row.parent is not None and open_channels and row.parent not in seen:
            seen.add(row.at.id)
            row = self._view().row(row.at._replace(id=row.parent))
            if row is None:
                break
            for write in reversed(self._view().writes(row.at)):
                if write.channel in open_channels:
                    collected[write.channel].append(self._pending(row, write, serde))
            for channel in list(open_channels):
                if channel in row.values:
                    seeds[channel] = self._value(row, channel, serde)
                    open_channels.discard(channel)
        return {channel: _channel_history(collected[channel], channel, seeds) for channel in channels}

    def _places(self, wanted: Target | None, before: str | None, size: int) -> Iterator[Where]:
        if wanted is not None and wanted.checkpoint is not None:
            places = [Where(wanted.thread, wanted.namespace or "", wanted.checkpoint)]
            if wanted.namespace is None:
                rows = self._view().of_thread(wanted.thread)
                places = [row.at for row in rows if row.at.id == wanted.checkpoint]
            yield from (at for at in places if before is None or at.id < before)
            return
        thread, namespace = (None, None) if wanted is None else (wanted.thread, wanted.namespace)
        below: Where | str | None = before
        while page := self._view().page(thread, namespace, below, size):
            yield from page
            below = page[-1]
            size = PAGE

    def _filtered(
        self, at: Where, filter: Filter | None, serde: SerializerProtocol
    ) -> CheckpointTuple | None:
        def find() -> Row | None:
            row = self._view().row(at)
            return None if row is None or row.hidden else row

        def read(row: Row) -> CheckpointTuple | None:
            if filter:
                metadata: Mapping[str, Any] = self.metadata(row, serde)
                if any(metadata.get(name) != value for name, value in filter.items()):
                    return None
            return self._tuple(row, serde)

        return self._whole(find, read)

    def _tuple(self, row: Row, serde: SerializerProtocol) -> CheckpointTuple:
        body = self.body(row, serde)
        body["channel_values"] = {channel: self._value(row, channel, serde) for channel in row.values}
        return CheckpointTuple(
            config_of(row.at),
            cast(Checkpoint, body),
            self.metadata(row, serde),
            None if row.parent is None else config_of(row.at._replace(id=row.parent)),
            [self._pending(row, write, serde) for write in self._view().writes(row.at)],
        )

    def _pending(self, row: Row, write: WriteRow, serde: SerializerProtocol) -> Pending:
        what = f"what task {write.task!r} wrote to {write.channel!r}"
        return (write.task, write.channel, _loaded(row.at, what, self.packed(row, write.value), serde))


def _loaded(at: Where, what: str, packed: Packed, serde: SerializerProtocol) -> Any:
    """What a serializer makes of bytes. Raises ``CheckpointUnreadable`` for whatever it raises of them."""
    try:
        return serde.loads_typed(packed)
    except (EventStoreError, MemoryError, RecursionError):
        raise
    except Exception as error:
        raise _unreadable(at, what, packed, error) from error


def _unreadable(at: Where, what: str, packed: Packed, error: Exception | None) -> CheckpointUnreadable:
    """What to raise; the serializer's own words stay in the cause, since they may repeat the value's."""
    # LangGraph's serializer with a cipher writes the cipher's name behind that of the form.
    _, encrypted, cipher = str(packed.tag).partition("+")
    place = f"{what} in checkpoint {at.id!r} of thread {at.thread!r}"
    raised = f"({type(error).__name__})" if error is not None else "as what it should be"
    if encrypted:
        return CheckpointUnreadable(
            f"{place} is encrypted ({cipher!r}) and does not load {raised}: open the saver with the serde, "
            "and the key, that it was written with"
        )
    return CheckpointUnreadable(
        f"{place} does not load {raised}: open the saver with the serde that it was written with. If another "
        "program wrote it, delete the thread, or go on from another checkpoint of it"
    )


def _channel_history(
    newest_first: list[Pending], channel: str, seeds: Mapping[str, Any]
) -> DeltaChannelHistory:
    found: DeltaChannelHistory = {"writes": newest_first[::-1]}
    if channel in seeds:
        found["seed"] = seeds[channel]
    return found
