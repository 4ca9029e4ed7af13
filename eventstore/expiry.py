"""What expires in a store, what is refreshed, and what a sweep appends.

Joins the settings and the bookkeeping of :mod:`eventstore.ttl` with a runtime. Deleting is an
event about the version and expiry that were seen: a memory that is written or refreshed
meanwhile, by any process, is left alone, and every replica agrees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from langgraph.store.base import TTLConfig

from eventstore.codec import encode
from eventstore.events import Event, Kind, Provenance, new_id
from eventstore.keys import decode_item, encode_namespace
from eventstore.log.base import Record
from eventstore.ttl import Sweeper, Touched, Touches, now_us
from eventstore.views import ReadView, Row, Runtime, Written

SWEEP_BATCH: Final = 1_000


class Expiry:
    """The expiry of one store's memories."""

    def __init__(
        self,
        runtime: Runtime,
        config: TTLConfig | None,
        refresh_view: Callable[[], None],
        who: Callable[[], Provenance],
        on_written: Callable[[Written], None] = lambda written: None,
    ) -> None:
        """``refresh_view`` brings the view to what reads must see; ``who`` is the caller."""
        self.omits: bool = bool(config and config.get("omit_expired"))
        """Whether expired memories are hidden before a sweep deletes them."""
        self.sweeper = Sweeper(self.sweep, config)
        self._runtime = runtime
        self._refresh_view = refresh_view
        self._who = who
        self._on_written = on_written
        self._touches = Touches(self.flush)

    def shows(self, row: Row) -> bool:
        """Whether a memory is to be seen."""
        return not self.omits or self.lives(row)

    def lives(self, row: Row) -> bool:
        """Whether a memory has not expired, refreshes not yet in the log included."""
        return not row.expires_us or self._touches.expiry(row) > now_us()

    def read(self, row: Row) -> None:
        """A memory was read in a way that refreshes it."""
        if row.ttl_us:
            self._touches.note(row)

    def hidden(self, view: ReadView) -> Mapping[bytes, int]:
        """How many memories of each namespace are there but not to be seen."""
        if not self.omits:
            return {}
        return Counter(
            encode_namespace(decode_item(key)[0])
            for _, key in view.expired(now_us())
            if (row := view.get(key)) is not None and not self.lives(row)
        )

    def waiting(self, keys: Iterable[bytes]) -> tuple[list[Touched], list[Record]]:
        """Refreshes of these memories that the log lacks.

        They go before a write of the same memories: a put decides by what the log says whether
        the memory it replaces had expired.
        """
        touched = self._touches.waiting(keys)
        return touched, [_touch(each) for each in touched]

    def written(self, touched: Iterable[Touched]) -> None:
        """These refreshes are in the log."""
        self._touches.done(touched)

    def flush(self) -> None:
        """Append the refreshes that wait."""
        touched = self._touches.waiting()
        if touched:
            self._write_each([_touch(each) for each in touched])
            self._touches.done(touched)

    def sweep(self) -> int:
        """Delete what has expired; returns how many memories."""
        self._runtime.check()
        self.flush()
        swept = 0
        while True:
            self._refresh_view()
            dead = self._dead()
            if not dead:
                return swept
            who = self._who()
            written = self._write_each([_expire(row, who) for row in dead])
            swept += sum(not each.outcomes for each in written)

    def stop(self) -> None:
        """Stop the sweeper and the coming flush; what waits stays waiting."""
        self.sweeper.stop(5.0)
        self._touches.stop()

    def _write_each(self, records: Sequence[Record]) -> list[Written]:
        """Append records that do not depend on one another."""
        done = self._runtime.write_all([self._runtime.prepare([record]) for record in records])
        for each in done:
            if isinstance(each, BaseException):
                raise each
        written = [each for each in done if isinstance(each, Written)]
        for each in written:
            self._on_written(each)
        return written

    def _dead(self) -> list[Row]:
        found: list[Row] = []
        with self._runtime.view.read() as view:
            for _, key in view.expired(now_us()):
                row = view.get(key)
                if row is not None and not self.lives(row):
                    found.append(row)
                    if len(found) == SWEEP_BATCH:
                        break
        return found


def _touch(touched: Touched) -> Record:
    key, version, expires_us = touched
    return encode(Event(Kind.TOUCH, key, new_id(), seen_version=version, expires_us=expires_us))


def _expire(row: Row, who: Provenance) -> Record:
    event = Event(Kind.EXPIRE, row.key, new_id(), provenance=who)
    return encode(event._replace(seen_version=row.version, expires_us=row.expires_us))
