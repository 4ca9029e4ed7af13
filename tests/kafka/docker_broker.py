"""Apache Kafka in a container of its official image, where a Docker engine answers."""

from __future__ import annotations

import base64
import gc
import uuid
import warnings
from collections.abc import Mapping
from contextlib import closing
from functools import cache

import docker
from docker.errors import DockerException
from testcontainers.core.container import DockerContainer
from testcontainers.core.docker_client import DockerClient

from tests.kafka.broker import STOP_SECONDS, Broker, BrokerUnavailable, Login, server_properties
from tests.kafka.jar_broker import kafka_version

CONTROLLER_PORT = 9093
DATA = "/var/lib/kafka/data"


class DockerBroker(Broker):
    """A broker in a container that testcontainers removes even when the test run is killed."""

    def __init__(self, properties: Mapping[str, str] | None = None, login: Login | None = None) -> None:
        super().__init__(properties, login)
        self.host = engine_host()
        self._image = f"apache/kafka:{kafka_version()}"
        self._container: DockerContainer | None = None

    @property
    def name(self) -> str:
        return f"{self._image} in Docker"

    def launch(self) -> None:
        """Starts the container; the first time it is made. Raises BrokerUnavailable if there is no image."""
        if self._container is not None:
            self._container.get_wrapped_container().start()
            return
        properties = server_properties(self, CONTROLLER_PORT, "0.0.0.0", DATA)
        container = DockerContainer(self._image)
        # The broker tells its clients its port, so it must be known before the container has one.
        container.with_bind_ports(self.port, self.port)
        container.with_envs(**{environment_name(key): value for key, value in properties.items()})
        container.with_envs(CLUSTER_ID="A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22])
        container.with_envs(KAFKA_HEAP_OPTS="-Xms64m -Xmx256m")
        try:
            container.start()
        except DockerException as error:
            raise BrokerUnavailable(f"Docker cannot run {self._image}: {error}") from error
        self._container = container

    def stop(self) -> None:
        if self._container is not None:
            self.resume()
            self._container.get_wrapped_container().stop(timeout=int(STOP_SECONDS))

    def kill(self) -> None:
        if self._container is not None and self.alive():
            self.resume()
            self._container.get_wrapped_container().kill()

    def pause(self) -> None:
        if self._container is not None and self._status() == "running":
            self._container.get_wrapped_container().pause()

    def resume(self) -> None:
        if self._container is not None and self._status() == "paused":
            self._container.get_wrapped_container().unpause()

    def alive(self) -> bool:
        return self._status() in ("running", "paused")

    def log_tail(self, lines: int = 30) -> str:
        if self._container is None:
            return ""
        logged: bytes = self._container.get_wrapped_container().logs(tail=lines)
        return logged.decode(errors="replace")

    def close(self) -> None:
        if self._container is not None:
            self._container.stop()
            self._container = None

    def _status(self) -> str:
        if self._container is None:
            return "none"
        container = self._container.get_wrapped_container()
        container.reload()
        return str(container.status)


@cache
def engine_host() -> str:
    """Where the ports of containers are reached. Raises BrokerUnavailable if no engine answers."""
    # A client that reaches no engine leaves its socket open, which would fail some later test.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        answers = _engine_answers()
        gc.collect()
    if not answers:
        raise BrokerUnavailable("no Docker engine answers")
    host = DockerClient().host()
    return "127.0.0.1" if host == "localhost" else host


def _engine_answers() -> bool:
    try:
        with closing(docker.from_env(timeout=5)) as engine:
            return bool(engine.ping())
    except DockerException:
        return False


def environment_name(server_property: str) -> str:
    """The variable by which the image takes a server property."""
    return "KAFKA_" + server_property.replace("_", "__").replace("-", "___").replace(".", "_").upper()
