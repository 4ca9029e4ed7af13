"""Fragments of large events, as no saver would leave them: parted, crossing each other, broken, left over."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgpack
import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from eventstore.checkpoint import EventSaver, enveloping
from eventstore.checkpoint.events import (
    Assembled,
    Fragment,
    Large,
    Packed,
    Part,
    Parts,
    Put,
    Where,
    Write,
    Writes,
    encode,
)
from eventstore.checkpoint.splitting import split
from eventstore.errors import UndecodableEvent
from eventstore.log import Record
from projector.checkpoints import tables
from projector.rocks import scan
from tests.checkpoint.kit import (
    SMALL,
    config,
    events,
    ids,
    put,
    rebuilt,
    rows,
    runtime_of,
    type_of,
    uncollected,
    values,
    writer,
)

STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)


def large_put(id: str, thread: str = "t") -> list[Record]:
    """Of a checkpoint whose value is noise, in four records or more."""
    value = split(Packed(*STRICT.dumps_typed([random.Random(id).randbytes(90) for _ in range(20)])))
    parts = tuple(Part(value.part(number)) for number in range(len(value.digests)))
    described = Assembled("msgpack", value.head, None, tuple(range(len(parts))))
    body, metadata = plain(id)
    made = enveloping.records(
        Put(Where(thread, "", id), None, None, body, metadata, (), (("x", described),), parts)
    )
    assert len(made) > 3
    return made


def plain(version: str) -> tuple[Packed, Packed]:
    """Body and metadata of a checkpoint with one channel."""
    body = {"v": 4, "ts": "", "channel_versions": {"x": version}, "versions_seen": {}}
    return Packed(*STRICT.dumps_typed(body)), Packed(*STRICT.dumps_typed({"source": "loop"}))


def value_of(id: str) -> Any:
    return {"x": [random.Random(id).randbytes(90) for _ in range(20)]}


def fragments(saver: EventSaver) -> int:
    return sum(key.startswith(tables.FRAGMENT) for key in rows(saver))


@pytest.mark.usefixtures("small")
def test_a_fold_that_stops_between_fragments_goes_on(tmp_path: Path) -> None:
    """Nothing is visible of the event before its last record, and nothing is left of its fragments then."""
    made = large_put("1")
    with EventSaver.open(tmp_path / "s") as saver:
        assert ids(saver, "t") == []
    with writer(tmp_path / "s") as append:
        for number, record in enumerate(made):
            append(record)
            with EventSaver.open(tmp_path / "s") as saver:
                done = number == len(made) - 1
                assert ids(saver, "t") == (["1"] if done else [])
                assert fragments(saver) == (0 if done else number + 1)
                assert [each.thread for each in saver.threads()] == (["t"] if done else [])
                live = rows(saver)
            with rebuilt(tmp_path / "s") as saver:
                assert rows(saver) == live
    with EventSaver.open(tmp_path / "s") as saver:
        assert values(saver, "t") == value_of("1")
        assert uncollected(saver, ["t"]) == []


@pytest.mark.usefixtures("small")
def test_events_of_several_writers_that_cross_each_other(tmp_path: Path) -> None:
    """As transactions do in a partition; of one thread and of two."""
    with EventSaver.open(tmp_path / "s") as saver:
        assert ids(saver, "t") == []
    made = [large_put("1"), large_put("2"), large_put("3", "u"), large_put("1")]
    with (
        writer(tmp_path / "s") as one,
        writer(tmp_path / "s") as two,
        writer(tmp_path / "s") as three,
        writer(tmp_path / "s") as four,
    ):
        for each in zip(*made, strict=False):
            for append, record in zip((one, two, three, four), each, strict=True):
                append(record)
        for append, some in zip((one, two, three, four), made, strict=True):
            append(*some[min(map(len, made)) :])
    with EventSaver.open(tmp_path / "s") as saver:
        assert [values(saver, "t", "1"), values(saver, "t", "2")] == [value_of("1"), value_of("2")]
        assert values(saver, "u", "3") == value_of("3")
        assert fragments(saver) == 0
        live = rows(saver)
    with rebuilt(tmp_path / "s") as saver:
        assert rows(saver) == live


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("what", ["prune", "delete"])
def test_fragments_that_are_left_over_go_with_a_prune_or_a_delete(tmp_path: Path, what: str) -> None:
    """The event that then comes does not count, and its writer is told so; another one's does."""
    made = large_put("3")
    with EventSaver.open(tmp_path / "s") as saver, writer(tmp_path / "s") as append:
        put(saver, "t", "1", {"n": 1})
        put(saver, "t", "2", {"n": 2}, parent="1")
        size = runtime_of(saver).checkpoints.size("t")
        append(*made[:-1])
        assert fragments(saver) == len(made) - 1
        assert runtime_of(saver).checkpoints.size("t") > size + SMALL
        if what == "prune":
            saver.prune(["t"])
            assert uncollected(saver, ["t"]) == []
        else:
            saver.delete_thread("t")
        assert fragments(saver) == 0
        append(made[-1])
        assert ids(saver, "t") == (["2"] if what == "prune" else [])
        append(*made)
        assert values(saver, "t") == value_of("3")
        live = rows(saver)
    with rebuilt(tmp_path / "s") as saver:
        assert rows(saver) == live


