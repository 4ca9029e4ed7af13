"""Events that can be decoded and that a projection fails on: a defect, injected for one memory."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import PutOp

from eventstore import EventStore
from eventstore.codec import encode
from eventstore.errors import UnappliedEvent, UndecodableEvent, ViewBehind, ViewError
from eventstore.events import Event, Kind, new_id
from eventstore.keys import encode_item
from eventstore.log import EmbeddedLog, Record
from projector import folding
from projector.digests import digest
from projector.integrity import verify, verify_at
from projector.projections import history, recency, vectors
from projector.projections.base import Change
from projector.projections.items import Items
from projector.projections.namespaces import Namespaces
from projector.rebuild import rebuild, rebuild_at
from projector.retry import retry_at
from projector.standing import standing
from tests.conftest import OpenStore
from tests.scenarios.kit import (
    TinyEmbedder,
    index_of,
    keys_of,
    log_end,
    ranked,
    rows,
    runtime_of,
    warnings_in,
)

QUARANTINE = {"on_undecodable": "quarantine"}
BAD = encode_item(("a", "b"), "bad")
SECRET = "what the memory says"
INDEX = index_of(TinyEmbedder())


def _event(key: str, number: int, labels: tuple[str, ...] = ("a",)) -> Record:
    value = b'{"t":"tea","n":%d}' % number
    return encode(Event(Kind.PUT, encode_item(labels, key), new_id(), value))


def _bad(number: int = 1) -> Record:
    return _event("bad", number, ("a", "b"))


def _append(directory: Path, *batches: Sequence[Record]) -> None:
    """Each an atomic batch, all in one append: a reader gets them at once."""
    log = EmbeddedLog.open(directory / "log")
    try:
        log.append([log.prepare(list(batch)) for batch in batches])
    finally:
        log.close()


def _failing(real: Callable[..., Any], about: Callable[..., bool]) -> Callable[..., Any]:
    def write(*arguments: Any) -> Any:
        if about(*arguments):
            raise ValueError(SECRET)
        return real(*arguments)

    return write


def _about_change(*arguments: Any) -> bool:
    return any(isinstance(each, Change) and each.event.key == BAD for each in arguments)


def _counts(counting: Namespaces, *_: Any) -> bool:
    return any(step and prefixes[-1].endswith(b"b\x00") for prefixes, step in counting._steps.items())


DEFECTS: dict[str, tuple[object, str, Callable[..., bool]]] = {
    "the rule": (folding, "fold", lambda state, event, time_us: event.key == BAD),
    "history": (history, "write", _about_change),
    "vectors": (vectors, "of", _about_change),
    "items": (Items, "write", _about_change),
    "recency": (recency, "write", _about_change),
    "namespaces": (Namespaces, "write", _counts),
}
"""Where it fails: while the event is folded, or at the end of the batch it is in."""


def _break(patch: pytest.MonkeyPatch, name: str) -> None:
    owner, attribute, about = DEFECTS[name]
    patch.setattr(owner, attribute, _failing(getattr(owner, attribute), about))


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def _aside(store: EventStore) -> list[tuple[int, tuple[str, ...] | None, str | None]]:
    return [(each.offset, each.namespace, each.key) for each in store.status().quarantine]


# ---------------------------------------------------------------------- stop


@pytest.mark.parametrize("name", DEFECTS)
def test_it_stops_in_front_of_the_event(
    open_store: OpenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    folder = tmp_path / "store"
    store = open_store(index=INDEX)
    store.put(("a",), "first", {"t": "tea"})
    sound = rows(store)
    _break(monkeypatch, name)
    _append(folder, [_event("before", 1)], [_event("too", 1)], [_bad()], [_event("behind", 2)])
    assert keys_of(store) == {"first", "before", "too"}
    stopped = store.status().stopped
    assert stopped is not None and "partition 0, offset 3" in stopped and "ValueError" in stopped
    assert SECRET not in stopped and not any(SECRET in told for told in _errors(caplog))
    assert len(_errors(caplog)) == 1
    for write in (
        lambda: store.put(("a",), "more", {"t": "tea"}),
        lambda: store.delete(("a",), "first"),
    ):
        with pytest.raises(UnappliedEvent, match="offset 3"):
            write()
    assert log_end(folder) == 5
    assert BAD not in rows(store)["items"]
    assert len(rows(store)["history"]) == len(sound["history"]) + 2
    assert (store.status().lag, store.list_namespaces()) == (2, [("a",)])
    assert rebuild(store).position == "3" and "offset 3" in str(store.status().stopped)
    assert verify(store).exit_code == 0
    live = rows(store)
    store.close()
    with pytest.raises(UnappliedEvent, match="offset 3"):
        rebuild_at(folder)
    store = open_store(index=INDEX)
    assert rows(store) == live and "offset 3" in str(store.status().stopped)
    store.close()
    shutil.rmtree(folder / "views")
    store = open_store(index=INDEX)
    assert rows(store) == live and "offset 3" in str(store.status().stopped)
    store.close()
    monkeypatch.undo()
    # The defect is mended: it goes on from where it stood.
    store = open_store(index=INDEX)
    assert keys_of(store) == {"first", "before", "too", "bad", "behind"}
    assert store.status().stopped is None
    store.put(("a",), "more", {"t": "tea"})
    assert verify(store).exit_code == 0


def test_nothing_of_an_atomic_batch_is_shown_in_front_of_which_it_stops(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    store.put(("a",), "first", {"n": 1})
    _break(monkeypatch, "recency")
    _append(tmp_path / "store", [_event("one", 1)], [_event("two", 1), _bad(), _event("three", 1)])
    assert keys_of(store) == {"first", "one"}
    assert "offset 3" in str(store.status().stopped)


def test_a_writer_whose_own_event_fails_is_told_and_the_others_are_not(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    _break(monkeypatch, "history")
    runtime = runtime_of(store)
    good, bad = runtime.prepare([_event("good", 1)]), runtime.prepare([_bad()])
    done = runtime.write_all([good])
    appended = runtime._append([runtime.prepare([_event("too", 1)]), bad])
    assert not isinstance(done[0], BaseException) and not isinstance(appended[0], BaseException)
    assert isinstance(appended[1], ViewBehind) and isinstance(appended[1].__cause__, UnappliedEvent)
    assert keys_of(store) == {"good", "too"}
    with pytest.raises(UndecodableEvent, match="offset 2"):
        store.put(("a",), "k", {"n": 1})


# ---------------------------------------------------------------------- set aside


@pytest.mark.parametrize("name", DEFECTS)
def test_it_is_set_aside_live_and_in_a_rebuild(
    open_store: OpenStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    folder = tmp_path / "store"
    store = open_store(index=INDEX, config=QUARANTINE)
    store.put(("a",), "first", {"t": "tea"})
    _break(monkeypatch, name)
    _append(folder, [_event("before", 1)], [_bad()], [_event("behind", 2)])
    assert keys_of(store) == {"first", "before", "behind"}
    # Several of it, one in an atomic batch.
    _append(folder, [_event("one", 1), _bad(), _event("two", 2)], [_bad(2)], [_event("last", 3)])
    everything = {"first", "before", "behind", "one", "two", "last"}
    assert keys_of(store) == everything
    assert _aside(store) == [(offset, ("a", "b"), "bad") for offset in (2, 5, 7)]
    status = store.status()
    assert (status.quarantined, status.stopped, status.lag) == (3, None, 0)
    assert all("ValueError" in each.reason and SECRET not in each.reason for each in status.quarantine)
    assert len(_errors(caplog)) == 3
    assert store.get(("a", "b"), "bad") is None
    assert "offset 7 is set aside" in warnings_in(caplog)
    store.put(("a",), "own", {"t": "tea"})
    live, known = rows(store), digest(store)
    assert not any(BAD in key for family in live.values() for key in family)
    assert verify(store).exit_code == 0
    assert rebuild(store).quarantined == 3
    assert (rows(store), digest(store)) == (live, known)
    assert [hit[1] for hit in ranked(store, ["tea"])["tea"]] == ["first", "own"]
    store.close()
    shutil.rmtree(folder / "views")
    store = open_store(index=INDEX, config=QUARANTINE)
    assert (rows(store), digest(store)) == (live, known)


def test_the_event_is_found_that_fails_only_behind_others_of_its_batch(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(config=QUARANTINE)
    second = _failing(folding.fold, lambda state, event, time_us: event.key == BAD and state.version == 1)
    monkeypatch.setattr(folding, "fold", second)
    _append(tmp_path / "store", [_bad(1), _event("one", 1), _bad(2), _event("two", 2), _event("three", 3)])
    assert keys_of(store) == {"bad", "one", "two", "three"}
    assert [each[0] for each in _aside(store)] == [2]
    item = store.get(("a", "b"), "bad")
    assert item is not None and item.value["n"] == 1
    assert verify(store).exit_code == 0


def test_a_writer_whose_own_event_is_set_aside_is_told(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(config=QUARANTINE)
    _break(monkeypatch, "items")
    with pytest.raises(UnappliedEvent, match=r"in the log.*offset 0.*projector retry"):
        store.put(("a", "b"), "bad", {"n": 1})
    with pytest.raises(UnappliedEvent, match="offset 2"):
        store.batch([PutOp(("a",), "good", {"n": 1}), PutOp(("a", "b"), "bad", {"n": 2})])
    store.put(("a",), "own", {"n": 1})
    assert keys_of(store) == {"good", "own"}
    assert [each[0] for each in _aside(store)] == [0, 2]


def test_retry_applies_it_once_the_defect_is_mended(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "store"
    store = open_store(config=QUARANTINE)
    _break(monkeypatch, "recency")
    _append(folder, [_event("before", 1)], [_bad()], [_event("behind", 2)])
    assert keys_of(store) == {"before", "behind"}
    tried = retry_at(folder)
    assert (tried.exit_code, tried.quarantined) == (1, 1)
    assert [(each.offset, "ValueError" in each.reason) for each in tried.still] == [(1, True)]
    assert [each[0] for each in _aside(store)] == [1]
    monkeypatch.undo()
    done = retry_at(folder)
    assert (done.exit_code, done.quarantined, done.still) == (0, 1, [])
    assert keys_of(store) == {"before", "bad", "behind"} and _aside(store) == []
    assert verify(store).exit_code == 0


def test_from_outside(open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "store"
    open_store().close()
    _break(monkeypatch, "the rule")
    _append(folder, *([_event(f"k{number}", number)] for number in range(40)), [_bad()], [_event("last", 1)])
    with pytest.raises(UnappliedEvent, match="offset 40"):
        rebuild_at(folder)
    (done,) = rebuild_at(folder, quarantine=True)
    assert (done.outcome, done.position, done.quarantined) == ("exchanged", "42", 1)
    assert [each.offset for each in done.quarantine] == [40]
    (view,) = standing(folder).views
    assert (view.quarantined, view.lag, view.problem) == (1, 0, None)
    (report,) = verify_at(folder)
    assert report.exit_code == 0 and report.rows["quarantined"] == 1


# ---------------------------------------------------------------------- what is no event's fault


class _Passing(Exception):
    """As a signal's handler raises it, wherever the program is."""


