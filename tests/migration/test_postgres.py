"""What PostgresStore holds moves over whole, through its real server, also after a kill."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import run
from typing import Any

import psycopg
import pytest
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.postgres import PostgresStore

from eventstore import EventStore
from eventstore.errors import InvalidConfig
from projector.cli import main
from projector.transfer import migrate, open_source
from tests.conftest import OpenStore
from tests.scenarios.kit import ROOT, TinyEmbedder, index_of, log_end

MANY = 12_000


@pytest.fixture
def source(postgres: str) -> Iterator[str]:
    """The address of an empty PostgresStore."""
    drop = "drop table if exists store, store_migrations, store_vectors, vector_migrations cascade"
    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute(drop)
        with PostgresStore.from_conn_string(postgres) as store:
            store.setup()
        yield postgres
        database.execute(drop)


def told(store: BaseStore) -> dict[tuple[tuple[str, ...], str], dict[str, Any]]:
    return {(item.namespace, item.key): item.value for item in store.search((), limit=10**6)}


def fill(source: str, count: int, of_one_time: int = 5_000) -> None:
    """Memories in namespaces of any depth; each batch has one time, so pages cannot be told apart by it."""
    with PostgresStore.from_conn_string(source) as store:
        for first in range(0, count, of_one_time):
            numbers = range(first, min(first + of_one_time, count))
            store.batch([PutOp(namespace_of(n), f"k{n}", {"t": f"text {n % 17}", "n": n}) for n in numbers])


def namespace_of(number: int) -> tuple[str, ...]:
    return (f"org{number % 3}", f"u{number % 7}", *["deep"] * (number % 4))


def test_every_one_of_many_memories_comes_over(source: str, open_store: OpenStore) -> None:
    fill(source, MANY)
    store = open_store()
    with open_source(source) as theirs:
        expected = told(theirs)
        done = migrate(theirs, store)
        again = migrate(theirs, store)
    assert len(expected) == MANY and told(store) == expected
    assert (done.read, done.written, done.present) == (MANY, MANY, 0)
    assert (again.read, again.written, again.present) == (MANY, 0, MANY)


ODD: list[tuple[tuple[str, ...], str, dict[str, Any]]] = [
    (("a",), "above", {"t": "above others"}),
    (("a", "b", "c", "d", "e", "f"), "deep", {"t": "deep"}),
    (("ab",), "k", {"t": "a prefix as text, not as labels"}),
    (("a_b",), "k", {"t": "a wildcard of SQL"}),
    (("axb",), "k", {"t": "what it would match"}),
    (("a%", "b"), "k", {}),
    (("ü/b c",), "k\u2028/k'\"\\", {"é🙂": "\u2028 '\"\\"}),
    (("a",), "", {"key": "empty"}),
    (("a",), "n" * 900, {"key": "long"}),
    (("a",), "numbers", {"big": 2**63 - 1, "small": -(2**63), "float": 0.1, "tiny": 1e-300, "zero": 0.0}),
    (("a",), "nested", {"l": [{"a": [None, True, []]}], "o": {"": {"x": {}}}, "null": None}),
    (("a",), "large", {"text": "x" * 200_000}),
]


def test_odd_names_and_values_come_over_as_they_are(source: str, open_store: OpenStore) -> None:
    with PostgresStore.from_conn_string(source) as theirs:
        for namespace, key, value in ODD:
            theirs.put(namespace, key, value)
        theirs.put(("a",), "gone", {"n": 1})
        theirs.delete(("a",), "gone")
    store = open_store()
    with open_source(source) as theirs:
        expected = told(theirs)
        assert migrate(theirs, store).written == len(ODD)
        assert migrate(theirs, store).written == 0
    assert told(store) == expected
    assert {(namespace, key): value for namespace, key, value in ODD} == expected
    part = open_store(sub="part")
    with open_source(source) as theirs:
        migrate(theirs, part, prefix=("a_b",))
    assert told(part) == {(("a_b",), "k"): {"t": "a wildcard of SQL"}}


def test_order_and_times(source: str, open_store: OpenStore) -> None:
    """The order of updates is theirs from append to append; times are the target's own."""
    with PostgresStore.from_conn_string(source) as theirs:
        for number in range(450):
            theirs.put(("a",), f"k{number * 7919 % 450}", {"n": number})
    store = open_store()
    with open_source(source) as theirs:
        newest = {item.key: at for at, item in enumerate(theirs.search(("a",), limit=1000))}
        latest = theirs.search(("a",), limit=1)[0].updated_at
        migrate(theirs, store)
    ours = [newest[item.key] for item in store.search(("a",), limit=1000)]
    assert all(abs(at - other) < 200 for at, other in enumerate(ours)), "appends have 200 memories"
    versions = store.history(("a",), "k0")
    assert [(version.version, version.actor) for version in versions] == [(1, "migrate")]
    assert versions[0].updated_at > latest


