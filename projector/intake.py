"""What of a log's records is to be folded: those not applied yet, decoded, and none of them twice."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from rocksdict import Rdict, WriteBatch

from eventstore.errors import UndecodableEvent
from eventstore.log.base import StoredRecord
from eventstore.views import Quarantined
from projector.fold import WriterState, is_duplicate
from projector.projections import quarantine
from projector.rocks import get

Place = tuple[int, int]
"""Partition and offset."""
E = TypeVar("E")

_WRITER: Final = struct.Struct(">QQ")
_WRITERS: Final = 10_000
_new = tuple.__new__  # half the time of calling the class, and this runs once per event
_PREFIX: Final = b"w"


class Decoding(Generic[E]):
    """Decodes records under one policy."""

    def __init__(self, decode: Callable[[StoredRecord], E], sets_aside: bool) -> None:
        """``sets_aside`` says that an event which cannot be applied does not stop those behind it."""
        self._decode = decode
        self._sets_aside = sets_aside

    def fresh(
        self,
        records: Sequence[StoredRecord],
        upto: Sequence[int],
        aside: list[Quarantined],
        unfit: Mapping[Place, UndecodableEvent],
    ) -> list[tuple[StoredRecord, E]]:
        """Records not applied yet, with their events. Raises ``UndecodableEvent`` unless such are set aside.

        Of an atomic batch only they are: which records a log gives out together can differ between
        two readers, what their views hold must not.
        """
        decoded = []
        for record in records:
            if record.offset < upto[record.partition]:
                continue
            try:
                if unfit and (record.partition, record.offset) in unfit:
                    raise unfit[record.partition, record.offset]
                decoded.append((record, self._decode(record)))
            except UndecodableEvent as error:
                if not self._sets_aside:
                    raise
                aside.append(quarantine.of(record, error))
        return decoded


class Writers:
    """How far each writer's records have been applied, by session and partition."""

    def __init__(self, source: Callable[[], Rdict]) -> None:
        self._source = source
        self._known: dict[bytes, WriterState] = {}
        self._session: tuple[bytes, int, bytes] = (b"", -1, b"")

    def is_duplicate(self, record: StoredRecord, latest: dict[bytes, WriterState]) -> bool:
        """Whether a record was applied before; if not, it is noted in ``latest``, what this batch changes."""
        of, partition, session = self._session
        if record.session is not of or record.partition != partition:
            session = record.session + record.partition.to_bytes(2, "big")
            self._session = (record.session, record.partition, session)
        if is_duplicate(latest.get(session) or self._state(session), record):
            return True
        latest[session] = _new(WriterState, (record.sequence, record.appended_us))
        return False

    def write(self, batch: WriteBatch, latest: Mapping[bytes, WriterState]) -> None:
        """Put what a batch changes into it."""
        for session, state in latest.items():
            batch.put(_PREFIX + session, _WRITER.pack(*state))

    def committed(self, latest: Mapping[bytes, WriterState]) -> None:
        """The batch is in the view."""
        if len(self._known) > _WRITERS:
            self._known.clear()
        self._known.update(latest)

    def _state(self, session: bytes) -> WriterState | None:
        known = self._known.get(session)
        if known is None:
            data = get(self._source(), _PREFIX + session)
            if data is not None:
                known = self._known[session] = WriterState(*_WRITER.unpack(data))
        return known
