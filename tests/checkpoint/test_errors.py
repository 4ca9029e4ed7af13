"""What goes wrong: calls nobody can answer, events nobody can read, disks, closed savers, forked children."""

from __future__ import annotations

import asyncio
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgpack
import pytest

from eventstore.checkpoint import EventSaver
from eventstore.checkpoint.events import Packed, Put, Where, encode, key_of
from eventstore.errors import (
    EventStoreError,
    InvalidConfig,
    InvalidInput,
    InvalidType,
    LogDamaged,
    LogFull,
    UnappliedEvent,
    UndecodableEvent,
    ViewDamaged,
    ViewError,
)
from eventstore.log import EmbeddedLog, Record
from projector.checkpoints import tables
from tests.checkpoint.kit import (
    checkpoint,
    config,
    everything,
    ids,
    put,
    rebuilt,
    rows,
    runtime_of,
    values,
)
from tests.kafka.kit import within

WRONG: list[tuple[Any, type[EventStoreError]]] = [
    ({}, InvalidType),
    (None, InvalidType),
    ("t", InvalidType),
    ({"configurable": None}, InvalidType),
    ({"configurable": {}}, InvalidInput),
    ({"configurable": {"thread_id": None}}, InvalidInput),
    ({"configurable": {"thread_id": b"t"}}, InvalidType),
    ({"configurable": {"thread_id": ["t"]}}, InvalidType),
    ({"configurable": {"thread_id": "t", "checkpoint_ns": ["x"]}}, InvalidType),
    ({"configurable": {"thread_id": "t", "checkpoint_id": {"a": 1}}}, InvalidType),
    ({"configurable": {"thread_id": "\ud800"}}, InvalidInput),
    ({"configurable": {"thread_id": "t", "checkpoint_ns": "\ud800"}}, InvalidInput),
    ({"configurable": {"thread_id": "t", "checkpoint_id": "\udfff"}}, InvalidInput),
]


def test_configs_that_name_nothing(tmp_path: Path) -> None:
    made = checkpoint("1", {})
    calls: list[Callable[[Any], object]] = [
        lambda given: saver.get_tuple(given),
        lambda given: saver.put(given, made, {}, {}),
        lambda given: saver.put_writes(given, [("a", 1)], "task"),
        lambda given: saver.get_delta_channel_history(config=given, channels=["a"]),
        lambda given: asyncio.run(saver.aput(given, made, {}, {})),
        lambda given: asyncio.run(saver.aget_tuple(given)),
    ]
    with EventSaver.open(tmp_path / "s") as saver:
        for given, error in WRONG:
            for call in calls:
                with pytest.raises(error):
                    call(given)
            if given is not None:
                with pytest.raises(error):
                    saver.list(given)
        assert everything(saver) == []


def test_calls_that_mean_nothing(tmp_path: Path) -> None:
    with EventSaver.open(tmp_path / "s") as saver:
        for call, error in (
            (lambda: saver.list(config("t"), limit=-1), InvalidInput),
            (lambda: saver.put_writes(config("t"), [("a", 1)], "task"), InvalidInput),
            (lambda: saver.prune(["t"], strategy="keep some"), InvalidInput),
            (lambda: saver.delete_thread(cast(Any, None)), InvalidType),
            (lambda: saver.copy_thread(cast(Any, b"a"), "b"), InvalidType),
            (lambda: saver.delete_thread("\ud800"), InvalidInput),
            (lambda: EventSaver.from_store(cast(Any, "store")), InvalidType),
            (lambda: EventSaver.open(tmp_path / "s", config={"nothing": 1}), InvalidConfig),
            (lambda: EventSaver.open("nowhere://x"), InvalidConfig),
        ):
            with pytest.raises(error):
                call()
        saver.delete_thread("none")
        saver.prune(["none"])
        saver.copy_thread("none", "t")
        saver.delete_for_runs(["none"])
        saver.put_writes(config("t", "", "1"), [], "task")
        assert rows(saver).keys() == rows_of_nothing(tmp_path)


