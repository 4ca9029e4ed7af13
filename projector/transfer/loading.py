"""Lines become events: compared with what the store has, embedded where need be, appended in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from langgraph.store.base import PutOp

from eventstore import EventStore
from eventstore.codec import encode
from eventstore.embedding import differs
from eventstore.events import UNVERSIONED, Embedded, Event, Kind, Provenance, new_id
from eventstore.history import microseconds
from eventstore.keys import encode_item
from eventstore.operations import Put, check
from eventstore.ttl import MINUTE_US, now_us
from eventstore.values import decode_value
from projector.runtime import runtime_of
from projector.transfer.lines import Line

BATCH: Final = 200
"""Events of one append."""
SHORTEST_MINUTES: Final = 0.001
"""Time to live of a version that had expired when it was loaded with its history."""
_NO_VERSION: Final = frozenset({*UNVERSIONED, "void", "rejected"})

Fact = tuple[bool, bytes | None]
"""What a version did: whether it gave a value, and which."""


class _Pending(NamedTuple):
    put: Put
    provenance: Provenance
    embedded: Embedded | None
    texts: list[tuple[str, str]]


class Loader:
    """Loads lines into one store."""

    def __init__(self, store: EventStore, provenance: Provenance, max_value_bytes: int) -> None:
        """``provenance`` is that of lines that do not say who wrote them."""
        self.written = self.present = self.expired = self.conflicts = self.reused = self.embedded = 0
        self._runtime = runtime_of(store)
        self._embedder = store._embedder
        self._provenance = provenance
        self._max_value_bytes = max_value_bytes
        self._pending: list[_Pending] = []

    def memory(self, line: Line) -> None:
        """Load a memory as it is, unless the store says the same.

        Raises ``InvalidInput`` or ``InvalidType`` for what no memory can be.
        """
        ttl = _ttl(line)
        if line.expires_at is not None and ttl is not None and ttl <= 0:
            self.expired += 1
            return
        put = self._put(line, ttl)
        row = self._runtime.view.get(put.key)
        if row is not None and bool(row.expires_us) == (ttl is not None) and _equal(row.data, put.value):
            self.present += 1
            return
        self._add(line, put)

    def versions(self, lines: Sequence[Line]) -> None:
        """Load all versions of one memory, oldest first, those that the store does not have yet."""
        lines = [line for line in lines if not line.rejected]
        if not lines:
            return
        puts = [self._put(line, None) for line in lines]
        given: list[Fact] = [(put.value is not None, put.value) for put in puts]
        known = self._facts(encode_item(tuple(lines[0].namespace), lines[0].key))
        same = min(len(given), len(known))
        if given[:same] != known[:same]:
            self.conflicts += len(lines)
            return
        self.present += same
        for at in range(same, len(lines)):
            line, put = lines[at], puts[at]
            if at == len(lines) - 1 and put.value is not None:
                ttl = _ttl(line)
                put = put._replace(ttl=None if ttl is None else max(ttl, SHORTEST_MINUTES))
            self._add(line, put)

    def flush(self) -> None:
        """Append what is pending, all of it or nothing. Raises what embedding and appending raise."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        texts = [text for each in pending for _, text in each.texts]
        made = self._embedder.embed(texts, []) if self._embedder is not None and texts else None
        records = []
        for each in pending:
            embedded = each.embedded
            if embedded is None and made is not None and each.texts:
                embedded = made.embedded(each.texts)
            event = Event(
                kind=Kind.DELETE if each.put.value is None else Kind.PUT,
                key=each.put.key,
                id=new_id(),
                value=each.put.value,
                provenance=each.provenance,
                ttl=each.put.ttl,
                indexing=each.put.indexing,
                embedded=embedded,
            )
            records.append(encode(event))
        self._runtime.write(self._runtime.prepare(records))
        self.written += len(pending)
        self.reused += sum(each.embedded is not None for each in pending)
        self.embedded += sum(bool(each.texts) for each in pending)

    def _put(self, line: Line, ttl: float | None) -> Put:
        value = None if line.kind in ("delete", "expire") else line.value
        index: Any = None if line.index is True else line.index
        op = PutOp(tuple(line.namespace), line.key, value, index if value is not None else None, ttl)
        (step,) = check([op], self._max_value_bytes)
        assert isinstance(step, Put)
        return step

    def _add(self, line: Line, put: Put) -> None:
        embedded: Embedded | None = None
        texts: list[tuple[str, str]] = []
        if put.value is not None and put.indexing is not False:
            if line.vectors is not None and self._fits(line.vectors.model):
                embedded = line.vectors.embedded()
            elif self._embedder is not None:
                texts = self._embedder.texts(put.value, put.indexing, put.given)
        named = Provenance(line.actor, line.thread, line.run, line.node, line.checkpoint)
        who = self._provenance if named == Provenance() else named
        self._pending.append(_Pending(put, who, embedded, texts))
        if len(self._pending) >= BATCH:
            self.flush()

    def _fits(self, model: str) -> bool:
        """Whether vectors of a model may stand beside those of the store."""
        if self._embedder is not None:
            return not differs(model, self._embedder.fingerprint)
        signature = self._runtime.view.signature()
        return signature is None or not differs(model, signature.model)

    def _facts(self, key: bytes) -> list[Fact]:
        with self._runtime.view.read() as view:
            rows = [row for row in view.history(key, None) if row.outcome not in _NO_VERSION]
        return [(row.value is not None, row.value) for row in reversed(rows)]


def _ttl(line: Line) -> float | None:
    """Minutes a memory has left; not above 0 when it has expired."""
    if line.expires_at is None:
        return line.ttl_minutes
    return (microseconds(line.expires_at, "expires_at") - now_us()) / MINUTE_US


def _equal(data: bytes, value: bytes | None) -> bool:
    return data == value or (value is not None and decode_value(data) == decode_value(value))