def test_times_to_live(source: str, open_store: OpenStore) -> None:
    """A source tells neither them nor what has expired and was not swept; all get what is asked for."""
    with PostgresStore.from_conn_string(source, ttl={"default_ttl": 60}) as theirs:
        theirs.put(("a",), "brief", {"n": 1})
        theirs.put(("a",), "lasting", {"n": 2}, ttl=None)
        with psycopg.connect(source, autocommit=True) as database:
            database.execute("update store set expires_at = now() - interval '1 hour' where key = 'brief'")
        untouched = expiries(source)
        forever, hour = open_store(sub="forever"), open_store(sub="hour")
        with open_source(source) as by_name:
            migrate(by_name, forever)
            migrate(by_name, hour, ttl=60.0)
        assert expiries(source) == untouched, "reading refreshed nothing"
        theirs.sweep_ttl()
        swept = open_store(sub="swept")
        migrate(theirs, swept)
    assert [item.key for item in swept.search(("a",))] == ["lasting"]
    assert {item.key for item in forever.search(("a",))} == {"brief", "lasting"}
    assert [version.expires_at for version in forever.history(("a",), "brief")] == [None]
    left = hour.history(("a",), "brief")[0]
    assert left.expires_at is not None and (left.expires_at - left.updated_at).total_seconds() == 3600


def expiries(source: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(source, autocommit=True) as database:
        return database.execute("select key, expires_at, ttl_minutes from store order by key").fetchall()


KILLED = """
import os, signal, sys
from eventstore import EventStore
from projector.transfer import loading, migrate, open_source

flush, appends = loading.Loader.flush, []

def until(loader):
    flush(loader)
    appends.append(1)
    if len(appends) == 12:
        os.kill(os.getpid(), signal.SIGKILL)

loading.Loader.flush = until
with open_source(sys.argv[1]) as source, EventStore.open(sys.argv[2]) as store:
    migrate(source, store)
"""


def test_a_migration_that_is_killed_is_started_again(source: str, tmp_path: Path) -> None:
    fill(source, 6_000, of_one_time=3_000)
    target = tmp_path / "target"
    killed = run(
        [sys.executable, "-c", KILLED, source, str(target)], cwd=ROOT, capture_output=True, text=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert log_end(target) == 12 * 200
    with open_source(source) as theirs, EventStore.open(target) as store:
        done = migrate(theirs, store)
        assert (done.written, done.present) == (6_000 - 2_400, 2_400)
        assert migrate(theirs, store).written == 0
        assert told(store) == told(theirs)
        assert all(len(store.history(namespace_of(n), f"k{n}")) == 1 for n in range(0, 6_000, 97))


def test_texts_are_embedded_once_and_found(source: str, open_store: OpenStore) -> None:
    fill(source, 40)
    embedder = TinyEmbedder()
    store = open_store(index=index_of(embedder))
    with open_source(source) as theirs:
        assert migrate(theirs, store).embedded == 40
        asked = embedder.documents
        assert migrate(theirs, store).embedded == 0
    assert embedder.documents == asked
    assert store.search((), query="text 3", limit=1)[0].value["t"] == "text 3"


def test_a_source_that_changes_meanwhile(source: str, open_store: OpenStore) -> None:
    """What comes or goes while it is read is caught by the next run."""
    fill(source, 300)
    store = open_store()
    with PostgresStore.from_conn_string(source) as theirs:
        migrate(theirs, store)
        theirs.put(("org0", "u0"), "k0", {"n": "changed"})
        theirs.put(("new",), "k", {"n": "new"})
        done = migrate(theirs, store)
        assert (done.written, done.present) == (2, 299)
        assert told(store) == told(theirs)


def test_the_command(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(source, 30)
    monkeypatch.setattr(sys, "argv", ["eventstore", "migrate", source, str(tmp_path / "target"), "--json"])
    for written in (30, 0):
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        assert json.loads(capsys.readouterr().out)["written"] == written


def test_what_cannot_be_read_is_named_without_its_password(source: str) -> None:
    nowhere = "postgresql://me:s3cret@127.0.0.1:1/nothing"
    with pytest.raises(InvalidConfig, match="refused") as raised, open_source(nowhere):
        pass
    assert "127.0.0.1:1/nothing" in str(raised.value) and "s3cret" not in str(raised.value)
    with psycopg.connect(source, autocommit=True) as database:
        database.execute("drop table store cascade")
    with pytest.raises(InvalidConfig, match='"store" does not exist'), open_source(source):
        pass
