"""S08, S11, S12: events nobody here can read, and events that come twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from eventstore import EventStore
from eventstore.codec import encode
from eventstore.errors import UndecodableEvent
from eventstore.events import Embedded, Event, Kind, new_id
from eventstore.keys import encode_item
from eventstore.log import EmbeddedLog, Record
from eventstore.log.position import Position
from tests.conftest import OpenStore
from tests.scenarios.kit import TinyEmbedder, index_of, keys_of, log_end, rows

KEY = encode_item(("a",), "k")
GOOD = encode(Event(Kind.PUT, KEY, new_id(), b'{"n":1}'))


def _with(name: str, data: bytes) -> Record:
    return GOOD._replace(headers=(*(each for each in GOOD.headers if each[0] != name), (name, data)))


POISON: dict[str, Record] = {
    "no headers": Record(KEY, b"{}", ()),
    "unknown type": _with("type", b"merge/1"),
    "newer schema": _with("type", b"put/99"),
    "schema 0": _with("type", b"put/0"),
    "type without a version": _with("type", b"put"),
    "unknown encoding": _with("encoding", b"sealed"),
    "id not hex": _with("id", b"zz"),
    "ttl not a number": _with("ttl", b"soon"),
    "ttl infinite": _with("ttl", b"inf"),
    "ttl negative": _with("ttl", b"-1"),
    "vectors cut": encode(
        Event(Kind.PUT, KEY, new_id(), b'{"n":1}', embedded=Embedded("tiny/4", 4, ("t",), b"\x00" * 15))
    ),
    "key of no memory": GOOD._replace(key=b"garbage"),
    "key not text": GOOD._replace(key=b"\x02a\x00\x01\xff\xfe"),
    "put without value": GOOD._replace(value=None),
    "delete with value": encode(Event(Kind.DELETE, KEY, new_id()))._replace(value=b"{}"),
    "touch of no memory": encode(Event(Kind.TOUCH, KEY, new_id(), seen_version=1, expires_us=5))._replace(
        key=KEY
    ),
}


def _append(directory: Path, *records: Record) -> int:
    log = EmbeddedLog.open(directory / "log")
    try:
        [[first, *_]] = log.append([log.prepare(records)])
        return first.offset
    finally:
        log.close()


def _answers_and_refuses(store: EventStore) -> None:
    assert keys_of(store) == {"before"}
    item = store.get(("a",), "before")
    assert item is not None and item.value == {"n": 1}
    writes: list[Callable[[], object]] = [
        lambda: store.put(("a",), "after", {"n": 2}),
        lambda: store.delete(("a",), "before"),
        lambda: store.put(("a",), "before", {"n": 2}, expected_version=1),
    ]
    for write in writes:
        with pytest.raises(UndecodableEvent, match="offset 1"):
            write()


@pytest.mark.parametrize("name", POISON)
def test_an_event_that_cannot_be_read_stops_writes_and_not_reads(
    open_store: OpenStore, tmp_path: Path, name: str
) -> None:
    store = open_store()
    store.put(("a",), "before", {"n": 1})
    offset = _append(tmp_path / "store", POISON[name])
    assert offset == 1
    _answers_and_refuses(store)
    assert log_end(tmp_path / "store") == 2
    store.close()
    store = open_store()
    _answers_and_refuses(store)
    store.close()
    # A rebuild stops at the same place.
    shutil.rmtree(tmp_path / "store" / "views")
    store = open_store()
    assert keys_of(store) == {"before"}
    with pytest.raises(UndecodableEvent, match="offset 1"):
        store.put(("a",), "after", {"n": 2})


def test_nothing_of_an_atomic_batch_with_one_unreadable_event_is_shown(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    store.put(("a",), "before", {"n": 1})
    _append(tmp_path / "store", GOOD, POISON["newer schema"])
    assert keys_of(store) == {"before"}
    with pytest.raises(UndecodableEvent, match="offset 2"):
        store.put(("a",), "after", {"n": 2})


def test_what_comes_before_an_unreadable_event_is_shown(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.put(("a",), "before", {"n": 1})
    _append(tmp_path / "store", GOOD)
    _append(tmp_path / "store", POISON["unknown type"])
    _append(tmp_path / "store", GOOD._replace(key=encode_item(("a",), "behind")))
    assert keys_of(store) == {"before", "k"}
    with pytest.raises(UndecodableEvent, match="offset 2"):
        store.wait_for(Position(4), timeout=1)


def test_vectors_of_another_model_in_the_log_are_kept_but_not_compared(
    open_store: OpenStore, tmp_path: Path
) -> None:
    """Two processes that were first at the same moment, each with a model of its own."""
    store = open_store(index=index_of(TinyEmbedder()))
    store.put(("a",), "ours", {"t": "tea"})
    foreign = Embedded("other/4", 4, ("t",), b"\x00\x00\x80\x3f" * 4)
    wrong_size = Embedded("other/2", 2, ("t",), b"\x00\x00\x80\x3f" * 2)
    for key, embedded in (("foreign", foreign), ("wrong size", wrong_size)):
        event = Event(Kind.PUT, encode_item(("a",), key), new_id(), b'{"t":"tea"}', embedded=embedded)
        _append(tmp_path / "store", encode(event))
    assert keys_of(store) == {"ours", "foreign", "wrong size"}
    assert [hit.key for hit in store.search(("a",), query="tea")] == ["ours"]
    store.close()
    store = open_store(index=index_of(TinyEmbedder()))
    assert [hit.key for hit in store.search(("a",), query="tea")] == ["ours"]
    store.put(("a",), "foreign", {"t": "tea"})
    assert {hit.key for hit in store.search(("a",), query="tea")} == {"ours", "foreign"}


def test_a_foreign_event_with_headers_of_its_own_is_read(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    _append(tmp_path / "store", _with("x-trace", b"\xff\x00"))
    assert keys_of(store) == {"k"}
    store.put(("a",), "next", {"n": 2})
    assert keys_of(store) == {"k", "next"}
    assert len(rows(store)["items"]) == 2


def test_the_empty_log_answers_everything_at_once(open_store: OpenStore) -> None:
    """S17."""
    store = open_store(index=index_of(TinyEmbedder()))
    calls: list[tuple[Callable[[], object], object]] = [
        (lambda: store.get(("a",), "k"), None),
        (lambda: store.search(()), []),
        (lambda: store.search((), query="tea"), []),
        (lambda: store.list_namespaces(), []),
        (lambda: store.history(("a",), "k"), []),
        (lambda: store.sweep_ttl(), 0),
        (lambda: store.delete(("a",), "k"), None),
    ]
    for call, expected in calls:
        assert call() == expected
