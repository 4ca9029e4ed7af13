"""Connecting to a cluster: settings that all clients share, and what Kafka's errors mean to us.

kafka-python tells a refused password, a wrong certificate and a closed port apart only in its
log: each is a time-out to its caller. A connection manager of ours keeps the reason, stops at
once where no retry will help, and leaves no thread behind when a client cannot be made.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from kafka.errors import (
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    KafkaConfigurationError,
    KafkaError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.record import util

from eventstore.connection import KafkaPlace, where
from eventstore.errors import InvalidConfig, LogUnavailable

log = logging.getLogger("eventstore.log.kafka")

FETCH_BYTES = 4 * 1024 * 1024
REFUSALS = (
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
)
"""What a broker says of a client that it will not say differently to the same client later."""
UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"


class _Sockets(KafkaNetSocket):  # type: ignore[misc]  # kafka-python has no types
    """Sockets that are closed when they do not connect; kafka-python's own wait for the collector."""

    SCHEMES = ("eventstore",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        net.sockets.add(sock)
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class _Loop(NetworkSelector):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's event loop, which leaves no socket open behind it.

    One that is connected while its client is closed belongs to nobody yet.
    """

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        self.sockets: WeakSet[socket.socket] = WeakSet()

    def close(self) -> None:
        super().close()
        for each in list(self.sockets):
            each.close()


class _Connections(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """kafka-python's connections, with the reason of the last failure."""

    failure: Exception | None = None

    def get_connection(self, *args: Any, **kwargs: Any) -> Any:
        if self.failure is not None and _is_final(self.failure) and not self.bootstrapped:
            raise self.failure
        made = super().get_connection(*args, **kwargs)
        made.init_future.add_errback(self._note)
        return made

    def bootstrap(self, timeout_ms: float | None = None, refresh: bool = True) -> None:
        """Bounded also where a server accepts a connection and never says a word."""
        future = self.bootstrap_async(timeout_ms, refresh)
        self._net.run(self.wait_for, future, None if timeout_ms is None else timeout_ms + 250)

    def _note(self, error: Exception) -> None:
        self.failure = error


def connect(kind: Any, place: KafkaPlace, **more: Any) -> Any:
    """A client of kafka-python for a place, within its ``connect_timeout``.

    Raises ``LogUnavailable`` when no broker answers, ``InvalidConfig`` when one refuses, or the
    options do not fit together.
    """
    made: list[KafkaNetClient] = []

    def client(**configs: Any) -> KafkaNetClient:
        net = _Loop(**configs)
        made.append(KafkaNetClient(net, _Connections(net, **configs)))
        return made[0]

    try:
        return kind(**{**_common(place), "kafka_client": client, **more})
    except Exception as error:
        reason = made[0]._manager.failure if made else None
        for half_made in made:
            with suppress(Exception):
                half_made.close()
        if isinstance(error, (KafkaError, ValueError, OSError, RuntimeError, AssertionError)):
            raise unreachable(place, error, reason) from error
        raise


def warn_of_slow_checksums() -> None:
    """Without its C extension the client computes checksums in Python: 15 times slower reads."""
    if util.crc32c_c is None:
        log.warning("Kafka's checksums are computed in Python, which is slow: pip install crc32c")


def unreachable(
    place: KafkaPlace, error: Exception, reason: Exception | None = None
) -> LogUnavailable | InvalidConfig:
    """A client that could not be made, or an answer that did not come; ``reason`` is what lies behind."""
    refusal = next((each for each in (error, reason) if each is not None and _is_final(each)), None)
    protocol = place.options.security_protocol
    if isinstance(refusal, SaslAuthenticationFailedError):
        return InvalidConfig(f"{where(place)} refused the username or the password: {refusal.args[-1]}")
    if isinstance(refusal, REFUSALS):
        return InvalidConfig(
            f"{where(place)} does not take part in security_protocol={protocol}, "
            f"sasl_mechanism={place.options.sasl_mechanism}: {type(refusal).__name__}: {refusal}"
        )
    if refusal is not None:
        return InvalidConfig(f"{where(place)} shows a certificate that ssl_cafile does not cover: {refusal}")
    if isinstance(error, KafkaConfigurationError) or not isinstance(error, KafkaError):
        return InvalidConfig(f"the options for {where(place)} cannot be used: {error}")
    why = type(error).__name__ if reason is None else f"{type(reason).__name__}: {reason}"
    # A broker that refuses a password may hang up before kafka-python has read why.
    also = " Are the username and the password right?" if protocol.startswith("SASL") else ""
    return LogUnavailable(
        f"{where(place)} did not answer ({why}); is the broker up, are address and security_protocol "
        f"right?{also}"
    )


def _is_final(error: Exception) -> bool:
    return isinstance(error, REFUSALS) or UNTRUSTED in str(error)


def ms(seconds: float) -> int:
    """Milliseconds, at least one."""
    return max(1, round(seconds * 1000))


def _common(place: KafkaPlace) -> dict[str, Any]:
    """Arguments for any kafka-python client of a place. Holds secrets: never printed."""
    chosen = place.options
    settings: dict[str, Any] = {
        "bootstrap_servers": list(place.servers),
        "proxy_url": f"{_Sockets.SCHEMES[0]}://",
        "security_protocol": chosen.security_protocol,
        "bootstrap_timeout_ms": ms(chosen.connect_timeout),
        "request_timeout_ms": 10_000,
        "retry_backoff_ms": 20,
        "reconnect_backoff_ms": 50,
        "reconnect_backoff_max_ms": 500,
        "metadata_max_age_ms": ms(chosen.metadata_max_age),
    }
    if chosen.password is not None:
        settings |= {
            "sasl_mechanism": chosen.sasl_mechanism or "PLAIN",
            "sasl_plain_username": chosen.username,
            "sasl_plain_password": chosen.password.get_secret_value(),
        }
    if chosen.security_protocol.endswith("SSL"):
        settings |= {
            "ssl_check_hostname": chosen.ssl_check_hostname,
            "ssl_cafile": None if chosen.ssl_cafile is None else str(chosen.ssl_cafile),
            "ssl_certfile": None if chosen.ssl_certfile is None else str(chosen.ssl_certfile),
            "ssl_keyfile": None if chosen.ssl_keyfile is None else str(chosen.ssl_keyfile),
            "ssl_password": None if chosen.ssl_password is None else chosen.ssl_password.get_secret_value(),
        }
    return settings
