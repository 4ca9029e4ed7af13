"""Batches of several records: one transaction each, all or nothing, by a producer of their own.

A transaction that is left open holds up every reader of the topic until it times out. So one
that failed is ended before anything else is written: its producer's id is initialised again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

from kafka.errors import KafkaError, KafkaTimeoutError

from eventstore.connection import KafkaPlace, where
from eventstore.errors import InvalidConfig, LogUnavailable, OutcomeUnknown
from eventstore.log.kafka.client import ms
from eventstore.log.kafka.producer import Ack, Closing, close_producer, open_producer, send
from eventstore.log.kafka.stamps import Outgoing

ABORT_SECONDS: Final = 0.5


class Transactions:
    """The transactional producer of one log. Calls are serialised by the log."""

    def __init__(self, place: KafkaPlace, session: bytes, closing: Closing) -> None:
        self._place = place
        self._session = session
        self._closing = closing
        self._producer: Any = None
        self._left_open = False

    def settle(self, max_record_bytes: int) -> None:
        """End a transaction that failed. Raises ``LogUnavailable`` while that cannot be done."""
        if not self._left_open:
            return
        try:
            self._open(max_record_bytes)
        except (LogUnavailable, InvalidConfig) as error:
            raise LogUnavailable(
                f"{where(self._place)} holds an unfinished batch of this process that cannot be ended yet; "
                f"nothing was appended by this write. {error}"
            ) from error

    def write(self, outgoing: Sequence[Outgoing], max_record_bytes: int) -> list[Ack]:
        """Write records all together or not at all, within ``put_timeout``.

        Raises ``LogUnavailable`` when nothing was written, ``OutcomeUnknown`` when that cannot be told.
        """
        deadline = time.monotonic() + self._place.options.put_timeout
        if self._producer is None:
            self._open(max_record_bytes)
        producer = self._producer
        committing = False
        try:
            producer.begin_transaction()
            futures = [send(producer, self._place.topic, out) for out in outgoing]
            made = [future.get(timeout=max(0.001, deadline - time.monotonic())) for future in futures]
            committing = True
            _complete(producer, commit=True, seconds=deadline - time.monotonic())
        except BaseException as error:
            if not committing:
                self._abort()
            self._drop()
            if not isinstance(error, (KafkaError, ValueError, TypeError, AssertionError)):
                raise
            if committing:
                raise OutcomeUnknown(
                    f"{where(self._place)} did not say within {self._place.options.put_timeout} s whether a "
                    f"batch of {len(outgoing)} was committed; it is in the log as a whole or not at all. "
                    "Read before writing again"
                ) from error
            raise LogUnavailable(
                f"a batch of {len(outgoing)} could not be written to {where(self._place)} within "
                f"{self._place.options.put_timeout} s ({type(error).__name__}: {error}); nothing was appended"
            ) from error
        return [Ack(each.offset, each.timestamp) for each in made]

    def close(self) -> None:
        """Close the producer, within seconds."""
        if self._producer is not None:
            close_producer(self._producer)

    def _open(self, max_record_bytes: int) -> None:
        # The same id each time: initialising it ends what a lost producer left open.
        name = f"eventstore-{self._session.hex()}"
        self._producer = open_producer(self._place, self._session, max_record_bytes, name)
        self._left_open = False

    def _abort(self) -> None:
        self._left_open = True
        with contextlib.suppress(KafkaError, AssertionError):
            _complete(self._producer, commit=False, seconds=ABORT_SECONDS)
            self._left_open = False

    def _drop(self) -> None:
        dropped, self._producer = self._producer, None
        self._closing.add(dropped)


def _complete(producer: Any, *, commit: bool, seconds: float) -> None:
    """Commit or abort; kafka-python's own methods for it wait for ever. Raises ``KafkaError``."""
    manager = producer._transaction_manager
    result = manager.begin_commit() if commit else manager.begin_abort()
    producer._sender.wakeup()
    if not result.wait(timeout_ms=ms(seconds)):
        raise KafkaTimeoutError(f"{'commit' if commit else 'abort'} unanswered after {seconds:.1f} s")
