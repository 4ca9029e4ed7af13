"""What a connection string means, and what it takes to reach a Kafka cluster.

Secrets come from the connection string, a config object or the environment, are kept in types
that print as stars, and appear in no message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, FilePath, SecretStr, ValidationError, model_validator

from eventstore.errors import InvalidConfig, InvalidType

ENVIRONMENT: Final = "EVENTSTORE_KAFKA_"
"""Prefix of environment variables that give Kafka options, such as ``EVENTSTORE_KAFKA_PASSWORD``."""
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,200}")


class KafkaOptions(BaseModel):
    """How a topic is reached and made. Times are seconds, sizes bytes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    username: str | None = None
    password: SecretStr | None = None
    ssl_cafile: FilePath | None = None
    ssl_certfile: FilePath | None = None
    ssl_keyfile: FilePath | None = None
    ssl_password: SecretStr | None = None
    ssl_check_hostname: bool = True
    create: bool = True
    """Whether a topic that is missing is made."""
    partitions: int = Field(default=6, ge=1, le=10_000)
    """Of a topic that is made; an existing one keeps what it has."""
    replication_factor: int | None = Field(default=None, ge=1)
    """Of a topic that is made; default: what the broker has set."""
    min_insync_replicas: int | None = Field(default=None, ge=1)
    max_record_bytes: int = Field(default=8 * 1024 * 1024, ge=64 * 1024)
    """Of a topic that is made, as its ``max.message.bytes``; an existing one keeps its own."""
    compression: Literal["gzip", "lz4", "zstd", "snappy"] | None = None
    connect_timeout: float = Field(default=10.0, gt=0)
    put_timeout: float = Field(default=10.0, gt=0)
    """How long a write waits for its acknowledgement before its outcome is unknown."""
    metadata_max_age: float = Field(default=60.0, gt=0)
    """Seconds between looks whether the topic is still the one that was opened."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.security_protocol.startswith("SASL"):
            if self.username is None or self.password is None:
                raise ValueError(f"{self.security_protocol} needs a username and a password")
        elif self.username is not None or self.password is not None:
            raise ValueError(
                f"a username and password have no use with {self.security_protocol}; name a SASL one"
            )
        return self


class KafkaPlace(BaseModel):
    """A topic of a cluster."""

    model_config = ConfigDict(frozen=True)

    servers: tuple[str, ...]
    topic: str
    options: KafkaOptions


class FolderPlace(BaseModel):
    """The folder of an embedded log; ``None`` for a temporary one that ends with the store."""

    model_config = ConfigDict(frozen=True)

    directory: Path | None


def parse(conn_string: object, kafka: KafkaOptions | None = None) -> FolderPlace | KafkaPlace:
    """What a connection string names: a path, a ``file:`` URL, ``memory:``, or ``kafka://…/topic``.

    Kafka options in the string go before ``kafka``, which goes before the environment. Raises
    ``InvalidConfig`` or ``InvalidType``; no message repeats a password.
    """
    if isinstance(conn_string, Path):
        return FolderPlace(directory=conn_string)
    if not isinstance(conn_string, str):
        raise InvalidType(f"a connection string is a str or Path, not {type(conn_string).__name__}")
    if conn_string in ("memory:", ":memory:"):
        return FolderPlace(directory=None)
    if not conn_string or "\x00" in conn_string:
        raise InvalidConfig(
            "the connection string is empty or holds a NUL; give a folder, such as './memory'"
        )
    if conn_string.startswith("file:"):
        return FolderPlace(directory=_file(conn_string))
    scheme, separator, _ = conn_string.partition("://")
    if not separator:
        return FolderPlace(directory=Path(conn_string))
    if scheme != "kafka":
        raise InvalidConfig(
            f"connection strings beginning with {scheme + '://'!r} are not known; "
            "a folder, a file: URL, memory: and kafka://host:port/topic are"
        )
    return _kafka(conn_string, kafka)


def where(place: KafkaPlace) -> str:
    """A topic's address, for messages; no secret in it."""
    return f"kafka://{','.join(place.servers)}/{place.topic}"


def _file(conn_string: str) -> Path:
    url = urlsplit(conn_string)
    if url.netloc not in ("", "localhost"):
        raise InvalidConfig(f"file: URLs name local folders; host {url.netloc!r} is not this machine")
    if not url.path:
        raise InvalidConfig("the file: URL has no path; write file:./memory or file:///var/lib/memory")
    return Path(unquote(url.path))


def _kafka(conn_string: str, given: KafkaOptions | None) -> KafkaPlace:
    url = urlsplit(conn_string)
    who, _, hosts = url.netloc.rpartition("@")
    servers = tuple(host if ":" in host else f"{host}:9092" for host in hosts.split(",") if host)
    topic = unquote(url.path.strip("/"))
    # A password whose '/', '?' or '#' is not written as %2F, %3F or %23 ends up among these parts.
    secret = "@" in conn_string
    hint = " (in a user or password, write '/', '?', '#', '@' and ':' as %2F and so on)" if secret else ""
    if not servers:
        raise InvalidConfig(f"the kafka:// string names no broker; write kafka://host:9092/topic{hint}")
    for server in servers:
        if not server.rpartition(":")[2].isdigit():
            shown = "a broker's address" if secret else repr(server)
            raise InvalidConfig(f"{shown} is no host:port; write kafka://host:9092/topic{hint}")
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        shown = "what follows the brokers" if secret else repr(topic)
        raise InvalidConfig(
            f"{shown} is no topic name: letters, digits, '.', '_' and '-', at most 200; "
            f"kafka://host:9092/topic{hint}"
        )
    return KafkaPlace(servers=servers, topic=topic, options=_options(url, who, given))


def _options(url: SplitResult, who: str, given: KafkaOptions | None) -> KafkaOptions:
    fields: dict[str, Any] = {
        name.removeprefix(ENVIRONMENT).lower(): value
        for name, value in os.environ.items()
        if name.startswith(ENVIRONMENT)
    }
    if given is not None:
        fields |= given.model_dump(exclude_unset=True)
    fields |= dict(parse_qsl(url.query, keep_blank_values=True))
    if who:
        user, _, password = who.partition(":")
        fields |= {"username": unquote(user), "password": unquote(password)}
    return options(fields)


def options(fields: Mapping[str, Any]) -> KafkaOptions:
    """Kafka options from their fields. Raises ``InvalidConfig`` naming the one that is wrong."""
    if not isinstance(fields, Mapping):
        raise InvalidType(f"kafka takes KafkaOptions or a mapping, not {type(fields).__name__}")
    try:
        return KafkaOptions(**fields)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        name = ".".join(str(part) for part in first["loc"]) or "kafka options"
        raise InvalidConfig(
            f"{name}: {first['msg']}; known options are {', '.join(KafkaOptions.model_fields)}"
        ) from None
