"""Producing: acknowledged by all in-sync replicas, in order, within a deadline.

A record whose deadline passed may still land. Until that is known nothing more is sent, so that
no later write of this process can overtake it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from kafka.errors import (
    AuthorizationError,
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    PolicyViolationError,
)

from eventstore.connection import KafkaPlace, where
from eventstore.errors import InvalidConfig, LogError, LogUnavailable, OutcomeUnknown
from eventstore.log.kafka.producer import Ack, Closing, close_producer, open_producer, send
from eventstore.log.kafka.stamps import Outgoing
from eventstore.log.kafka.transactions import Transactions

DOUBT_SECONDS: Final = 0.5
"""How long a write waits for earlier ones whose outcome is not known yet."""
NOT_WRITTEN: Final = (AuthorizationError, InvalidTimestampError, PolicyViolationError)
"""A broker's answers that say that the record is not in the log."""


class Writer:
    """The producers of one log. Calls are serialised by the log."""

    def __init__(self, place: KafkaPlace, session: bytes, limit: Callable[[], int]) -> None:
        """``limit`` is the largest record the topic takes, in bytes. Raises ``LogUnavailable``."""
        self._place = place
        self._session = session
        self._limit = limit
        self._doubtful: list[Any] = []
        self._broken = False
        self._closing = Closing()
        self._transactions = Transactions(place, session, self._closing)
        self._producer: Any = open_producer(place, session, limit())
        self.too_large = False
        """Whether the last call met a record that the topic does not take; it is not in the log."""

    def send(self, outgoing: Sequence[Outgoing]) -> list[Ack | LogError]:
        """Write records each on its own. Raises ``LogUnavailable`` when none was sent."""
        self._settle()
        deadline = time.monotonic() + self._place.options.put_timeout
        producer, topic = self._producer, self._place.topic
        sent: list[Any] = []
        for out in outgoing:
            try:
                sent.append(send(producer, topic, out))
            except (KafkaError, ValueError, TypeError) as error:
                sent.append(
                    LogUnavailable(
                        f"{where(self._place)} took no record ({type(error).__name__}: {error}); "
                        "nothing was appended"
                    )
                )
        acks = [future if isinstance(future, LogError) else self._await(future, deadline) for future in sent]
        if self._broken:
            self._replace()
        return acks

    def send_atomically(self, outgoing: Sequence[Outgoing]) -> list[Ack]:
        """Write records all together or not at all.

        Raises ``LogUnavailable`` when nothing was written, ``OutcomeUnknown`` when that cannot be told.
        """
        self._settle()
        try:
            return self._transactions.write(outgoing, self._limit())
        except LogUnavailable as error:
            self.too_large = isinstance(error.__cause__, MessageSizeTooLargeError)
            raise

    def close(self) -> None:
        """Close the producers, within seconds."""
        self._transactions.close()
        if self._producer is not None:
            if self._doubtful:
                self._replace()
            else:
                close_producer(self._producer)
        self._closing.join()

    # ------------------------------------------------------------------ inside

    def _await(self, future: Any, deadline: float) -> Ack | LogError:
        try:
            made = future.get(timeout=max(0.001, deadline - time.monotonic()))
        except KafkaTimeoutError:
            if not future.is_done:
                self._doubtful.append(future)
            return OutcomeUnknown(
                f"{where(self._place)} did not acknowledge a write within "
                f"{self._place.options.put_timeout} s; its outcome is unknown: it may be in the log, "
                "and may still land, once. Read before writing again"
            )
        except KafkaError as error:
            # After an answer that no retry changes, this client fails every later record alike.
            self._broken = True
            return self._failed(error)
        if made.offset < 0:
            return OutcomeUnknown(
                f"{where(self._place)} has had this write before and does not say where; read it back"
            )
        return Ack(made.offset, made.timestamp)

    def _failed(self, error: KafkaError) -> LogError:
        text = f"{where(self._place)} refused a write: {type(error).__name__}: {error}"
        if isinstance(error, MessageSizeTooLargeError):
            self.too_large = True
        elif isinstance(error, NOT_WRITTEN):
            return LogUnavailable(f"{text}; nothing was appended")
        return OutcomeUnknown(f"{text}; the outcome is unknown: read before writing again")

    def _settle(self) -> None:
        """Wait a little for writes in doubt; nothing may overtake them. Then have a producer that works."""
        self.too_large = False
        deadline = time.monotonic() + DOUBT_SECONDS
        while self._doubtful:
            if any(future.is_done and future.failed() for future in self._doubtful):
                self._replace()
            self._doubtful = [future for future in self._doubtful if not future.is_done]
            if self._doubtful and time.monotonic() > deadline:
                raise LogUnavailable(
                    f"{where(self._place)} has {len(self._doubtful)} earlier writes unanswered; "
                    "nothing was appended by this one. It will go through once the broker answers"
                )
            if self._doubtful:
                time.sleep(0.01)
        self._transactions.settle(self._limit())
        if self._producer is None:
            try:
                self._producer = open_producer(self._place, self._session, self._limit())
            except InvalidConfig as error:
                raise LogUnavailable(f"nothing was appended: {error}") from error

    def _replace(self) -> None:
        self._broken = False
        if self._producer is not None:
            self._closing.add(self._producer)
            self._producer = None
