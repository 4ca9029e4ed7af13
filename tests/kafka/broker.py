"""A real Apache Kafka broker that a test can start, stop, kill and pause.

This file has what every kind of broker shares, and the kind that is only an address. How one is run
from jars or in a container is in `jar_broker` and `docker_broker`; which kind a test session gets,
and what happens when none can be had, is in `plugin`.
"""

from __future__ import annotations

import contextlib
import random
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import kafka

KAFKA_VERSION = "4.1.1"
START_SECONDS = 60.0
STOP_SECONDS = 30.0


class Login(NamedTuple):
    """A user that a broker with SASL/PLAIN lets in."""

    user: str
    password: str


class BrokerUnavailable(RuntimeError):
    """This kind of broker cannot be had on this machine. The message says why."""


class BrokerFailed(RuntimeError):
    """A broker was started and did not come up. The message ends with the end of its log."""


class Broker(ABC):
    """One broker with data and a port of its own; both outlive `stop` and `kill`, and go with `close`.

    ``properties`` are Kafka's own server properties and win over those set here. With ``login`` the
    broker asks for SASL/PLAIN; without, it lets everyone in.
    """

    stoppable: ClassVar[bool] = True

    def __init__(self, properties: Mapping[str, str] | None = None, login: Login | None = None) -> None:
        self.properties = dict(properties or {})
        self.login = login
        self.host = "127.0.0.1"
        self.port = free_port()
        self.started_in = 0.0

    @property
    @abstractmethod
    def name(self) -> str:
        """Which Kafka this is and where it comes from, for people."""

    @property
    def address(self) -> str:
        """What a client takes as its bootstrap server."""
        return f"{self.host}:{self.port}"

    @property
    def client(self) -> dict[str, Any]:
        """Settings with which any client of kafka-python gets in."""
        settings: dict[str, Any] = {"bootstrap_servers": self.address}
        if self.login is not None:
            settings |= {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": self.login.user,
                "sasl_plain_password": self.login.password,
            }
        return settings

    def start(self) -> Self:
        """Starts the broker, or starts it again with its data, and waits for it.

        Raises BrokerFailed or, where this kind cannot be had, BrokerUnavailable; nothing is left then.
        """
        began = time.monotonic()
        try:
            self.launch()
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        self.started_in = time.monotonic() - began
        return self

    def restart(self) -> Self:
        """Stops the broker cleanly and starts it again, with the same data and port."""
        self.stop()
        return self.start()

    @abstractmethod
    def launch(self) -> None:
        """Starts the broker without waiting for it."""

    @abstractmethod
    def stop(self) -> None:
        """Shuts the broker down cleanly, as an operator would."""

    @abstractmethod
    def kill(self) -> None:
        """Ends the broker at once: SIGKILL, no shutdown."""

    @abstractmethod
    def pause(self) -> None:
        """Freezes the broker: connections stay open, nothing is answered."""

    @abstractmethod
    def resume(self) -> None:
        """Undoes `pause`."""

    @abstractmethod
    def alive(self) -> bool:
        """Whether its process is there, answering or not."""

    @abstractmethod
    def log_tail(self, lines: int = 30) -> str:
        """The end of what the broker has logged."""

    @abstractmethod
    def close(self) -> None:
        """Ends the broker, whatever state it is in, and removes its data."""

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        """Waits until the broker answers a client. Raises BrokerFailed."""
        deadline = time.monotonic() + seconds
        # A client constructed too early leaves its thread behind, so the port is tried first.
        while not is_listening(self.host, self.port):
            if not self.alive():
                raise BrokerFailed(f"{self.name} ended while it was starting.\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{self.name} does not listen after {seconds:.0f} s.\n{self.log_tail()}")
            time.sleep(0.02)
        left = max(1.0, deadline - time.monotonic())
        try:
            admin = kafka.KafkaAdminClient(**self.client, bootstrap_timeout_ms=int(left * 1000))
        except Exception as error:
            raise BrokerFailed(
                f"{self.name} listens but does not answer: {error}\n{self.log_tail()}"
            ) from error
        try:
            while not admin.describe_cluster()["brokers"]:
                if time.monotonic() > deadline:
                    raise BrokerFailed(
                        f"{self.name} joined no cluster in {seconds:.0f} s.\n{self.log_tail()}"
                    )
                time.sleep(0.02)
        finally:
            admin.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class GivenBroker(Broker):
    """A broker that somebody else runs, at an address. It can be used, and nothing else."""

    stoppable = False

    def __init__(self, address: str) -> None:
        super().__init__()
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise BrokerFailed(f"EVENTSTORE_TEST_KAFKA is {address!r}; it must be host:port")
        self.host, self.port = host, int(port)

    @property
    def name(self) -> str:
        return "the broker that EVENTSTORE_TEST_KAFKA names"

    def launch(self) -> None:
        """It runs already, or `start` says that it does not answer."""

    def wait_until_ready(self, seconds: float = 10.0) -> None:
        super().wait_until_ready(seconds)

    def stop(self) -> None:
        raise BrokerUnavailable(f"{self.name} is not ours to stop")

    def kill(self) -> None:
        """Nothing of ours runs."""

    def pause(self) -> None:
        raise BrokerUnavailable(f"{self.name} is not ours to pause")

    def resume(self) -> None:
        raise BrokerUnavailable(f"{self.name} is not ours to resume")

    def alive(self) -> bool:
        return True

    def log_tail(self, lines: int = 30) -> str:
        return "(its log is where it runs)"

    def close(self) -> None:
        """It stays as it is."""


def server_properties(broker: Broker, controller_port: int, bind: str, data: str) -> dict[str, str]:
    """The server properties of one broker that is its own controller, small enough for tests."""
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CLIENT://{bind}:{broker.port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"CLIENT://{broker.address}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "log.dirs": data,
        # A misspelt topic must fail a test, not appear.
        "auto.create.topics.enable": "false",
        "num.network.threads": "2",
        "num.io.threads": "2",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": "2097152",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker is let back in once its old session has run out: 9 s if this were not set.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        # A writer that died within a transaction holds up readers until it times out and this has passed.
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    if broker.login is not None:
        user, password = broker.login
        properties |= {
            "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.client.plain.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'username="{user}" password="{password}" user_{user}="{password}";'
            ),
        }
    return properties | broker.properties


def free_port() -> int:
    """A free port of 127.0.0.1 that nothing will be given by chance while a broker is down.

    The range that systems hand out to connecting clients is avoided: a client that keeps connecting
    to a port of that range where nobody listens can end up connected to itself, and keep it taken.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def is_listening(host: str, port: int) -> bool:
    """Whether a connection to ``host:port`` is accepted."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def tail_of(path: Path, lines: int) -> str:
    """The last lines of a text file."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""
