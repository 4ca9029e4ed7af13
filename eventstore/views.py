"""What the faces may ask of a materialized view, whatever it is made of.

The store reads through these protocols and never sees RocksDB or FAISS. ``projector``
implements them. A :class:`ReadView` is one moment: everything read through it belongs
together, whatever is applied meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from eventstore.errors import EventStoreError
from eventstore.log.base import Batch, Log, Record, StoredRecord
from eventstore.log.position import Position
from eventstore.targets import Target

Vector = NDArray[np.float32]
Metric = Literal["cosine", "l2", "inner_product"]
"""How two vectors are compared; scores are as pgvector's."""


class Row(NamedTuple):
    """A live memory as the view keeps it. Times are µs since the epoch (UTC)."""

    key: bytes
    """Encoded namespace and key."""
    version: int
    """1 for the first event of this memory, counted on through deletes."""
    created_us: int
    updated_us: int
    expires_us: int
    """0: never."""
    ttl_us: int
    """What a refresh adds to its own time; 0: nothing to refresh."""
    data: bytes
    """The value's JSON, as its writer gave it."""


class NamespaceCount(NamedTuple):
    """How many live memories a namespace holds itself, and with everything below it."""

    prefix: bytes
    direct: int
    subtree: int


class HistoryRow(NamedTuple):
    """One event of a memory's past, with what the fold made of it."""

    outcome: str
    """put, restore, delete, expire, touch, embed; or rejected, or void (a delete of what was not
    there)."""
    version: int
    created_us: int
    updated_us: int
    expires_us: int
    ttl_us: int
    partition: int
    offset: int
    appended_us: int
    vectors: int | None
    """Under which sequence the view keeps what the event did to the memory's vectors."""
    headers: dict[str, bytes]
    value: bytes | None


class Quarantined(NamedTuple):
    """An event that could not be applied and was set aside; those behind it were applied."""

    partition: int
    offset: int
    appended_us: int
    key: bytes
    """The record's key, whatever that is."""
    reason: str


class Wanted(NamedTuple):
    """Which rows of the past are of interest. Times are µs since the epoch, both ends included."""

    since_us: int = 0
    until_us: int = 2**63
    needles: tuple[bytes, ...] = ()
    """Bytes a row must hold; see :func:`eventstore.codec.needle`."""


class Occurrence(NamedTuple):
    """An event of some memory, in log order when sorted; its row is read when asked for."""

    appended_us: int
    partition: int
    offset: int
    outcome: str
    key: bytes
    row: Callable[[], HistoryRow]


class Ranking(NamedTuple):
    """Memories by score, best first; equal scores in key order."""

    hits: list[tuple[float, bytes]]
    complete: bool
    """Whether there is nothing to rank beyond these hits."""


class Signature(NamedTuple):
    """What the vectors on record were made by."""

    model: str
    dims: int
    fields: tuple[str, ...] | None = None
    """The default fields, sorted; ``None`` until a change of model or fields puts them on record."""


IndexSettings = tuple[int, Metric, str, bool]
"""Dimensions, metric and model of a FAISS index, and whether it never approximates."""


class Ranks(NamedTuple):
    """By what a store ranks."""

    dims: int
    metric: Metric
    model: str


