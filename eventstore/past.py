"""What a store offers about its past: versions, earlier moments, the change feed, and undoing.

:class:`Past` is the part of :class:`eventstore.EventStore` that looks back. It asks views for
history and appends what undoes; how is decided in the modules it puts together.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from eventstore import difference, undo
from eventstore.asof import AsOf, Times, When, as_of
from eventstore.codec import encode
from eventstore.config import StoreConfig
from eventstore.difference import Diff
from eventstore.embedding import Embedder
from eventstore.errors import InvalidInput, InvalidType, NoSuchMoment
from eventstore.events import Provenance
from eventstore.expiry import Expiry
from eventstore.feed import Changes
from eventstore.history import Cause, Place, Version, in_log_order, microseconds, versions
from eventstore.keys import decode_item, encode_item, encode_namespace
from eventstore.log.position import Position
from eventstore.namespaces import check_key, check_namespace
from eventstore.operations import check_count
from eventstore.plan import refuse_rejected
from eventstore.targets import target
from eventstore.timetravel import PastSight, PastStore
from eventstore.ttl import now_us
from eventstore.turns import beside
from eventstore.undo import Revert, RevertConflict, Undone, Verdict
from eventstore.views import Outcome, Runtime, Written

REVERT_BATCH: Final = 500
"""Memories put right by one append."""


class Past(ABC):
    """The past of a store. What is declared first comes from the store itself."""

    _runtime: Runtime
    _config: StoreConfig
    _embedder: Embedder | None
    _expiry: Expiry
    _closed: bool

    @abstractmethod
    def _check(self) -> None:
        """Raise what makes the store unusable."""

    @abstractmethod
    def _who(self) -> Provenance:
        """The caller."""

    @abstractmethod
    def _refresh_view(self) -> None:
        """Bring the view to what reads of this store are sure to see."""

    @abstractmethod
    def _advance(self, written: Written) -> None:
        """Move the store's position behind what was written."""

    @abstractmethod
    def wait_for(self, position: Position | str | int, timeout: float | None = None) -> None:
        """Return when reads here show everything before ``position``."""

    # ------------------------------------------------------------------ versions

    def history(
        self, namespace: tuple[str, ...], key: str, *, limit: int | None = None, before: int | None = None
    ) -> list[Version]:
        """Versions of one memory, newest first, deleted ones too.

        ``limit`` bounds the page; ``before`` continues below the offset of the last version seen.
        """
        self._check()
        memory = _memory(namespace, key)
        limit = None if limit is None else check_count(limit, "limit")
        before = None if before is None else check_count(before, "before")
        found: list[Version] = []
        self._refresh_view()
        with self._runtime.view.read() as view:
            for version in versions(memory, view.history(memory, before)):
                if limit is not None and len(found) >= limit:
                    break
                found.append(version)
        return found

    def events(
        self,
        prefix: tuple[str, ...] = (),
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        after: Version | int | None = None,
    ) -> list[Version]:
        """What happened to the memories under a prefix, oldest first, rejected events included.

        Only events of a run, thread or actor, and only those the log took from ``since`` to
        ``until``, both included. ``limit`` bounds the page; ``after`` continues behind a version
        seen, or, on a log of one partition, behind an offset.
        """
        self._check()
        cause = Cause.of(run_id, thread_id, actor, since, until)
        under = encode_namespace(check_namespace(prefix, empty_ok=True))
        most = None if limit is None else check_count(limit, "limit")
        place = None if after is None else self._place(after)
        self._refresh_view()
        with self._runtime.view.read() as view:
            return in_log_order(cause.events(view, under), most, place)

    # ------------------------------------------------------------------ earlier moments

    def as_of(self, when: When, *, index: Mapping[str, Any] | None = None) -> PastStore:
        """The store as it was: read-only, every answer as it was given then, scores included.

        ``when`` is a position, its written form, an offset of a log with one partition, a datetime
        with its zone, or a LangGraph config: the moment when that checkpoint, or the newest of its
        thread, came to be, if an ``EventSaver`` on the same connection string put it. Memories that
        had expired by then are hidden where this store hides them. Ranked search is by the model
        that was of record then: where that was another than this store's, ``index`` gives its
        settings, else ranking raises ``IndexMismatch``.
        Raises ``NoSuchMoment`` for a moment that the log does not hold.
        """
        then = self._moment(when)
        embedder = self._embedder if index is None else Embedder(index)
        return PastStore(self._runtime, then, self._times, embedder, self._expiry.omits, self._check)

    def diff(self, before: When, after: When, prefix: tuple[str, ...] = ()) -> Diff:
        """How the memories under a prefix differ between two moments, each as for :meth:`as_of`."""
        under = encode_namespace(check_namespace(prefix, empty_ok=True))
        then, now = self._moment(before), self._moment(after)
        view = self._runtime.view
        with view.past(then.position) as old, view.past(now.position) as new:
            return difference.diff(
                str(then.position),
                str(now.position),
                filter(self._sight(then).shows, old.scan(under)),
                filter(self._sight(now).shows, new.scan(under)),
            )

    async def adiff(self, before: When, after: When, prefix: tuple[str, ...] = ()) -> Diff:
        """:meth:`diff` for coroutines."""
        return await beside(self.diff, before, after, prefix)

    def changes(
        self,
        prefix: tuple[str, ...] = (),
        start: When | None = None,
        *,
        follow: bool = True,
        timeout: float | None = None,
    ) -> Changes:
        """Events under a prefix in log order, from a moment on: an iterator and an async iterator.

        It begins with the first event of the log unless ``start`` says where, and waits for new
        events of any process: for ``timeout`` seconds each, or for ever. ``follow=False`` stops at
        the end instead. Closing the store ends it. Each change carries the position to resume from.
        """
        self._check()
        under = encode_namespace(check_namespace(prefix, empty_ok=True))
        log = self._runtime.log
        at = Position.start(log.partitions) if start is None else as_of(log, self._named(start)).position
        return Changes(self._runtime, lambda: self._closed, under, at, follow=follow, timeout=timeout)

    # ------------------------------------------------------------------ undoing

    def restore(
        self, namespace: tuple[str, ...], key: str, version: int, *, expected_version: int | None = None
    ) -> None:
        """Put back the value, vectors and ttl of one version, as a new version; nothing is embedded.

        With ``expected_version``, only if the memory is at that version (0: absent). Raises
        ``InvalidInput`` for a version that does not exist or left no value, ``VersionConflict``.
        """
        self._check()
        memory = _memory(namespace, key)
        wanted = check_count(version, "version")
        expected = None if expected_version is None else check_count(expected_version, "expected_version")
        self._refresh_view()
        with self._runtime.view.read() as view:
            row = undo.version_row(view, memory, wanted)
            event = undo.put_back(view, memory, row, self._who(), self._runtime.view.signature())
        event = event._replace(expected_version=expected, omits_expired=self._expiry.omits)
        touched, refreshes = self._expiry.waiting([memory])
        written = self._runtime.write(self._runtime.prepare([*refreshes, encode(event)]))
        self._expiry.written(touched)
        self._advance(written)
        refuse_rejected(written)

    async def arestore(
        self, namespace: tuple[str, ...], key: str, version: int, *, expected_version: int | None = None
    ) -> None:
        """:meth:`restore` for coroutines."""
        await asyncio.to_thread(self.restore, namespace, key, version, expected_version=expected_version)

    def revert(
        self,
        prefix: tuple[str, ...] = (),
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        dry_run: bool = True,
    ) -> Revert:
        """Undo what a run, thread or actor wrote: show it, or with ``dry_run=False`` do it.

        Each memory gets what the other events alone would have left: their last value, or none.
        A memory others wrote to afterwards is left alone and reported, also when that happens
        while this runs. Causes given together must all hold; at least one must be given.
        """
        self._check()
        cause = Cause.of(run_id, thread_id, actor, since, until)
        if not cause.named:
            raise InvalidInput("revert needs a cause: give at least one of run_id, thread_id and actor")
        under = encode_namespace(check_namespace(prefix, empty_ok=True))
        self._refresh_view()
        now = now_us()
        with self._runtime.view.read() as view:
            keys = dict.fromkeys(each.key for each in cause.events(view, under))
            judged = (undo.judge(key, [*view.history(key, None)][::-1], cause, now) for key in keys)
            verdicts = [verdict for verdict in judged if verdict is not None]
        conflicts = [_conflict(each, each.later, meanwhile=False) for each in verdicts if each.later]
        done = [each for each in verdicts if not each.later]
        if not dry_run:
            lost = self._compensate(done)
            done = [each for each in done if each.key not in lost]
            conflicts += lost.values()
        return Revert(
            dry_run=dry_run,
            restored=[_undone(each) for each in done if each.target is not None],
            deleted=[_undone(each) for each in done if each.target is None],
            conflicts=sorted(conflicts, key=lambda each: (each.namespace, each.key)),
        )

    async def arevert(
        self,
        prefix: tuple[str, ...] = (),
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        actor: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        dry_run: bool = True,
    ) -> Revert:
        """:meth:`revert` for coroutines."""
        return await asyncio.to_thread(
            self.revert,
            prefix,
            run_id=run_id,
            thread_id=thread_id,
            actor=actor,
            since=since,
            until=until,
            dry_run=dry_run,
        )

    # ------------------------------------------------------------------ inside

    @cached_property
    def _times(self) -> Times:
        return Times(self._runtime.log)

    def _moment(self, when: When) -> AsOf:
        self._check()
        then = as_of(self._runtime.log, self._named(when))
        if not self._runtime.applied.covers(then.position):
            self.wait_for(then.position)
        return then

    def _named(self, when: When) -> When:
        """The moment, of a checkpoint as a position."""
        return self._seen_at(when) if isinstance(when, Mapping) else when

    def _seen_at(self, config: Mapping[str, Any]) -> Position:
        wanted = target(config)
        found = self._runtime.seen_at(wanted)
        if found is None:
            named = f"checkpoint {wanted.checkpoint}" if wanted.checkpoint else "a checkpoint"
            raise NoSuchMoment(
                f"thread {wanted.thread!r} has not {named} that says what was known; was it put by an "
                "EventSaver on this connection string, and not pruned or deleted since?"
            )
        return found

    def _sight(self, then: AsOf) -> PastSight:
        omits = self._expiry.omits
        return PastSight(omits, self._times.us(then) if omits else 0)

    def _place(self, after: Version | int) -> Place:
        if isinstance(after, Version):
            return microseconds(after.at, "after.at"), after.partition, after.offset
        if self._runtime.log.partitions > 1:
            raise InvalidType("on a log of several partitions, after takes a Version, not an offset")
        log, offset = self._runtime.log, check_count(after, "after")
        return self._times.us(AsOf(as_of(log, offset + 1).position, None)), 0, offset

    def _compensate(self, verdicts: Sequence[Verdict]) -> dict[bytes, RevertConflict]:
        """Append what puts memories right; those that changed meanwhile are returned."""
        who = self._who()
        lost: dict[bytes, RevertConflict] = {}
        for first in range(0, len(verdicts), REVERT_BATCH):
            some = verdicts[first : first + REVERT_BATCH]
            by = self._runtime.view.signature()
            with self._runtime.view.read() as view:
                records = [encode(undo.compensation(view, verdict, who, by)) for verdict in some]
            written = self._runtime.write(self._runtime.prepare(records))
            self._advance(written)
            for verdict, record in zip(some, written.records, strict=True):
                outcome = written.outcomes.get((record.partition, record.offset))
                if outcome is not None:
                    lost[verdict.key] = _conflict(verdict, _since(verdict, outcome), meanwhile=True)
        return lost


def _memory(namespace: tuple[str, ...], key: str) -> bytes:
    return encode_item(check_namespace(namespace, empty_ok=True), check_key(key))


def _undone(verdict: Verdict) -> Undone:
    namespace, key = decode_item(verdict.key)
    restored = None if verdict.target is None else verdict.target.version
    return Undone(namespace=namespace, key=key, undone=verdict.undone, restored=restored)


def _conflict(verdict: Verdict, later: Iterable[int], *, meanwhile: bool) -> RevertConflict:
    namespace, key = decode_item(verdict.key)
    return RevertConflict(
        namespace=namespace, key=key, undone=verdict.undone, later=tuple(later), meanwhile=meanwhile
    )


def _since(verdict: Verdict, outcome: Outcome) -> tuple[int, ...]:
    return (outcome.version,) if outcome.version else ()
