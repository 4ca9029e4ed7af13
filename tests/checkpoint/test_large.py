"""Events larger than a record: any of them, however it is read, cut off or mixed with others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from eventstore.checkpoint import EventSaver, FolderKeys, enveloping
from eventstore.checkpoint.enveloping import Opener
from eventstore.checkpoint.events import (
    SEALED,
    Assembled,
    Delete,
    Drop,
    Event,
    Fragment,
    Packed,
    Part,
    Parts,
    Put,
    Where,
    Write,
    Writes,
    encode,
)
from eventstore.checkpoint.splitting import digest
from eventstore.log import Record, StoredRecord
from tests.checkpoint.kit import (
    SMALL,
    config,
    events,
    ids,
    put,
    rebuilt,
    records,
    rows,
    runtime_of,
    type_of,
    uncollected,
    values,
)
from tests.checkpoint.test_keys import plain_in

BROKER_BYTES = 1_000_000
"""What Kafka takes in one record, unless it is told otherwise."""
MASTER = bytes(range(32))
SHIFTED = bytes(byte ^ 0x55 for byte in range(256))
CARRIERS = (b"cp.fragment/1", b"cp.large/1")
STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)


class Shifting:
    """A cipher that stands for others."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "shift", plaintext.translate(SHIFTED)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return ciphertext.translate(SHIFTED)


# ------------------------------------------------------------------ every call, within a broker's own limit


def lists(saver: EventSaver) -> None:
    """24 of them change in one superstep."""
    given = {f"list{n}": list(range(n << 20, (n << 20) + 90_000)) for n in range(24)}
    put(saver, "t", "1", {"n": 1})
    put(saver, "t", "2", given, parent="1")
    assert values(saver, "t") == given


def channels(saver: EventSaver) -> None:
    """Their names and what they are removed by, too."""
    given = {f"channel {n} {'c' * 80}": n for n in range(15_000)}
    put(saver, "t", "1", given)
    assert values(saver, "t") == given
    put(saver, "t", "2", {"n": 1}, parent="1")
    assert values(saver, "t") == {"n": 1}


def writes(saver: EventSaver) -> None:
    given = [(f"channel {n} {'c' * 1_100}", f"{n} {'v' * 100}") for n in range(5_000)]
    put(saver, "t", "1", {"n": 1})
    for _ in range(2):  # again, as whoever retries does
        saver.put_writes(config("t", "", "1"), given, "task")
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert found.pending_writes == [("task", channel, value) for channel, value in given]


def dropped(saver: EventSaver) -> None:
    """Many checkpoints in one prune, hidden ones among them."""
    delta = {"counters_since_delta_snapshot": {"d": [1, 1]}}
    for n in range(300):
        id, parent = f"{n:04d}{'i' * 4_000}", f"{n - 1:04d}{'i' * 4_000}" if n else None
        put(saver, "t", id, {"n": n}, parent=parent, metadata=delta if n % 2 else None)
    saver.prune(["t"])
    assert [id[:4] for id in ids(saver, "t")] == ["0299"]
    assert sum(row.hidden for row in runtime_of(saver).checkpoints.of_thread("t")) == 299


def long_text(saver: EventSaver) -> None:
    """A body and metadata of any size, and a value."""
    noise = random.Random(1).randbytes(900_000).hex()
    put(saver, "t", "1", {"x": noise}, metadata={"note": noise[::-1]}, versions={"x": "1", noise: "1"})
    found = saver.get_tuple(config("t"))
    assert found is not None
    assert dict(found.metadata)["note"] == noise[::-1]
    assert found.checkpoint["channel_versions"] == {"x": "1", noise: "1"}


CALLS: list[Callable[[EventSaver], None]] = [lists, channels, writes, dropped, long_text]


@pytest.mark.parametrize("call", CALLS)
def test_whatever_is_saved_is_in_records_that_a_broker_takes(
    tmp_path: Path, call: Callable[[EventSaver], None]
) -> None:
    with EventSaver.open(tmp_path / "s") as saver:
        call(saver)
        saver.copy_thread("t", "copy")
        whole = saver.get_tuple(config("t"))
        assert whole is not None
        live = rows(saver)
    found = records(tmp_path / "s")
    assert max(len(record.key) + len(record.value or b"") for record in found) < BROKER_BYTES
    assert sum(type_of(record) == b"cp.large/1" for record in found) > 0
    with rebuilt(tmp_path / "s") as saver:
        assert rows(saver) == live
        copied = saver.get_tuple(config("copy"))
        assert copied is not None
        assert (copied.checkpoint, copied.metadata, copied.pending_writes) == whole[1:3] + whole[4:]
        assert uncollected(saver, ["copy"]) == []
        saver.delete_thread("t")
        saver.delete_thread("copy")
        assert [key for key in rows(saver) if key[:1] in b"cktvnpf"] == []