class ReadView(Protocol):
    """One consistent moment of the view."""

    def get(self, key: bytes) -> Row | None:
        """The live memory at an encoded key."""

    def newest(self, prefix: bytes) -> Iterator[bytes]:
        """Keys under an encoded prefix, most recently updated first; ties in key order."""

    def scan(
        self, prefix: bytes, start: bytes | None = None, holding: Sequence[bytes] = (), expected: int = 0
    ) -> Iterator[Row]:
        """Memories under an encoded prefix, in key order; from a key on, if one is given.

        Those whose bytes do not hold all of ``holding`` may be left out. How many are ``expected`` makes it
        faster, where that is known, and nothing else.
        """

    def count(self, prefix: bytes) -> int:
        """Live memories under an encoded prefix."""

    def namespaces(self, prefix: bytes, max_depth: int | None) -> Iterator[NamespaceCount]:
        """Namespaces under a prefix in label order; those deeper than ``max_depth`` are skipped."""

    def expired(self, until_us: int) -> Iterator[tuple[int, bytes]]:
        """Expiry and key of memories whose expiry is at or before a time."""

    def rank(
        self,
        query: Vector,
        prefix: bytes,
        k: int,
        only: Collection[bytes] | None = None,
        *,
        exact: bool = False,
    ) -> Ranking:
        """At least ``k`` memories by similarity; very wide searches are approximate unless ``exact``."""

    def ranked(self) -> Signature | None:
        """What made the vectors that this moment ranks; ``None`` when it ranks none."""

    def rows_to_rank(self, prefix: bytes) -> int:
        """How many vectors a ranking under this prefix looks at; an upper bound."""

    def history(self, key: bytes, before: int | None) -> Iterator[HistoryRow]:
        """Events of one memory, newest first, from below offset ``before``."""

    def events(self, prefix: bytes, wanted: Wanted) -> Iterator[Occurrence]:
        """Events under an encoded prefix, by key, each memory's newest first."""

    def vectors(self, sequence: int) -> tuple[str, Vector]:
        """What a history row says of its memory's vectors: the model, and one row for each."""

    def quarantined(self) -> Iterator[Quarantined]:
        """Events that were set aside, by partition and offset."""


class View(Protocol):
    """The materialized state of one log in this process."""

    def get(self, key: bytes) -> Row | None:
        """The live memory at an encoded key, now; cheaper than opening a moment."""

    def read(self) -> AbstractContextManager[ReadView]:
        """One consistent moment, to be left soon: it pins what it shows."""

    def past(self, position: Position, ranks: Ranks | None = None) -> AbstractContextManager[ReadView]:
        """The moment when everything before a position had been applied and nothing else.

        It ranks by ``ranks``; asking it to raises ``IndexMismatch`` where another model was of record.
        """

    def signature(self) -> Signature | None:
        """What made the vectors on record; ``None`` while there are none."""


class Outcome(NamedTuple):
    """What the fold decided about a record of ours that was not simply applied."""

    reason: str
    """rejected (a condition did not hold), void (about a version no longer there), duplicate."""
    version: int
    """The version the memory has now; 0 when it is absent."""


class Written(NamedTuple):
    """A batch as it stands in the log."""

    records: list[StoredRecord]
    outcomes: dict[tuple[int, int], Outcome]
    """By partition and offset, for the records that did not take effect."""


class LogRuntime(Protocol):
    """A log and a view of it that is kept current, shared by the faces on it."""

    @property
    def log(self) -> Log: ...

    @property
    def applied(self) -> Position:
        """Everything before it is visible."""

    @property
    def stopped(self) -> EventStoreError | None:
        """What stopped the projection, if it stopped."""

    def check(self) -> None:
        """Raise what makes the runtime unusable: closed, forked, or a stopped projection."""

    def prepare(self, records: Sequence[Record]) -> Batch:
        """Encode a batch in the caller's thread."""

    def write(self, batch: Batch) -> Written:
        """Append a batch and return when this process's view shows it."""

    async def awrite(self, batch: Batch) -> Written:
        """The same without blocking the event loop; a cancelled wait does not undo the write."""

    def catch_up(self) -> None:
        """Apply what the log holds beyond the view. A stopped projection stays where it is."""

    def release(self) -> None:
        """Give up one use; the last one closes log and view."""


class Runtime(LogRuntime, Protocol):
    """Log, projector and view of the memories of one connection string."""

    @property
    def view(self) -> View: ...

    def write_all(self, batches: Sequence[Batch]) -> list[Written | BaseException]:
        """Append batches in order, each on its own; a failed one has its error in its place."""

    async def awrite_all(self, batches: Sequence[Batch]) -> list[Written | BaseException]:
        """The same without blocking the event loop."""

    def wait_for(self, position: Position, timeout: float) -> None:
        """Return when the view holds everything before a position. Raises ``ViewBehind``."""

    def use_vectors(self, dims: int, distance: Metric, model: str, exact: bool) -> None:
        """Make rankings possible, over the vectors of record.

        Raises ``IndexMismatch`` if the vectors on record differ.
        """

    def ranks_by(self, ranks: Ranks) -> bool:
        """Whether :meth:`use_vectors` has nothing more to do for these settings."""

    def seen_at(self, wanted: Target) -> Position | None:
        """Up to where whoever put a checkpoint, or the newest of a thread, can have read memories."""
