"""Settings that every client of one cluster shares, and what Kafka's errors mean to us."""

from __future__ import annotations

from typing import Any

from kafka.errors import KafkaConfigurationError, KafkaError, KafkaTimeoutError

from eventstore.connection import KafkaPlace, where
from eventstore.errors import InvalidConfig, LogUnavailable

FETCH_BYTES = 4 * 1024 * 1024


def common(place: KafkaPlace) -> dict[str, Any]:
    """Arguments for any kafka-python client of a place. Holds secrets: never printed."""
    chosen = place.options
    settings: dict[str, Any] = {
        "bootstrap_servers": list(place.servers),
        "security_protocol": chosen.security_protocol,
        "bootstrap_timeout_ms": _ms(chosen.connect_timeout),
        "request_timeout_ms": 10_000,
        "retry_backoff_ms": 20,
        "reconnect_backoff_ms": 50,
        "reconnect_backoff_max_ms": 200,
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


def unreachable(place: KafkaPlace, error: Exception) -> LogUnavailable | InvalidConfig:
    """A client that could not be made, or an answer that did not come."""
    if isinstance(error, KafkaConfigurationError):
        return InvalidConfig(f"the options for {where(place)} do not fit together: {error}")
    hint = "is the broker up and the address right?"
    if place.options.security_protocol.startswith("SASL") or isinstance(error, KafkaTimeoutError):
        # kafka-python reports refused credentials and a closed port alike: as a time-out.
        hint += (
            " A wrong security_protocol, user or password looks the same from here; see the 'kafka' logger"
        )
    return LogUnavailable(f"{where(place)} did not answer ({type(error).__name__}); {hint}")


def refused(place: KafkaPlace, error: KafkaError) -> InvalidConfig:
    """An answer that says no retry will help."""
    return InvalidConfig(f"{where(place)} refused: {type(error).__name__}: {error}")


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
