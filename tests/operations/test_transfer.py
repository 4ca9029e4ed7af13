"""Memories out of a store and into another: nothing is lost, done twice, or asked again."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from eventstore import EventStore
from eventstore.errors import InvalidConfig, InvalidInput, InvalidType
from projector.digests import digest
from projector.transfer import export, import_, listing, loading, migrate, open_source
from tests.conftest import OpenStore
from tests.operations.samples import fill, sample
from tests.scenarios.kit import TinyEmbedder, index_of, ranked

QUERIES = ("text 3", "text 11")
ODD: dict[str, Any] = {
    "big": 2**90,
    "float": 1e-320,
    "text": "\u2028é\x00🙂",
    "nested": [{"a": [None, True]}],
}


def told(store: BaseStore) -> dict[tuple[tuple[str, ...], str], dict[str, Any]]:
    found = store.search((), limit=10**6)
    return {(item.namespace, item.key): item.value for item in found}


def order(store: BaseStore) -> list[tuple[tuple[str, ...], str]]:
    return [(item.namespace, item.key) for item in store.search((), limit=10**6)]


def test_out_and_in_again(open_store: OpenStore, tmp_path: Path) -> None:
    store = sample(open_store, 200)
    store.put(("odd", "ü b"), "k\u2028/k", ODD)
    out = export(store, tmp_path / "out.jsonl")
    assert (out.memories, out.lines) == (len(told(store)), len(told(store)))
    embedder = TinyEmbedder()
    other = open_store(index=index_of(embedder), sub="other")
    done = import_(other, tmp_path / "out.jsonl")
    assert (done.written, done.present, done.embedded) == (out.lines, 0, 0)
    assert done.reused > 0
    assert embedder.documents == 0, "the file had the vectors"
    assert told(other) == told(store)
    assert ranked(other, QUERIES) == ranked(store, QUERIES)
    assert other.history(("odd", "ü b"), "k\u2028/k")[0].actor == "import"
    end = other.status().end
    again = import_(other, tmp_path / "out.jsonl")
    assert (again.written, again.present, other.status().end) == (0, out.lines, end)


def test_the_order_of_updates_is_kept_from_append_to_append(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = sample(open_store, 60)
    export(store, tmp_path / "out.jsonl")
    monkeypatch.setattr(loading, "BATCH", 1)
    other = open_store(sub="other")
    import_(other, tmp_path / "out.jsonl")
    singles = [each for each in order(store) if not each[1].startswith("b")]
    assert [each for each in order(other) if not each[1].startswith("b")] == singles


def test_the_lines_say_what_a_memory_is(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(index=index_of(TinyEmbedder()))
    store.put(("a", "b"), "k", {"t": "one"}, ttl=10.0)
    store.put(("a", "b"), "k", {"t": "two"}, ttl=10.0)
    store.put(("a",), "plain", {"t": "x"}, index=False)
    export(store, tmp_path / "out.jsonl")
    head, memory, plain = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert (head["export"], head["format"], head["position"]) == ("eventstore", 1, "3")
    assert (memory["namespace"], memory["key"], memory["value"]) == (["a", "b"], "k", {"t": "two"})
    assert (memory["version"], memory["ttl_minutes"]) == (2, 10.0)
    assert 9.9 < memory["ttl_left_minutes"] <= 10.0
    assert memory["created_at"] < memory["updated_at"] < memory["expires_at"]
    assert memory["vectors"]["model"] == "tiny/4"
    assert (plain["index"], "vectors" in plain) == (False, False)
    export(store, tmp_path / "some.jsonl", prefix=("a", "b"), vectors=False)
    lines = (tmp_path / "some.jsonl").read_text().splitlines()
    assert (len(lines), "vectors" in lines[1]) == (2, False)


def test_times_to_live_go_on(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put(("a",), "long", {"n": 1}, ttl=10.0)
    store.put(("a",), "short", {"n": 1}, ttl=0.001)
    time.sleep(0.1)
    export(store, tmp_path / "out.jsonl")
    other = open_store(sub="other", ttl={"default_ttl": 60})
    done = import_(other, tmp_path / "out.jsonl")
    assert (done.written, done.expired) == (1, 1)
    (version,) = other.history(("a",), "long")
    assert version.expires_at is not None
    assert 9 * 60 < (version.expires_at - version.updated_at).total_seconds() < 10 * 60
    assert import_(other, tmp_path / "out.jsonl").present == 1


def test_with_history_every_version_comes_along(open_store: OpenStore, tmp_path: Path) -> None:
    store = sample(open_store, 200)
    out = export(store, tmp_path / "out.jsonl", history=True)
    assert out.lines > out.memories
    other = open_store(index=index_of(TinyEmbedder()), sub="other")
    done = import_(other, tmp_path / "out.jsonl")
    assert (done.conflicts, done.present) == (0, 0)
    assert told(other) == told(store)

    def past(of: EventStore, namespace: tuple[str, ...], key: str) -> list[Any]:
        return [
            (v.kind, v.value, v.actor, v.thread, v.run)
            for v in of.history(namespace, key)
            if not v.rejected and v.actor is not None
        ]

    keys = {(v.namespace, v.key) for v in store.events((), limit=10**6)}
    assert len(keys) == out.memories
    for namespace, key in keys:
        assert [v for v in past(other, namespace, key) if v[2] != "import"] == past(store, namespace, key)
    end = other.status().end
    again = import_(other, tmp_path / "out.jsonl")
    assert (again.written, again.conflicts, other.status().end) == (0, 0, end)
    other.put(*next(iter(keys)), {"mine": 1})
    assert import_(other, tmp_path / "out.jsonl").written == 0


def test_another_past_is_not_written_over(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put(("a",), "k", {"n": 1})
    store.put(("a",), "k", {"n": 2})
    export(store, tmp_path / "out.jsonl", history=True)
    other = open_store(sub="other")
    other.put(("a",), "k", {"n": 7})
    done = import_(other, tmp_path / "out.jsonl")
    assert (done.written, done.conflicts) == (0, 2)


def test_an_import_that_broke_off_is_started_again(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "BATCH", 10)
    store = sample(open_store, 150)
    for history in (False, True):
        export(store, tmp_path / "out.jsonl", history=history)
        lines = (tmp_path / "out.jsonl").read_text().splitlines()
        half = len(lines) // 2
        (tmp_path / "half.jsonl").write_text("\n".join([*lines[:half], lines[half][:20]]))
        other = open_store(index=index_of(TinyEmbedder()), sub=f"other {history}")
        with pytest.raises(InvalidInput, match=f"line {half + 1}") as raised:
            import_(other, tmp_path / "half.jsonl")
        assert "text" not in str(raised.value)
        begun = other.status().memories
        assert begun > 0
        done = import_(other, tmp_path / "out.jsonl")
        assert done.present > 0
        assert told(other) == told(store)
        assert done.conflicts == 0


def test_another_model_embeds_anew_and_no_model_takes_the_vectors(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = sample(open_store, 60)
    export(store, tmp_path / "out.jsonl")
    embedder = TinyEmbedder()
    other = open_store(index=index_of(embedder, model="another"), sub="other")
    done = import_(other, tmp_path / "out.jsonl")
    assert (done.reused, embedder.documents > 0) == (0, True)
    assert ranked(other, QUERIES) == ranked(store, QUERIES)
    plain = open_store(sub="plain")
    assert import_(plain, tmp_path / "out.jsonl").reused > 0
    plain.close()
    assert ranked(open_store(index=index_of(TinyEmbedder()), sub="plain"), QUERIES) == ranked(store, QUERIES)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[1]", "not an object"),
        ('{"namespace": ["a"], "value": {}}', "key"),
        ('{"namespace": ["a.b"], "key": "k", "value": {}}', "period"),
        ('{"namespace": ["a"], "key": "k", "value": 5}', "value"),
        ('{"namespace": ["a"], "key": "k", "value": {}, "ttl_minutes": -1}', "ttl"),
        ('{"export": "eventstore", "format": 9}', "format 9"),
        (
            '{"namespace": ["a"], "key": "k", "value": {}, '
            '"vectors": {"model": "m/4", "paths": [], "data": "!"}}',
            "base64",
        ),
    ],
)
def test_lines_that_are_wrong_are_named(open_store: OpenStore, tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "in.jsonl").write_text(line + "\n")
    store = open_store()
    with pytest.raises((InvalidInput, InvalidType), match=says) as raised:
        import_(store, tmp_path / "in.jsonl")
    assert "line 1" in str(raised.value)


def test_a_file_made_by_hand(open_store: OpenStore, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"namespace": ["a"], "key": "k", "value": {"n": 1}}\n\n')
    store = open_store()
    assert import_(store, tmp_path / "in.jsonl").written == 1
    with pytest.raises(InvalidConfig, match="could not be read"):
        import_(store, tmp_path / "nothing.jsonl")
    with pytest.raises(InvalidConfig, match="could not be written"):
        export(store, tmp_path / "no folder" / "out.jsonl")


# ---------------------------------------------------------------------- migration


def theirs(store: BaseStore, count: int = 120) -> None:
    for at in range(count):
        depth = at % 4
        store.put(("users", f"u{at % 5}", *["deep"] * depth), f"k{at}", {"t": f"text {at % 17}", "n": at})
    store.put(("us",), "k", {"t": "a prefix as text, not as labels"})
    store.put(("users",), "above", {"t": "at a namespace with others below"})
    store.delete(("users", "u0"), "k0")


def in_memory() -> InMemoryStore:
    store = InMemoryStore()
    theirs(store)
    return store


@contextmanager
def in_a_block() -> Iterator[InMemoryStore]:
    yield in_memory()


def test_migrate_from_a_store_in_memory(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 7)
    source = in_memory()
    embedder = TinyEmbedder()
    store = open_store(index=index_of(embedder))
    done = migrate(source, store)
    assert told(store) == told(source)
    assert (done.written, done.present, done.embedded) == (len(told(source)), 0, len(told(source)))
    asked = embedder.documents
    again = migrate(source, store)
    assert (again.written, again.present, embedder.documents) == (0, done.read, asked)
    source.put(("users", "u1"), "new", {"n": 1})
    assert migrate(source, store).written == 1
    assert store.history(("users", "u1"), "new")[0].actor == "migrate"
    part = open_store(sub="part")
    migrate(source, part, prefix=("users", "u1"), ttl=30.0)
    assert {namespace[:2] for namespace, _ in told(part)} == {("users", "u1")}
    assert part.history(("users", "u1"), "new")[0].expires_at is not None


def test_migrate_from_sqlite_by_its_name(open_store: OpenStore, tmp_path: Path) -> None:
    with SqliteStore.from_conn_string(str(tmp_path / "their.db")) as source:
        source.setup()
        theirs(source)
        expected = told(source)
    store = open_store()
    with open_source(f"sqlite:{tmp_path / 'their.db'}") as source:
        done = migrate(source, store)
        assert migrate(source, store).written == 0
    assert told(store) == expected
    assert done.written == len(expected)


@pytest.mark.parametrize("name", ["in_memory", "in_a_block"])
def test_migrate_from_whatever_a_factory_makes(open_store: OpenStore, name: str) -> None:
    store = open_store()
    with open_source(f"{__name__}:{name}") as source:
        assert migrate(source, store).written == len(told(source))


def test_migrate_from_another_of_ours(open_store: OpenStore) -> None:
    source = open_store(sub="source")
    fill(source, 60)
    store = open_store()
    migrate(source, store)
    assert told(store) == told(source)
    assert digest(store)["namespaces"] == digest(source)["namespaces"]


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("nothing", InvalidConfig, "names no store"),
        ("sqlite:/nowhere/x.db", InvalidConfig, "no SQLite file"),
        ("no_such_module:make", InvalidConfig, "no_such_module is not installed"),
        ("json:make", InvalidConfig, "no make in json"),
        ("builtins:dict", InvalidType, "no BaseStore"),
    ],
)
def test_what_is_no_store_is_said(name: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says), open_source(name):
        pass


def test_a_memory_that_cannot_be_kept_is_named(open_store: OpenStore) -> None:
    source = InMemoryStore()
    source.put(("a",), "odd", {"when": object()})
    with pytest.raises(InvalidInput, match=r"'odd' in \('a',\)"):
        migrate(source, open_store())
