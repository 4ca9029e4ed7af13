"""S08, S11, S12: events nobody here can read, and events that come twice."""

from __future__ import annotations

import json
import logging
import shutil
import sys
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
from eventstore.status import QuarantinedEvent
from eventstore.upcasters import CURRENT, UPCASTERS, Headers
from projector.cli import main as eventstore_main
from projector.cli.projector import main as projector_main
from projector.digests import digest
from projector.integrity import verify, verify_at
from projector.rebuild import rebuild, rebuild_at
from projector.retry import retry_at
from projector.standing import standing
from tests.conftest import OpenStore
from tests.scenarios.kit import TinyEmbedder, index_of, keys_of, log_end, rows, runtime_of, warnings_in

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
    "vectors not finite": encode(
        Event(
            Kind.PUT,
            KEY,
            new_id(),
            b'{"n":1}',
            embedded=Embedded("tiny/4", 4, ("t",), b"\x00\x00\xc0\x7f" * 4),
        )
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


# ---------------------------------------------------------------------- set aside

QUARANTINE = {"on_undecodable": "quarantine"}
LATER = encode_item(("a",), "later")


def _aside(store: EventStore) -> list[tuple[int, str | None]]:
    return [(each.offset, each.key) for each in store.status().quarantine]


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def _poisoned(directory: Path, name: str = "newer schema") -> None:
    """Behind what is there: an event nobody can read, and one that anybody can."""
    _append(directory, POISON[name])
    _append(directory, encode(Event(Kind.PUT, LATER, new_id(), b'{"n":2}')))


def _learn_version_99(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a release does that knows what put/99 is."""

    def step(headers: Headers, value: bytes | None) -> tuple[Headers, bytes | None]:
        return headers, value

    monkeypatch.setitem(CURRENT, Kind.PUT, 99)
    for version in range(1, 99):
        monkeypatch.setitem(UPCASTERS, (Kind.PUT, version), step)


@pytest.mark.parametrize("name", POISON)
def test_an_event_that_cannot_be_read_is_set_aside_live_and_in_a_rebuild(
    open_store: OpenStore, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(config=QUARANTINE)
    store.put(("a",), "before", {"n": 1})
    _poisoned(tmp_path / "store", name)
    store.put(("a",), "own", {"n": 3})
    assert keys_of(store) == {"before", "later", "own"}
    status = store.status()
    assert (status.quarantined, status.stopped, status.lag) == (1, None, 0)
    (event,) = status.quarantine
    assert (event.partition, event.offset) == (0, 1)
    assert event.reason and "offset" not in event.reason
    assert (event.namespace, event.key) == ((None, None) if name.startswith("key ") else (("a",), "k"))
    (told,) = _errors(caplog)
    assert "partition 0, offset 1" in told
    before, kept = digest(store), rows(store)
    assert verify(store).exit_code == 0
    assert rebuild(store).outcome == "exchanged"
    assert digest(store) == before and rows(store) == kept
    store.close()
    shutil.rmtree(tmp_path / "store" / "views")
    again = open_store(config=QUARANTINE)
    assert digest(again) == before and _aside(again) == [(1, event.key)]
    assert [item.key for item in again.as_of(2).search(("a",))] == ["before"]
    assert [change.key for change in again.changes(follow=False)] == ["before", "later", "own"]


def test_of_an_atomic_batch_only_what_cannot_be_read_is_set_aside(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store(config=QUARANTINE)
    _append(tmp_path / "store", GOOD, POISON["unknown type"], GOOD._replace(key=LATER))
    assert keys_of(store) == {"k", "later"}
    assert _aside(store) == [(1, "k")]
    (version,) = store.history(("a",), "k")
    assert version.value == {"n": 1}


def test_reads_of_a_memory_that_lacks_an_event_say_so_once(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(config=QUARANTINE)
    store.put(("a",), "k", {"n": 0})
    store.put(("a",), "other", {"n": 0})
    _poisoned(tmp_path / "store")
    assert store.get(("a",), "other") is not None and store.history(("a",), "other")
    assert "offset" not in warnings_in(caplog)
    for _ in range(2):
        item = store.get(("a",), "k")
        assert item is not None and item.value == {"n": 0}
        assert len(store.history(("a",), "k")) == 1
    assert warnings_in(caplog).count("partition 0, offset 2") == 1


def test_the_past_of_a_memory_that_lacks_an_event_says_so_from_there_on(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the event it lacks nothing; behind the first of two it lacks one."""
    store = open_store(config=QUARANTINE)
    store.put(("a",), "k", {"n": 0})
    store.put(("a",), "other", {"n": 0})
    _poisoned(tmp_path / "store")
    _poisoned(tmp_path / "store")
    store.put(("a",), "own", {"n": 0})
    for position in (1, 2):
        assert store.as_of(position).get(("a",), "k") is not None
        assert store.as_of(position).search(("a",))
    assert store.as_of(5).get(("a",), "other") is not None
    assert "set aside" not in warnings_in(caplog)
    for position in (3, 4, 6):
        then = store.as_of(position)
        item = then.get(("a",), "k")
        assert item is not None and item.value == {"n": 0}
        assert "k" in {found.key for found in then.search(("a",))}
    assert warnings_in(caplog).count("a memory is read that lacks an event") == 1


def test_a_stopped_view_goes_on_under_the_other_policy_and_says_so_when_that_is_taken_back(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    store.put(("a",), "before", {"n": 1})
    _poisoned(tmp_path / "store")
    _answers_and_refuses(store)
    assert store.status().quarantined == 0
    store.close()
    store = open_store(config=QUARANTINE)
    assert keys_of(store) == {"before", "later"}
    store.close()
    caplog.clear()
    store = open_store()
    (told,) = _errors(caplog)
    assert told.startswith("1 events") and "projector retry" in told
    assert store.status().quarantined == 1 and store.status().stopped is None
    store.put(("a",), "own", {"n": 3})
    # What stops a rebuild is named, and leaves the view in use as it is.
    with pytest.raises(UndecodableEvent, match="offset 1"):
        rebuild(store)
    _append(tmp_path / "store", POISON["unknown type"])
    assert keys_of(store) == {"before", "later", "own"}
    assert "offset 4" in str(store.status().stopped)
    assert verify(store).exit_code == 0


def test_rebuild_and_status_from_outside(open_store: OpenStore, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    store = open_store()
    store.put(("a",), "before", {"n": 1})
    store.close()
    _poisoned(folder)
    with pytest.raises(UndecodableEvent, match="offset 1"):
        rebuild_at(folder)
    (done,) = rebuild_at(folder, quarantine=True)
    assert (done.outcome, done.position) == ("exchanged", "3")
    (view,) = standing(folder).views
    assert (view.quarantined, view.lag, view.problem) == (1, 0, None)
    assert [(each.offset, each.namespace, each.key) for each in view.quarantine] == [(1, ("a",), "k")]
    (report,) = verify_at(folder)
    assert report.exit_code == 0 and report.rows["quarantined"] == 1


def test_verify_misses_what_was_set_aside(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(config=QUARANTINE)
    _poisoned(tmp_path / "store")
    ((key, _),) = ((key, data) for key, data in rows(store)["default"].items() if key.startswith(b"q"))
    runtime_of(store).materialized.db.default.delete(key)
    report = verify(store)
    assert report.differences == {"quarantined": 1}
    assert report.first is not None and report.first.position == "0:0"


def test_retry_once_it_can_be_read(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    store = open_store(config=QUARANTINE)
    store.put(("a",), "k", {"n": 0})
    _poisoned(folder)
    store.put(("a",), "k", {"n": 4}, expected_version=1)
    tried = retry_at(folder)
    assert (tried.exit_code, tried.quarantined, tried.rebuilt) == (1, 1, [])
    assert [(each.offset, "version 99" in each.reason) for each in tried.still] == [(1, True)]
    assert _aside(store) == [(1, "k")]
    _learn_version_99(monkeypatch)
    done = retry_at(folder)
    assert (done.exit_code, done.quarantined, done.still) == (0, 1, [])
    assert [each.outcome for each in done.rebuilt] == ["exchanged"]
    assert _aside(store) == [] and store.status().stopped is None
    # It got its place, so the write that did not know of it lost.
    item = store.get(("a",), "k")
    assert item is not None and item.value == {"n": 1}
    assert [(each.version, each.rejected) for each in store.history(("a",), "k")] == [
        (2, True),
        (2, False),
        (1, False),
    ]
    assert verify(store).exit_code == 0
    assert retry_at(folder).quarantined == 0


def test_a_begun_rebuild_does_not_keep_what_can_be_read_by_now(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    open_store().close()
    _poisoned(folder)
    with monkeypatch.context() as patch:
        patch.setattr("projector.rebuild._make_index", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            rebuild_at(folder, quarantine=True)
    _learn_version_99(monkeypatch)
    (done,) = rebuild_at(folder, quarantine=True)
    assert (done.continued, done.events) == (0, 2)
    assert standing(folder).views[0].quarantined == 0


def test_a_reader_of_another_process_s_view_knows_what_is_set_aside(
    open_store: OpenStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = open_store(config=QUARANTINE)
    attached = open_store(config={"attach": True})
    _poisoned(tmp_path / "store")
    attached.put(("a",), "own", {"n": 3})
    assert keys_of(attached) == keys_of(keeper) == {"later", "own"}
    assert _aside(attached) == _aside(keeper) == [(0, "k")]
    assert attached.as_of(3).get(("a",), "k") is None
    assert "partition 0, offset 0" in warnings_in(caplog)
    assert attached.get(("a",), "k") is None


def _command(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    main: Callable[[], None],
    *words: object,
) -> tuple[int, str]:
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["command", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        main()
        sys.exit(0)
    return int(left.value.code or 0), capsys.readouterr().out


def test_commands_name_what_is_set_aside(
    open_store: OpenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "store"
    store = open_store(config=QUARANTINE)
    _poisoned(folder)
    assert keys_of(store) == {"later"}
    for main in (eventstore_main, projector_main):
        code, out = _command(monkeypatch, capsys, main, "status", folder)
        assert code == 0 and "schema version 99" in out and "a/k" in out
    _, out = _command(monkeypatch, capsys, eventstore_main, "status", folder, "--json")
    report = json.loads(out)
    assert report["quarantined"] == 1
    assert QuarantinedEvent(**report["quarantine"][0]).key == "k"
    store.close()
    code, out = _command(monkeypatch, capsys, projector_main, "status", folder, "--json")
    assert json.loads(out)["views"][0]["quarantine"] == report["quarantine"]
    # A command that gets a view of its own follows the policy of those that are there.
    store = open_store(config=QUARANTINE)
    code, out = _command(monkeypatch, capsys, eventstore_main, "get", folder, "a", "later", "--json")
    assert code == 0 and json.loads(out)["value"] == {"n": 2}
    store.close()
    code, out = _command(monkeypatch, capsys, projector_main, "retry", folder, "--json")
    assert code == 1 and json.loads(out)["still"][0]["offset"] == 0
    _learn_version_99(monkeypatch)
    code, out = _command(monkeypatch, capsys, projector_main, "retry", folder, "--json")
    assert code == 0 and json.loads(out)["rebuilt"][0]["outcome"] == "exchanged"
    code, out = _command(monkeypatch, capsys, eventstore_main, "get", folder, "a", "k", "--json")
    assert code == 0 and json.loads(out)["value"] == {"n": 1}
    code, _ = _command(monkeypatch, capsys, projector_main, "rebuild", folder, "--quarantine")
    assert code == 0


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