def rows_of_nothing(folder: Path) -> Any:
    with EventSaver.open(folder / "nothing") as saver:
        return rows(saver).keys()


# ------------------------------------------------------------------ events nobody can read

GOOD = encode(Put(Where("t", "", "2"), None, None, Packed("m", b"x"), Packed("m", b"x"), (), (), ()))


def _of(value: Any) -> Record:
    return GOOD._replace(value=msgpack.packb(value))


POISON = {
    "of a later release": GOOD._replace(headers=(("type", b"cp.put/2"),)),
    "of no type": GOOD._replace(headers=()),
    "in another encoding": GOOD._replace(headers=(*GOOD.headers, ("encoding", b"rot13"))),
    "no msgpack": GOOD._replace(value=b"\xc1"),
    "cut": GOOD._replace(value=(GOOD.value or b"")[:-1]),
    "empty": GOOD._replace(value=None),
    "too few fields": _of([None, None]),
    "a value of no part": _of([None, None, ["m", b"x"], ["m", b"x"], [], [["c", "m", b"", None, [7]]], []]),
    "fields of other types": _of([None, None, 5, ["m", b"x"], [], [], []]),
    "a key of no thread": GOOD._replace(key=b"\x07"),
    "a key of four labels": GOOD._replace(key=key_of(Where("t", "", "2")) * 2),
    "a drop of two fields": GOOD._replace(
        headers=(("type", b"cp.dropped/1"),), value=msgpack.packb([[["", "1"]], []])
    ),
    "parts that are none": GOOD._replace(headers=(("type", b"cp.parts/1"),), value=msgpack.packb([5, "x"])),
}


def poison(folder: Path, record: Record) -> None:
    """Append what no saver would."""
    log = EmbeddedLog.open(folder / "checkpoints")
    try:
        (result,) = log.append([log.prepare([record])], lambda lists: None)
        assert isinstance(result, list)
    finally:
        log.close()


@pytest.mark.parametrize("kind", POISON)
def test_an_event_that_cannot_be_read_stops_all_but_reads_by_id(tmp_path: Path, kind: str) -> None:
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"n": 1})
    poison(tmp_path / "s", POISON[kind])
    if kind == "of no type":
        shutil.rmtree(tmp_path / "s" / "views")  # one made anew stops where the old one does
    with EventSaver.open(tmp_path / "s") as saver:
        assert values(saver, "t", "1") == {"n": 1}
        with pytest.raises(UndecodableEvent, match="offset 1"):
            saver.get_tuple(config("t"))
        with pytest.raises(UndecodableEvent, match="offset 1"):
            put(saver, "t", "3", {"n": 3})
        with pytest.raises(UndecodableEvent):
            saver.delete_thread("t")


def test_events_that_cannot_be_read_are_set_aside(tmp_path: Path) -> None:
    aside = {"on_undecodable": "quarantine"}
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"n": 1})
    for number, record in enumerate(POISON.values()):
        poison(tmp_path / "s", record)
        if not number:
            with EventSaver.open(tmp_path / "s", config=aside) as saver:
                put(saver, "t", "3", {"n": 3}, parent="1")
    with EventSaver.open(tmp_path / "s", config=aside) as saver:
        put(saver, "t", "4", {"n": 4}, parent="3")
        assert ids(saver, "t") == ["4", "3", "1"]
        assert runtime_of(saver)._view.quarantine.count == len(POISON)
        live = rows(saver)
    with rebuilt(tmp_path / "s", config=aside) as saver:
        assert rows(saver) == live


