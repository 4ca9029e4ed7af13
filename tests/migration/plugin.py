"""Gives tests the stores that people migrate from, and says at the end which could not be had.

A pytest plugin: named in ``pytest_plugins`` in the top conftest. PostgreSQL is the one at
EVENTSTORE_TEST_POSTGRES, or started from this machine's programs; Redis likewise. Tests that need
one that is not there are skipped; EVENTSTORE_REQUIRE_POSTGRES=1 makes the first kind fail.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack

import pytest

from tests.migration import servers
from tests.migration.servers import ServerUnavailable

MISSING = "no source to migrate from"
HOW_TO = (
    "To run them:\n"
    "  - PostgreSQL: its programs (Debian, Ubuntu: apt-get install postgresql), or a database that\n"
    "    holds nothing of value: EVENTSTORE_TEST_POSTGRES=postgresql://user@host/database;\n"
    "  - Redis: pip install langgraph-checkpoint-redis, and redis-stack-server on the PATH, or a Redis 8\n"
    "    that holds nothing of value: EVENTSTORE_TEST_REDIS=redis://host:port.\n"
    "EVENTSTORE_REQUIRE_POSTGRES=1 makes those of PostgreSQL fail instead."
)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection string of a PostgreSQL database whose tables belong to the tests."""
    with ExitStack() as stack:
        required = os.environ.get("EVENTSTORE_REQUIRE_POSTGRES", "0") not in ("", "0")
        yield _take(stack, servers.postgres, "langgraph.store.postgres", required)


@pytest.fixture(scope="session")
def redis() -> Iterator[str]:
    """The URL of a Redis that belongs to the tests."""
    with ExitStack() as stack:
        yield _take(stack, servers.redis, "langgraph.store.redis", False)


def _take(
    stack: ExitStack, start: Callable[[], AbstractContextManager[str]], module: str, required: bool
) -> str:
    try:
        if importlib.util.find_spec(module) is None:
            raise ServerUnavailable(f"{module} is not installed")
        return stack.enter_context(start())
    except ServerUnavailable as unavailable:
        if required:
            pytest.fail(f"{unavailable}.\n{HOW_TO}", pytrace=False)
        pytest.skip(f"{MISSING}: {unavailable}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Counts what was not run for lack of a source."""
    reasons = [
        str(report.longrepr[2])
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and MISSING in str(report.longrepr[2])
    ]
    if reasons:
        terminalreporter.section("Sources to migrate from")
        for reason in sorted(set(reasons)):
            terminalreporter.line(f"{reasons.count(reason)} tests were not run: {reason.partition(': ')[2]}.")
        terminalreporter.line(HOW_TO)
