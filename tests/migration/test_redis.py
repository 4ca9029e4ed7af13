"""What RedisStore holds moves over whole, though it lists ten namespaces and no more."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from langgraph.store.base import PutOp

from eventstore.errors import InvalidConfig
from projector.transfer import migrate, open_source
from tests.conftest import OpenStore
from tests.migration.test_postgres import namespace_of, told

MANY = 12_000


@pytest.fixture
def source(redis: str) -> Iterator[str]:
    """The address of an empty RedisStore."""
    server: Any = importlib.import_module("redis").Redis.from_url(redis)
    server.flushall()
    server.execute_command("FT.CONFIG", "SET", "MAXSEARCHRESULTS", 1_000_000)
    with store_at(redis) as store:
        store.setup()
    yield redis
    server.flushall()
    server.close()


def store_at(address: str) -> Any:
    # Named here and not imported: it is there only where its package is.
    return importlib.import_module("langgraph.store.redis").RedisStore.from_conn_string(address)


def test_every_one_of_many_memories_comes_over(source: str, open_store: OpenStore) -> None:
    with store_at(source) as store:
        for first in range(0, MANY, 500):
            numbers = range(first, first + 500)
            store.batch([PutOp(namespace_of(n), f"k{n}", {"t": f"text {n}", "n": n}) for n in numbers])
    ours = open_store()
    with open_source(source) as theirs:
        expected = told(theirs)
        done = migrate(theirs, ours)
        again = migrate(theirs, ours)
    assert len(expected) == MANY and told(ours) == expected
    assert (done.read, done.written) == (MANY, MANY)
    assert (again.read, again.written, again.present) == (MANY, 0, MANY)


def test_a_user_is_not_mixed_up_with_another(source: str, open_store: OpenStore) -> None:
    """This store finds ("user", "10") under ("user", "1")."""
    values: list[dict[str, Any]] = [{"n": [1, None, True]}, {"é": "🙂"}, {}, {"deep": {"": {"x": 0.5}}}]
    with store_at(source) as store:
        for number in (1, 10, 100):
            for at, value in enumerate(values):
                store.put(("user", str(number)), f"k{at}", value)
        store.put(("user", "1"), "brief", {"n": 1}, ttl=60)
    ours, part = open_store(), open_store(sub="part")
    with open_source(source) as theirs:
        migrate(theirs, ours)
        migrate(theirs, part, prefix=("user", "1"))
        assert told(ours) == told(theirs)
    expected = {(("user", "1"), f"k{at}"): value for at, value in enumerate(values)}
    assert told(part) == expected | {(("user", "1"), "brief"): {"n": 1}}


def test_a_server_that_lists_only_so_many(source: str, open_store: OpenStore) -> None:
    """As Redis Stack does as it comes: 10,000."""
    server: Any = importlib.import_module("redis").Redis.from_url(source)
    with store_at(source) as store:
        store.batch([PutOp((f"org{n % 3}",), f"k{n}", {"n": n}) for n in range(300)])
    ours = open_store()
    with closing(server), open_source(source) as theirs:
        expected = told(theirs)
        server.execute_command("FT.CONFIG", "SET", "MAXSEARCHRESULTS", 200)
        with pytest.raises(InvalidConfig, match=r"lists no more than 200 memories .* MAXSEARCHRESULTS"):
            migrate(theirs, ours)
        for number in range(3):
            migrate(theirs, ours, prefix=(f"org{number}",))
    assert told(ours) == expected