def test_an_event_of_ones_own_that_is_set_aside_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of this release, say: the put says that nobody sees it."""
    with EventSaver.open(tmp_path / "s", config={"on_undecodable": "quarantine"}) as saver:
        put(saver, "t", "1", {"n": 1})
        pack = tables.pack_row

        def broken(row: Any) -> bytes:
            if row.at.id == "2":
                raise ValueError("no row can be made of it")
            return pack(row)

        monkeypatch.setattr(tables, "pack_row", broken)
        with pytest.raises(UnappliedEvent, match="sets it aside"):
            put(saver, "t", "2", {"n": 2}, parent="1")
        put(saver, "t", "3", {"n": 3}, parent="1")
        assert ids(saver, "t") == ["3", "1"]


# ------------------------------------------------------------------ disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB, where this machine lets us make one."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(place)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this machine does not let us mount a file system")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def noise(id: str) -> bytes:
    """Bytes that no compression makes room for, of three records."""
    return random.Random(id).randbytes(2_000_000)


def fill(saver: EventSaver) -> tuple[list[str], EventStoreError]:
    """Put until it is refused."""
    done: list[str] = []
    while True:
        id = f"{len(done):04d}"
        try:
            put(saver, "t", id, {"n": id, "big": noise(id)}, parent=done[-1] if done else None)
        except EventStoreError as error:
            return done, error
        done.append(id)


def attempted(saver: EventSaver, id: str, parent: str | None) -> EventStoreError | None:
    try:
        put(saver, "t", id, {"n": id}, parent=parent)
    except EventStoreError as error:
        return error
    return None


@pytest.mark.parametrize("full", ["log", "view"])
def test_a_full_disk_refuses_puts_and_loses_none(small_disk: Path, tmp_path: Path, full: str) -> None:
    """States of several records among them: what did not fit as a whole is not there in part."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 << 20))
    where, views = (small_disk, tmp_path) if full == "log" else (tmp_path, small_disk)
    options: dict[str, Any] = {"views": views / "views", "config": {"segment_bytes": 1 << 20}}
    saver = EventSaver.open(where / "s", **options)
    done, error = fill(saver)
    assert isinstance(error, LogFull if full == "log" else ViewError), repr(error)
    assert len(done) > 3
    if full == "log":
        assert ids(saver, "t") == done[::-1]
        assert values(saver, "t")["n"] == done[-1]
    ballast.unlink()
    assert within(20, lambda: attempted(saver, "9998", done[-1]) is None)
    put(saver, "t", "9999", {"n": "9999"}, parent="9998")
    live = rows(saver)
    saver.close()
    with EventSaver.open(where / "s", views=tmp_path / "fresh") as saver:
        assert rows(saver) == live
        assert set(done) <= set(ids(saver, "t"))
        for each in everything(saver):
            found = each.checkpoint["channel_values"]
            assert found["n"] == each.checkpoint["id"]
            assert found.get("big", b"") in (b"", noise(found["n"]))


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    with EventSaver.open(tmp_path / "s", config={"segment_bytes": 8192}) as saver:
        for number in range(8):
            put(saver, "t", f"{number}", {"x": bytes([number]) * 3_000})
    path = sorted((tmp_path / "s" / "checkpoints").glob("*.seg"))[0]
    data = bytearray(path.read_bytes())
    data[300] ^= 0xFF
    path.write_bytes(bytes(data))
    with EventSaver.open(tmp_path / "s") as saver:
        assert len(ids(saver, "t")) == 8, "the view does not need what it has applied"
    shutil.rmtree(tmp_path / "s" / "views")
    with pytest.raises(LogDamaged, match=path.name):
        EventSaver.open(tmp_path / "s")


def test_a_part_missing_from_the_view_is_damage(tmp_path: Path) -> None:
    """Not something to be tried again for ever; the log is intact, and so is a view made from it."""
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"x": "x" * 30_000})
        saver.put_writes(config("t", "", "1"), [("y", "y" * 900)], "task")
        put(saver, "t", "2", {"x": 1}, parent="1", metadata={"note": "n" * 30_000})
    with EventSaver.open(tmp_path / "s") as saver:
        for key in rows(saver):
            if key.startswith(tables.PART):
                runtime_of(saver)._view.db.default.delete(key)
        with pytest.raises(ViewDamaged, match="The log is intact"):
            saver.get_tuple(config("t"))
        with pytest.raises(ViewDamaged):
            list(saver.list(config("t")))
        with pytest.raises(ViewDamaged):
            saver.prune(["t"])
    with EventSaver.open(tmp_path / "s") as saver:
        assert values(saver, "t", "1") == {"x": "x" * 30_000}