@pytest.mark.parametrize("kind", ["keys", "serializer"])
def test_what_is_sealed_stays_sealed_in_fragments(tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"serde": EncryptedSerializer(Shifting(), STRICT)}
    if kind == "keys":
        options = {"keys": FolderKeys(tmp_path / "keys", MASTER)}
    secret = "a secret of many a fragment"
    given = {f"{n} {'c' * 500}": [f"{secret} {n}"] * 9 for n in range(1_500)}
    with EventSaver.open(tmp_path / "s", **options) as saver:
        put(saver, "t", "1", given)
        saver.put_writes(config("t", "", "1"), [(f"{n} {'c' * 900}", secret) for n in range(900)], "task")
        saver.copy_thread("t", "copy")
        assert values(saver, "copy") == given
        runtime_of(saver)._view.db.default.flush()
        live = rows(saver)
    assert plain_in(tmp_path / "s", secret) == set()
    carried = [each for each in records(tmp_path / "s") if type_of(each) in CARRIERS]
    assert len(carried) > 6
    encodings = {dict(record.headers).get("encoding") for record in carried}
    assert encodings == ({SEALED} if kind == "keys" else {None})
    with rebuilt(tmp_path / "s", **options) as saver:
        assert rows(saver) == live
        found = saver.get_tuple(config("copy", "", "1"))
        assert found is not None
        assert found.checkpoint["channel_values"] == given
        assert len([value for _, _, value in found.pending_writes or () if value == secret]) == 900


@pytest.mark.usefixtures("small")
def test_a_value_whose_names_alone_are_more_than_a_record(tmp_path: Path) -> None:
    chance = random.Random(1)
    given = [chance.randbytes(100) for _ in range(2_000)]
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "1", {"x": given})
        given = chance.sample(given, 2_000)  # all parts are there, and none follows its neighbour of before
        put(saver, "t", "2", {"x": given}, parent="1")
        saver.put_writes(config("t", "", "2"), [("x", given[::-1])], "task")
        assert values(saver, "t") == {"x": given}
        live = rows(saver)
    assert max(len(record.value or b"") for record in records(tmp_path / "s")) <= SMALL
    with rebuilt(tmp_path / "s") as saver:
        assert rows(saver) == live
        assert values(saver, "t") == {"x": given}


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("size", [SMALL, 50_000])
def test_a_copy_brings_once_what_its_events_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, sealed: bool
) -> None:
    """With those before it: the last checkpoint's values, and what several tasks wrote."""
    monkeypatch.setattr(enveloping, "RECORD_BYTES", size)
    keys = FolderKeys(tmp_path / "keys", MASTER) if sealed else None
    chance = random.Random(1)
    noise = [chance.randbytes(150) for _ in range(800)]
    with EventSaver.open(tmp_path / "s", keys=keys) as saver:
        for number in range(4):
            id, parent = str(number), str(number - 1) if number else None
            put(saver, "t", id, {"a": noise[: 300 + 100 * number], "b": noise[::-1][number:]}, parent=parent)
            for task in ("one", "two", "three"):
                written = [("a", noise[number * 100 :]), ("b", [task, *noise[:200]])]
                saver.put_writes(config("t", "", id), written, task)
        put(saver, "to", "0", {"a": noise[:10]})
        saver.copy_thread("t", "to")
        mine, theirs = (list(saver.list(config(thread))) for thread in ("t", "to"))
        assert [each[1:3] + each[4:] for each in mine] == [each[1:3] + each[4:] for each in theirs]
        saver.prune(["to"])
        assert uncollected(saver, ["to"]) == []
        live = rows(saver)
    brought = [
        part.digest or digest(part.data)
        for event in events(tmp_path / "s")
        if isinstance(event, (Put, Writes)) and event.at.thread == "to"
        for part in event.parts
    ]
    assert len(brought) == len(set(brought)) > len(noise)
    with rebuilt(tmp_path / "s", keys=keys) as saver:
        assert rows(saver) == live


# ------------------------------------------------------------------ bytes

EXAMPLES: list[Event] = [
    Put(
        Where("t", "n", "1"), "0", (0, 7), Packed("m", b"b"), Packed("m", b"m"), ("gone",),
        (("c", Assembled("msgpack", b"\xdd", b"a" * 16, (b"d" * 16, 0))),), (Part(b"p" * 500),),
        "run", "0:9", True,
    ),
    Writes(Where("t", "n", "1"), "task", "~x", (Write(-3, "c", Packed("m", b"w" * 500)),), (), True),
    Parts(Where("t"), (Part(b"p" * 500, b"d" * 16),), True),
    Drop(Where("t"), tuple(("n", str(number)) for number in range(200)), (("", "1"),), 9),
    Delete(Where("t")),
]  # fmt: skip


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_an_event_comes_out_of_its_records_as_it_went_in(
    event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In as many as it takes, and equal events in equal ones."""
    whole = encode(event)
    counts = set()
    for size in [1, 3, 100, *range(len(whole.value or b"") - 3, len(whole.value or b"") + 200)]:
        monkeypatch.setattr(enveloping, "RECORD_BYTES", size)
        made = enveloping.records(event)
        assert made == enveloping.records(event)
        opener = Opener()
        seen = [opener.event(record) for record in stamped(made)]
        assert seen[-1] == event
        assert all(isinstance(each, Fragment) for each in seen[:-1])
        assert all(len(record.value or b"") <= max(size, 10) for record in made) or len(made) == 1
        counts.add(len(made))
    assert min(counts) == 1 and (len(counts) > 3) is not isinstance(event, Delete)


def stamped(made: Sequence[Record], session: bytes = bytes(16), first: int = 1) -> list[StoredRecord]:
    return [
        StoredRecord(0, number, 0, 0, session, number, *record) for number, record in enumerate(made, first)
    ]
