"""Wrong calls: the class of the error, what it names, and that the log did not move."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)

from eventstore import EventStore, VersionConflict
from eventstore.errors import (
    EmbeddingFailed,
    EventStoreError,
    IndexMismatch,
    InvalidConfig,
    InvalidEmbedding,
    InvalidFilter,
    InvalidInput,
    InvalidNamespace,
    InvalidType,
    LimitExceeded,
)
from tests.conftest import OpenStore
from tests.scenarios.kit import TinyEmbedder, index_of, log_end, run_async

NS = ("a",)
VALUE = {"t": "tea"}

Call = Callable[[EventStore], Any]

WRONG: dict[str, tuple[Call, type[Exception]]] = {
    "empty namespace": (lambda s: s.put((), "k", VALUE), InvalidNamespaceError),
    "empty label": (lambda s: s.put(("a", ""), "k", VALUE), InvalidNamespaceError),
    "label with a period": (lambda s: s.put(("a.b",), "k", VALUE), InvalidNamespaceError),
    "label with NUL": (lambda s: s.put(("a\x00",), "k", VALUE), InvalidNamespaceError),
    "label not a string": (lambda s: s.put((1,), "k", VALUE), InvalidNamespaceError),  # type: ignore[arg-type]
    "label of half a surrogate": (lambda s: s.put(("\ud800",), "k", VALUE), ValueError),
    "reserved root": (lambda s: s.put(("langgraph", "a"), "k", VALUE), InvalidNamespaceError),
    "reserved root with a version": (
        lambda s: s.put(("langgraph", "a"), "k", VALUE, expected_version=0),
        InvalidNamespaceError,
    ),
    "namespace a string": (lambda s: s.put("ab", "k", VALUE), (InvalidNamespaceError, TypeError)),  # type: ignore
    "empty namespace, direct": (lambda s: s.batch([PutOp((), "k", VALUE)]), InvalidNamespace),
    "search under a bad label": (lambda s: s.search(("a.b",)), InvalidNamespaceError),
    "get under a bad label": (lambda s: s.get(("",), "k"), InvalidNamespaceError),
    "delete under a bad label": (lambda s: s.delete(("a.b",), "k"), InvalidNamespaceError),
    "history under a bad label": (lambda s: s.history(("a.b",), "k"), InvalidNamespace),
    "key of half a surrogate": (lambda s: s.put(NS, "\ud800", VALUE), ValueError),
    "value a number": (lambda s: s.put(NS, "k", 42), TypeError),  # type: ignore[arg-type]
    "value a list of pairs": (lambda s: s.put(NS, "k", [("a", 1)]), TypeError),  # type: ignore[arg-type]
    "value with bytes": (lambda s: s.put(NS, "k", {"b": b"x"}), InvalidType),
    "value with a set": (lambda s: s.put(NS, "k", {"b": {1}}), InvalidType),
    "value with a datetime": (lambda s: s.put(NS, "k", {"b": datetime.now()}), InvalidType),
    "value with NaN": (lambda s: s.put(NS, "k", {"b": math.nan}), InvalidInput),
    "value with infinity": (lambda s: s.put(NS, "k", {"b": [math.inf]}), InvalidInput),
    "value with a number as key": (lambda s: s.put(NS, "k", {1: "a"}), InvalidType),  # type: ignore[dict-item]
    "value of half a surrogate": (lambda s: s.put(NS, "k", {"b": "\ud800"}), InvalidInput),
    "value too deep": (lambda s: s.put(NS, "k", _deep(2000)), InvalidInput),
    "value in a circle": (lambda s: s.put(NS, "k", _circle()), InvalidInput),
    "index True": (lambda s: s.put(NS, "k", VALUE, index=True), InvalidType),  # type: ignore[arg-type]
    "index a string": (lambda s: s.put(NS, "k", VALUE, index="t"), InvalidType),  # type: ignore[arg-type]
    "index of numbers": (lambda s: s.put(NS, "k", VALUE, index=[1]), InvalidType),  # type: ignore[list-item]
    "ttl zero": (lambda s: s.put(NS, "k", VALUE, ttl=0), InvalidInput),
    "ttl negative": (lambda s: s.put(NS, "k", VALUE, ttl=-1), InvalidInput),
    "ttl NaN": (lambda s: s.put(NS, "k", VALUE, ttl=math.nan), InvalidInput),
    "ttl a string": (lambda s: s.put(NS, "k", VALUE, ttl="5"), InvalidType),  # type: ignore[arg-type]
    "version negative": (lambda s: s.put(NS, "k", VALUE, expected_version=-1), InvalidInput),
    "version a bool": (lambda s: s.put(NS, "k", VALUE, expected_version=True), InvalidType),
    "version a string": (lambda s: s.put(NS, "k", VALUE, expected_version="1"), InvalidType),  # type: ignore
    "limit negative": (lambda s: s.search(NS, limit=-1), InvalidInput),
    "limit None": (lambda s: s.search(NS, limit=None), InvalidType),  # type: ignore[arg-type]
    "limit a fraction": (lambda s: s.search(NS, limit=2.5), InvalidType),  # type: ignore[arg-type]
    "offset negative": (lambda s: s.search(NS, offset=-1), InvalidInput),
    "offset a string": (lambda s: s.search(NS, offset="2"), InvalidType),  # type: ignore[arg-type]
    "query a number": (lambda s: s.search(NS, query=5), InvalidType),  # type: ignore[arg-type]
    "filter a string": (lambda s: s.search(NS, filter="a"), InvalidType),  # type: ignore[arg-type]
    "filter with an unknown operator": (lambda s: s.search(NS, filter={"n": {"$foo": 1}}), InvalidFilter),
    "filter with an unknown combinator": (lambda s: s.search(NS, filter={"$xor": []}), InvalidFilter),
    "filter with a range over None": (lambda s: s.search(NS, filter={"n": {"$gt": None}}), ValueError),
    "filter with a datetime": (lambda s: s.search(NS, filter={"n": datetime.now()}), InvalidType),
    "filter with a malformed $and": (lambda s: s.search(NS, filter={"$and": {}}), InvalidFilter),
    "max_depth zero": (lambda s: s.list_namespaces(max_depth=0), InvalidInput),
    "match type unknown": (
        lambda s: s.batch([ListNamespacesOp((MatchCondition("infix", ("a",)),))]),  # type: ignore[arg-type]
        ValueError,
    ),
    "no operation": (lambda s: s.batch([object()]), InvalidType),  # type: ignore[list-item]
    "history limit negative": (lambda s: s.history(NS, "k", limit=-1), InvalidInput),
    "history before a string": (lambda s: s.history(NS, "k", before="x"), InvalidType),  # type: ignore[arg-type]
}


def _deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


def _circle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EventStore, Path]]:
    """One store for all wrong calls, which must leave it as it was."""
    path = tmp_path_factory.mktemp("refusals") / "store"
    with EventStore.open(path, index=index_of(TinyEmbedder())) as store:
        store.put(NS, "k", VALUE)
        yield store, path


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_and_appends_nothing(shared: tuple[EventStore, Path], name: str) -> None:
    call, expected = WRONG[name]
    store, path = shared
    before = store.position
    with pytest.raises(expected):
        call(store)
    assert store.position == before
    assert log_end(path) == 1
    item = store.get(NS, "k")
    assert item is not None and item.value == VALUE


BAD_PARTS: dict[str, Any] = {
    "namespace": PutOp((), "x", VALUE),
    "value": PutOp(NS, "x", {"b": b"x"}),
    "ttl": PutOp(NS, "x", VALUE, None, -1.0),
    "key": PutOp(NS, "\udc00", VALUE),
    "size": PutOp(NS, "x", {"t": "y" * 5000}),
    "filter": SearchOp(NS, {"n": {"$foo": 1}}),
    "read": GetOp(("a.b",), "k"),
    "operation": "nonsense",
}


@pytest.mark.parametrize("through_loop", [False, True])
@pytest.mark.parametrize("name", BAD_PARTS)
def test_one_bad_operation_stops_the_whole_batch(
    open_store: OpenStore, tmp_path: Path, name: str, through_loop: bool
) -> None:
    store = open_store(config={"max_value_bytes": 4000})
    store.put(NS, "k", VALUE)
    ops = [PutOp(NS, "good", VALUE), PutOp(NS, "k", None), BAD_PARTS[name], PutOp(NS, "later", VALUE)]
    before = log_end(tmp_path / "store")
    with pytest.raises((EventStoreError, ValueError)):
        if through_loop:
            run_async(store.abatch(ops))
        else:
            store.batch(ops)
    assert log_end(tmp_path / "store") == before
    assert [item.key for item in store.search(())] == ["k"]


def test_a_lost_condition_changes_nothing_and_names_the_version_that_is_there(open_store: OpenStore) -> None:
    store = open_store()
    store.put(NS, "k", {"n": 1}, expected_version=0)
    store.put(NS, "k", {"n": 2}, expected_version=1)
    with pytest.raises(VersionConflict) as caught:
        store.put(NS, "k", {"n": 3}, expected_version=1)
    assert caught.value.current == 2
    with pytest.raises(VersionConflict) as caught:
        run_async(store.aput(NS, "k", {"n": 3}, expected_version=0))
    assert caught.value.current == 2
    item = store.get(NS, "k")
    assert item is not None and item.value == {"n": 2}
    past = store.history(NS, "k")
    assert [(version.version, version.rejected) for version in past] == [
        (2, True),
        (2, True),
        (2, False),
        (1, False),
    ]


def test_a_condition_on_a_memory_that_expired_out_of_sight_names_version_0(open_store: OpenStore) -> None:
    """Found by the random operations: the error named a version with which no retry could win."""
    store = open_store(ttl={"omit_expired": True})
    store.put(NS, "k", {"n": 1}, ttl=1e-7)
    with pytest.raises(VersionConflict) as caught:
        store.put(NS, "k", {"n": 2}, expected_version=1)
    assert caught.value.current == 0
    store.put(NS, "k", {"n": 2}, expected_version=caught.value.current)
    item = store.get(NS, "k")
    assert item is not None and item.value == {"n": 2}


def test_a_prefix_deeper_than_max_depth_is_cut_and_not_lost(open_store: OpenStore) -> None:
    """Found by the random operations: the listing jumped over everything below the cut."""
    store = open_store()
    store.put(("a", "b", "c"), "k", VALUE)
    store.put(("a", "b", "d"), "k", VALUE)
    store.put(("a", "x"), "k", VALUE)
    assert store.list_namespaces(prefix=("a", "b"), max_depth=1) == [("a",)]
    assert store.list_namespaces(prefix=("a", "b"), max_depth=2) == [("a", "b")]
    assert store.list_namespaces(prefix=("a", "z"), max_depth=1) == []


def test_history_is_paged_down_to_the_first_event_of_the_log(open_store: OpenStore) -> None:
    """The event at offset 0 is the last of its page, and there is nothing below it."""
    store = open_store()
    for number in range(5):
        store.put(NS, "k", {"n": number})
    found: list[int] = []
    before: int | None = None
    while page := store.history(NS, "k", limit=2, before=before):
        found += [version.version for version in page]
        before = page[-1].offset
    assert found == [5, 4, 3, 2, 1]
    assert store.history(NS, "k", limit=0) == []


# ------------------------------------------------------------------ sizes (S03)


def test_an_oversize_value_is_refused_by_size_and_limit(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(config={"max_value_bytes": 1 << 20})
    store.put(NS, "k", VALUE)
    before = log_end(tmp_path / "store")
    big = {"t": "x" * (3 << 20)}
    with pytest.raises(LimitExceeded, match=r"3145736.*1048576"):
        store.put(NS, "k", big)
    with pytest.raises(LimitExceeded):
        store.batch([PutOp(NS, "small", VALUE), PutOp(NS, "k", big), PutOp(NS, "other", VALUE)])
    assert log_end(tmp_path / "store") == before
    item = store.get(NS, "k")
    assert item is not None and item.value == VALUE
    store.put(NS, "next", VALUE)
    assert log_end(tmp_path / "store") == before + 1


def test_oversize_keys_namespaces_and_batches_are_refused_by_size_and_limit(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    for call in (
        lambda: store.put(NS, "k" * 10_000_000, VALUE),
        lambda: store.put(("n" * 10_000_000,), "k", VALUE),
        lambda: store.put(tuple("n" * 100_000), "k", VALUE),
    ):
        with pytest.raises(LimitExceeded, match=r"\d+.*\d+"):
            call()
    big = {"t": "x" * (15 << 20)}
    with pytest.raises(LimitExceeded, match=r"536870912"):
        store.batch([PutOp(NS, str(number), big) for number in range(36)])
    assert log_end(tmp_path / "store") == 0
    store.put(NS, "k" * 8000, VALUE)
    assert log_end(tmp_path / "store") == 1


# ------------------------------------------------------------------ settings


SETTINGS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "index a list": ({"index": [1]}, InvalidType),
    "index without dims": ({"index": {"embed": TinyEmbedder()}}, InvalidConfig),
    "index without embed": ({"index": {"dims": 4}}, InvalidConfig),
    "dims zero": ({"index": {"dims": 0, "embed": TinyEmbedder()}}, InvalidConfig),
    "distance unknown": ({"index": index_of(TinyEmbedder(), distance_type="x")}, InvalidConfig),
    "fields a number": ({"index": {"dims": 4, "embed": TinyEmbedder(), "fields": 5}}, InvalidType),
    "model a number": ({"index": {"dims": 4, "embed": TinyEmbedder(), "model": 5}}, InvalidConfig),
    "ann kind unknown": (
        {"index": {"dims": 4, "embed": TinyEmbedder(), "ann_index_config": {"kind": "x"}}},
        InvalidConfig,
    ),
    "ttl a number": ({"ttl": 5}, InvalidType),
    "ttl setting unknown": ({"ttl": {"default": 5}}, InvalidConfig),
    "default ttl negative": ({"ttl": {"default_ttl": -5}}, InvalidInput),
    "config unknown": ({"config": {"speed": 11}}, InvalidConfig),
    "config of a wrong value": ({"config": {"read_consistency": "sometimes"}}, InvalidConfig),
    "config a string": ({"config": "fast"}, InvalidType),
    "actor a number": ({"actor": 5}, InvalidType),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_wrong_settings_are_refused(tmp_path: Path, name: str) -> None:
    settings, expected = SETTINGS[name]
    with pytest.raises(expected):
        EventStore.open(tmp_path / "store", **settings)
    EventStore.open(tmp_path / "store").close()


@pytest.mark.parametrize("place", ["", "a\x00b", "postgres://x/y", "file://elsewhere/x", 5, None])
def test_wrong_places_are_refused(place: Any) -> None:
    with pytest.raises((InvalidConfig, InvalidType)):
        EventStore.open(place)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(EventStoreError, match="store"):
        EventStore.open(tmp_path / "store")
    (tmp_path / "views").write_text("not a folder")
    with pytest.raises(InvalidConfig, match="views"):
        EventStore.open(tmp_path / "other", views=tmp_path / "views")
    EventStore.open(tmp_path / "other").close()


# ------------------------------------------------------------------ the embedding model


class RateLimited(Exception):
    """What a provider raises, with a field of its own."""

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def test_an_error_of_the_embedder_keeps_its_class(open_store: OpenStore, tmp_path: Path) -> None:
    embedder = TinyEmbedder()
    store = open_store(index=index_of(embedder))
    store.put(NS, "k", VALUE)
    embedder.failure = RateLimited("slow down", 7)
    calls: list[Call] = [
        lambda s: s.put(NS, "k", {"t": "rain"}),
        lambda s: run_async(s.aput(NS, "k", {"t": "rain"})),
        lambda s: s.search(NS, query="tea"),
        lambda s: run_async(s.asearch(NS, query="tea")),
    ]
    for call in calls:
        with pytest.raises(RateLimited) as caught:
            call(store)
        assert isinstance(caught.value, EmbeddingFailed)
        assert caught.value.retriable
        assert caught.value.retry_after == 7
        assert caught.value.__cause__ is embedder.failure
    assert log_end(tmp_path / "store") == 1
    embedder.failure = None
    assert [hit.key for hit in store.search(NS, query="tea")] == ["k"]


class Wrong(Embeddings):
    """Returns whatever it was given to return."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def embed_documents(self, texts: list[str]) -> Any:
        return self.answer

    def embed_query(self, text: str) -> Any:
        return self.answer[0]