def test_an_error_that_does_not_come_back_is_passed_on_and_the_event_is_applied(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(config=QUARANTINE)
    real, raised = history.write, []

    def once(*arguments: Any) -> None:
        if not raised:
            raised.append(True)
            raise _Passing
        real(*arguments)

    monkeypatch.setattr(history, "write", once)
    with pytest.raises(_Passing):
        store.put(("a",), "k", {"n": 1})
    assert raised == [True]
    assert keys_of(store) == {"k"} and _aside(store) == []
    store.put(("a",), "k", {"n": 2}, expected_version=1)
    assert verify(store).exit_code == 0


@pytest.mark.parametrize("error", [MemoryError("no"), RecursionError("no"), ViewError("no")])
def test_an_error_of_the_machine_is_not_taken_for_the_event_s(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    store = open_store(config=QUARANTINE)
    store.put(("a",), "first", {"n": 1})

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(history, "write", fail)
        with pytest.raises((type(error), ViewBehind)):
            store.put(("a",), "k", {"n": 1})
    store.put(("a",), "more", {"n": 1})
    assert keys_of(store) == {"first", "k", "more"}
    assert _aside(store) == [] and store.status().stopped is None
    assert verify(store).exit_code == 0


def test_the_view_follows_on_after_whatever_a_look_ended_with(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(config={"follow_interval": 0.01, "read_consistency": "eventual"})
    runtime = runtime_of(store)
    with monkeypatch.context() as patch:
        looked: list[bool] = []

        def fail() -> None:
            looked.append(True)
            raise _Passing(SECRET)

        patch.setattr(runtime._follower, "_step", fail)
        patch.setattr("projector.follower.PAUSE_SECONDS", 0.01)
        _until(lambda: len(looked) > 3)
        assert isinstance(runtime.trouble, ViewError) and "_Passing" in str(runtime.trouble)
        assert len(_errors(caplog)) == 1
    _append(tmp_path / "store", [_event("k", 1)])
    _until(lambda: store.get(("a",), "k") is not None)
    _until(lambda: runtime.trouble is None)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
