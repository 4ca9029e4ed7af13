"""Gives tests a real Kafka broker, and says at the end which one it was or what was not run without it.

A pytest plugin: ``pytest_plugins = ["tests.kafka.plugin"]`` in the top conftest. In this order a
session takes the broker at EVENTSTORE_TEST_KAFKA (host:port), one in Docker, one from Kafka's jars.
Where none can be had, tests that need one are skipped; EVENTSTORE_REQUIRE_KAFKA=1 makes them fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.kafka.broker import Broker, BrokerUnavailable, GivenBroker, Login
from tests.kafka.docker_broker import DockerBroker
from tests.kafka.jar_broker import JarBroker

NewBroker = Callable[..., Broker]
NO_BROKER = "no Kafka broker"
NOT_OURS = "needs a Kafka broker that it may stop"
HOW_TO = (
    "To run them, any one of these will do:\n"
    "  - a Docker engine that this user may use;\n"
    "  - Java 17 or newer and Maven (Debian, Ubuntu: apt-get install default-jre-headless maven);\n"
    "  - a broker of yours that holds nothing of value: EVENTSTORE_TEST_KAFKA=host:port.\n"
    "EVENTSTORE_REQUIRE_KAFKA=1 makes them fail instead. More in docs/kafka.md."
)
TOOK = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The broker that all tests of the session share. Leave it running; use topics of your own."""
    broker = _take_broker()
    request.config.stash[TOOK] = f"{broker.name}, at {broker.address}, up in {broker.started_in:.1f} s"
    yield broker
    if broker.stoppable:
        broker.stop()
    broker.close()


@pytest.fixture
def new_kafka_broker(kafka_broker: Broker) -> Iterator[NewBroker]:
    """Starts brokers that belong to the test alone, to be stopped, killed and paused as it likes.

    ``new_kafka_broker(properties={"message.max.bytes": "2000"}, login=Login("ann", "secret"))``;
    with ``running=False`` the broker has its address and is not started.
    """
    if not kafka_broker.stoppable:
        pytest.skip(NOT_OURS)
    made: list[Broker] = []

    def new(
        properties: Mapping[str, str] | None = None, login: Login | None = None, running: bool = True
    ) -> Broker:
        broker = type(kafka_broker)(properties, login)
        made.append(broker)
        return broker.start() if running else broker

    yield new
    for broker in made:
        broker.close()


def _take_broker() -> Broker:
    """A running broker of the first kind that can be had; without one, skips or fails the test."""
    address = os.environ.get("EVENTSTORE_TEST_KAFKA")
    if address:
        return GivenBroker(address).start()
    missing: list[str] = []
    for kind in (DockerBroker, JarBroker):
        try:
            return kind().start()
        except BrokerUnavailable as unavailable:
            missing.append(str(unavailable))
    reason = f"{NO_BROKER}: {'; '.join(missing)}"
    if os.environ.get("EVENTSTORE_REQUIRE_KAFKA", "0") not in ("", "0"):
        pytest.fail(f"{reason}. EVENTSTORE_REQUIRE_KAFKA asks for one.\n{HOW_TO}", pytrace=False)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Names the broker, or counts what was not run for lack of one."""
    reasons = [
        str(report.longrepr[2])
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    ]
    unrun = [reason for reason in reasons if NO_BROKER in reason]
    if TOOK in config.stash or unrun:
        terminalreporter.section("Kafka")
    if TOOK in config.stash:
        terminalreporter.line(f"Used {config.stash[TOOK]}.")
    if refused := sum(NOT_OURS in reason for reason in reasons):
        terminalreporter.line(f"{refused} tests were not run: each {NOT_OURS}.")
    if unrun:
        terminalreporter.line(f"{len(unrun)} tests were not run: {unrun[0].partition(': ')[2]}.")
        terminalreporter.line(HOW_TO)