@pytest.mark.usefixtures("small")
def test_what_lost_its_fragments_on_the_way_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put, and a prune, too: another process may sweep between the records of a transaction."""
    with EventSaver.open(tmp_path / "s") as saver:
        runtime = runtime_of(saver)
        write = runtime.write
        lost: list[bytes] = []
        loses = True

        def swept(batch: Any) -> Any:
            nonlocal loses
            if type_of(batch.records[-1]) == b"cp.large/1":
                if loses:
                    lost.append(dict(batch.records[-1].headers)["of"])
                    batch = runtime.prepare(batch.records[1:])
                loses = not loses
            return write(batch)

        monkeypatch.setattr(runtime, "write", swept)
        for number in range(60):
            put(saver, "t", f"{number:02d}{'i' * 20}", {"x": random.Random(number).randbytes(900)})
        saver.put_writes(config("t", "", f"59{'i' * 20}"), [("x", ["w" * 99] * 20)], "task")
        saver.prune(["t"])
        assert [id[:2] for id in ids(saver, "t")] == ["59"]
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert found.pending_writes == [("task", "x", ["w" * 99] * 20)]
        assert set(lost) == {b"cp.put/1", b"cp.dropped/1"}
        assert uncollected(saver, ["t"]) == []
        live = rows(saver)
    monkeypatch.undo()
    with rebuilt(tmp_path / "s") as saver:
        assert rows(saver) == live


# ------------------------------------------------------------------ what nobody can read


def broken(value: bytes, of: bytes = b"cp.put/1") -> list[Record]:
    """A large event whose fragments come to some bytes."""
    at = Where("t", "", "2")
    pieces = [value[:1], value[1:]]
    return [*(encode(Fragment(Where("t"), each)) for each in pieces), encode(Large(at, (("type", of),), 2))]


BROKEN = {
    "no msgpack": broken(b"\xc1\xc1"),
    "too few fields": broken(msgpack.packb([None, None])),
    "a value of no part": broken(
        msgpack.packb([None, None, ["m", b"x"], ["m", b"x"], [], [["c", "m", b"", None, [7]]], []])
    ),
    "cut": broken(msgpack.packb([None, None, ["m", b"x"], ["m", b"x"], [], [], []])[:-1]),
    "of a later release": broken(b"12", b"cp.put/2"),
    "of another large one": broken(b"12", b"cp.large/1"),
    "of a fragment": broken(b"12", b"cp.fragment/1"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_large_event_that_cannot_be_read_stops_all_but_reads_by_id(tmp_path: Path, kind: str) -> None:
    """In front of its whole batch; what came before it in the same commit is there."""
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"n": 1})
        before = rows(saver)
    good = encode(Fragment(Where("t"), b"of nothing"))
    with writer(tmp_path / "s") as append:
        append(good, *BROKEN[kind])
    for _ in range(2):
        with EventSaver.open(tmp_path / "s") as saver:
            assert values(saver, "t", "1") == {"n": 1}
            with pytest.raises(UndecodableEvent, match="offset 4"):
                saver.get_tuple(config("t"))
            with pytest.raises(UndecodableEvent, match="offset 4"):
                put(saver, "t", "3", {"n": 3})
            assert dict_of(saver) == before


def dict_of(saver: EventSaver) -> dict[bytes, bytes]:
    """The rows of a view that stopped."""
    return dict(scan(runtime_of(saver)._view.db.default, b""))


def test_large_events_that_cannot_be_read_are_set_aside(tmp_path: Path) -> None:
    """They alone; others of the same commit are applied."""
    aside = {"on_undecodable": "quarantine"}
    with EventSaver.open(tmp_path / "s", config=aside) as saver:
        put(saver, "t", "1", {"n": 1})
    other = encode(Put(Where("t", "", "2"), None, None, *plain("2"), (), (), ()))
    with writer(tmp_path / "s") as append:
        for each in BROKEN.values():
            append(*each, other)
    with EventSaver.open(tmp_path / "s", config=aside) as saver:
        put(saver, "t", "3", {"n": 3}, parent="1")
        assert ids(saver, "t") == ["3", "2", "1"]
        assert runtime_of(saver)._view.quarantine.count == len(BROKEN)
        live = rows(saver)
    with rebuilt(tmp_path / "s", config=aside) as saver:
        assert rows(saver) == live
        saver.prune(["t"])
        assert uncollected(saver, ["t"]) == []


@pytest.mark.parametrize("count", [2, 3, 10**12])
def test_a_large_event_without_its_fragments_does_not_count(tmp_path: Path, count: int) -> None:
    """A prune came between, say; no less for a number of them that nobody has."""
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"n": 1})
        before = {key: data for key, data in rows(saver).items() if key[:1] not in b"wm"}
        with writer(tmp_path / "s") as append:
            large = Large(Where("t", "", "9"), (("type", b"cp.put/1"),), count)
            append(encode(Fragment(Where("t"), b"x")), encode(large))
        assert {key: data for key, data in rows(saver).items() if key[:1] not in b"wm"} == before
        put(saver, "t", "2", {"n": 2}, parent="1")
        assert ids(saver, "t") == ["2", "1"]


# ------------------------------------------------------------------ what was written before


def test_parts_that_were_sent_ahead_of_their_events_are_read(tmp_path: Path) -> None:
    """So it was done once: the events name by digest what records in front of them bring."""
    given = [random.Random(1).randbytes(90) for _ in range(50)]
    value = split(Packed(*STRICT.dumps_typed(given)))
    parts = [Part(value.part(number)) for number in range(len(value.digests))]
    described = Assembled("msgpack", value.head, None, value.digests)
    at = Where("t", "", "1")
    with EventSaver.open(tmp_path / "s") as saver:
        assert ids(saver, "t") == []
    with writer(tmp_path / "s") as append:
        append(
            *(encode(Parts(Where("t"), tuple(some))) for some in (parts[:20], parts[20:])),
            encode(Put(at, None, None, *plain("1"), (), (("x", described),), ())),
            encode(Writes(at, "task", "", (Write(0, "x", described),), ())),
        )
    with EventSaver.open(tmp_path / "s") as saver:
        found = saver.get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": given}
        assert found.pending_writes == [("task", "x", given)]
        put(saver, "t", "2", {"x": [*given, "new"]}, parent="1")
        assert values(saver, "t") == {"x": [*given, "new"]}
    assert len([event for event in events(tmp_path / "s") if isinstance(event, Parts)]) == 2