@pytest.mark.parametrize(
    "answer",
    [[], [[1.0] * 3], [[1.0] * 4] * 2, [[math.nan] * 4], [[math.inf] * 4], [["a"] * 4], [None], 5, None],
)
def test_unusable_vectors_are_refused(open_store: OpenStore, tmp_path: Path, answer: Any) -> None:
    store = open_store(index=index_of(Wrong(answer)))
    with pytest.raises(InvalidEmbedding):
        store.put(NS, "k", VALUE)
    assert log_end(tmp_path / "store") == 0
    assert store.get(NS, "k") is None


def test_another_model_is_refused_with_both_named(tmp_path: Path) -> None:
    """S20: vectors of two models are never compared."""
    path = tmp_path / "store"
    with EventStore.open(path, index=index_of(TinyEmbedder(), model="first")) as store:
        store.put(NS, "k", VALUE)
    for other in (index_of(TinyEmbedder(), model="second"), index_of(TinyEmbedder(), model="first", dims=8)):
        with pytest.raises(IndexMismatch) as caught:
            EventStore.open(path, index=other)
        assert "first/4" in str(caught.value)
        assert f"{other['model']}/{other['dims']}" in str(caught.value)
    with EventStore.open(path, index=index_of(TinyEmbedder(), model="first")) as store:
        assert [hit.key for hit in store.search(NS, query="tea")] == ["k"]


def test_two_models_in_one_process_are_refused_before_there_are_vectors(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with (
        EventStore.open(path, index=index_of(TinyEmbedder(), model="first")) as store,
        pytest.raises(IndexMismatch),
    ):
        EventStore.open(path, index=index_of(TinyEmbedder(), model="second"))
    store.close()


def test_vectors_that_another_process_made_with_another_model_are_not_compared(tmp_path: Path) -> None:
    """Two processes open an empty store with two models, so neither finds the other on record."""
    path = tmp_path / "store"
    first = EventStore.open(path, index=index_of(TinyEmbedder(), model="first"))
    # Another views folder makes another runtime, as another process would have.
    second = EventStore.open(path, views=tmp_path / "views", index=index_of(TinyEmbedder(), model="second"))
    try:
        first.put(NS, "one", VALUE)
        with pytest.raises(IndexMismatch, match="first/4"):
            second.put(NS, "two", VALUE)
        second.put(NS, "two", VALUE, index=False)
        assert [hit.key for hit in first.search(NS, query="tea")] == ["one"]
        with pytest.raises(IndexMismatch, match="first/4"):
            second.search(NS, query="tea")
        assert {item.key for item in second.search(NS)} == {"one", "two"}
    finally:
        first.close()
        second.close()
