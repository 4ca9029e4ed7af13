"""Producing: acknowledged by all in-sync replicas, in order, within a deadline.

kafka-python's idempotent producer must not run into its own delivery timeout: it then never
sends again. So that timeout is a day, and the deadline is ours. A record whose deadline passed
may still land; until that is known nothing more is sent, so that no later write of this
process can overtake it.

A batch of several records is one transaction, of a producer of its own.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RetriableError,
)

from eventstore.connection import KafkaPlace, where
from eventstore.errors import LogError, LogUnavailable, OutcomeUnknown
from eventstore.log.kafka.client import common, unreachable
from eventstore.log.kafka.stamps import Outgoing

log = logging.getLogger("eventstore.log.kafka")

DAY_MS = 86_400_000
DOUBT_SECONDS = 1.0
"""How long a write waits for earlier ones whose outcome is not known yet."""
BATCH_BYTES = 256 * 1024


class Ack(NamedTuple):
    """Where a record was written."""

    offset: int
    timestamp_ms: int


class Writer:
    """The producers of one log. Calls are serialised by the log."""

    def __init__(self, place: KafkaPlace, session: bytes, max_record_bytes: int) -> None:
        """Raises ``LogUnavailable`` when the cluster does not answer."""
        self._place = place
        self._session = session.hex()
        self._max_record_bytes = max_record_bytes
        self._doubtful: list[Any] = []
        self._transactional: KafkaProducer | None = None
        self._producer = self._open()

    def send(self, outgoing: Sequence[Outgoing]) -> list[Ack | LogError]:
        """Write records each on its own. Raises ``LogUnavailable`` when none was sent."""
        self._settle()
        deadline = time.monotonic() + self._place.options.put_timeout
        sent: list[Any] = []
        for out in outgoing:
            try:
                sent.append(self._produce(self._producer, out))
            except KafkaTimeoutError as error:
                sent.append(
                    LogUnavailable(f"{where(self._place)} did not answer: {error}; nothing was appended")
                )
            except (KafkaError, ValueError, TypeError) as error:
                sent.append(self._refused(error))
        acks: list[Ack | LogError] = []
        broken = False
        for future in sent:
            if isinstance(future, LogError):
                acks.append(future)
                continue
            ack = self._await(future, deadline)
            broken = broken or (isinstance(ack, LogError) and future.is_done)
            acks.append(ack)
        if broken:
            # After an answer that no retry changes, this client fails every later record alike.
            self._replace()
        return acks

    def send_atomically(self, outgoing: Sequence[Outgoing]) -> list[Ack]:
        """Write records all together or not at all.

        Raises ``LogUnavailable`` when nothing was written, ``OutcomeUnknown`` when that cannot be told.
        """
        self._settle()
        timeout = self._place.options.put_timeout
        committing = threading.Event()
        try:
            return _bounded(lambda: self._transact(outgoing, committing), 2 * timeout)
        except (KafkaError, TimeoutError) as error:
            self._drop_transactional()
            if committing.is_set():
                raise OutcomeUnknown(
                    f"{where(self._place)} did not say whether a batch of {len(outgoing)} was committed "
                    f"({type(error).__name__}); read before writing again"
                ) from error
            raise LogUnavailable(
                f"a batch of {len(outgoing)} could not be written to {where(self._place)} "
                f"({type(error).__name__}: {error}); nothing was appended"
            ) from error

    def close(self) -> None:
        """Close the producers, within seconds."""
        self._drop_transactional()
        _close(self._producer)

    # ------------------------------------------------------------------ one record each

    def _open(self, transactional_id: str | None = None) -> KafkaProducer:
        chosen = self._place.options
        settings = common(self._place) | {
            "client_id": f"eventstore-{self._session[:8]}",
            "acks": "all",
            "metrics_enabled": False,
            "enable_idempotence": True,
            "linger_ms": 0,
            "batch_size": BATCH_BYTES,
            "max_request_size": self._max_record_bytes + BATCH_BYTES,
            "compression_type": chosen.compression,
            "delivery_timeout_ms": DAY_MS,
            "max_block_ms": round(chosen.put_timeout * 1000),
            "allow_auto_create_topics": False,
            "metadata_max_age_ms": 60_000,
        }
        if transactional_id is not None:
            settings |= {
                "transactional_id": transactional_id,
                "transaction_timeout_ms": max(10_000, round(2_000 * chosen.put_timeout)),
            }
        try:
            producer = KafkaProducer(**settings)
            # The first send would otherwise wait a back-off for the topic's metadata.
            producer.partitions_for(self._place.topic)
        except KafkaError as error:
            raise unreachable(self._place, error) from error
        return producer

    def _produce(self, producer: KafkaProducer, out: Outgoing) -> Any:
        return producer.send(
            self._place.topic,
            key=out.record.key,
            value=out.record.value,
            headers=out.headers,
            partition=out.partition,
        )

    def _await(self, future: Any, deadline: float) -> Ack | LogError:
        try:
            made = future.get(timeout=max(0.001, deadline - time.monotonic()))
        except KafkaTimeoutError as error:
            if future.is_done:
                return OutcomeUnknown(f"{where(self._place)} gave up on a write: {error}")
            self._doubtful.append(future)
            return OutcomeUnknown(
                f"{where(self._place)} did not acknowledge a write within "
                f"{self._place.options.put_timeout} s; it may or may not be in the log, "
                "and may still land once. Read before writing again"
            )
        except KafkaError as error:
            return self._refused(error)
        return Ack(made.offset, made.timestamp)

    def _refused(self, error: Exception) -> LogError:
        if isinstance(error, MessageSizeTooLargeError):
            return LogUnavailable(
                f"{where(self._place)} refused a record as too large, below the {self._max_record_bytes} B "
                "it took when it was opened; nothing was appended. Open again to learn its limit anew"
            )
        if isinstance(error, RetriableError):
            return OutcomeUnknown(
                f"{where(self._place)}: {type(error).__name__}: {error}; read before writing again"
            )
        return LogUnavailable(f"{where(self._place)} refused: {type(error).__name__}: {error}")

    def _settle(self) -> None:
        """Wait a little for writes in doubt; nothing may overtake them."""
        deadline = time.monotonic() + DOUBT_SECONDS
        while self._doubtful:
            self._doubtful = [future for future in self._doubtful if not future.is_done]
            if self._doubtful and time.monotonic() > deadline:
                raise LogUnavailable(
                    f"{where(self._place)} has {len(self._doubtful)} earlier writes unanswered; "
                    "nothing was appended by this one. It will go through once the broker answers"
                )
            if self._doubtful:
                time.sleep(0.01)

    def _replace(self) -> None:
        broken = self._producer
        threading.Thread(target=_close, args=(broken,), name="eventstore-kafka-close", daemon=True).start()
        self._producer = self._open()

    # ------------------------------------------------------------------ transactions

    def _transact(self, outgoing: Sequence[Outgoing], committing: threading.Event) -> list[Ack]:
        if self._transactional is None:
            # The same id each time: initialising it ends what a lost producer left open.
            producer = self._open(f"eventstore-{self._session}")
            producer.init_transactions()
            self._transactional = producer
        producer = self._transactional
        producer.begin_transaction()
        try:
            futures = [self._produce(producer, out) for out in outgoing]
            made = [future.get(timeout=self._place.options.put_timeout) for future in futures]
        except BaseException:
            with contextlib.suppress(KafkaError):
                producer.abort_transaction()
            raise
        committing.set()
        producer.commit_transaction()
        return [Ack(each.offset, each.timestamp) for each in made]

    def _drop_transactional(self) -> None:
        dropped, self._transactional = self._transactional, None
        if dropped is not None:
            threading.Thread(
                target=_close, args=(dropped,), name="eventstore-kafka-close", daemon=True
            ).start()


def _bounded(work: Callable[[], list[Ack]], seconds: float) -> list[Ack]:
    """Run what has no timeout of its own in a thread, and stop waiting for it after a while."""
    result: Future[list[Ack]] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name="eventstore-kafka-transaction", daemon=True).start()
    return result.result(timeout=seconds)


def _close(producer: KafkaProducer) -> None:
    """Close a producer that may have undelivered records: a plain close would leave its thread."""
    try:
        producer.close(timeout=2)
    except (KafkaError, AssertionError):
        with contextlib.suppress(Exception):
            producer._sender.force_close()
            producer.close(timeout=1)
        log.warning("a Kafka producer was closed with records it could not deliver")
