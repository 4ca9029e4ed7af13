"""Threads sealed under keys of their own: nothing readable on disk, and nothing at all without the key."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.types import Interrupt

from eventstore.checkpoint import EventSaver, FolderKeys
from eventstore.checkpoint.events import Delete, Put
from eventstore.errors import CheckpointSealed, InvalidConfig
from projector.checkpoints import tables
from tests.checkpoint.hooks import Hooked
from tests.checkpoint.kit import (
    checkpoint,
    config,
    events,
    everything,
    ids,
    put,
    rebuilt,
    rows,
    runtime_of,
    uncollected,
    values,
)

MASTER = bytes(range(32))
SECRET = "the secret of the sealed thread"


@pytest.fixture
def keys(tmp_path: Path) -> FolderKeys:
    return FolderKeys(tmp_path / "keys", MASTER)


def plain_in(folder: Path, *texts: str) -> set[str]:
    """Which texts stand readable in any file under a folder."""
    found = set()
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            found |= {text for text in texts if text.encode() in data}
    return found


def fill(saver: EventSaver, thread: str = "t") -> None:
    """A value of each size, metadata and an interrupt, each with a secret of its own."""
    given = {
        "small": f"{SECRET} 1",
        "text": f"{SECRET} 2 " * 400,
        "list": [HumanMessage(f"{SECRET} 3 {number}") for number in range(40)],
        "large": f"{SECRET} 4 " * 40_000,
        "map": {f"{SECRET} 5": [1, None]},
    }
    metadata: dict[str, Any] = {
        "source": "loop",
        "step": 1,
        "user": f"{SECRET} 6",
        "long": f"{SECRET} 7" * 2_000,
    }
    put(saver, thread, "1", given, metadata=metadata)
    interrupts = [("__interrupt__", (Interrupt(value=f"{SECRET} 8", id="i"),)), ("note", f"{SECRET} 9")]
    saver.put_writes(config(thread, "", "1"), interrupts, "task")
    put(saver, thread, "2", given | {"small": f"{SECRET} 10"}, parent="1")


def texts() -> list[str]:
    return [f"{SECRET} {number}" for number in range(1, 11)]


def test_nothing_that_a_thread_holds_is_readable_on_disk(tmp_path: Path, keys: FolderKeys) -> None:
    with EventSaver.open(tmp_path / "plain") as saver:
        fill(saver)
        runtime_of(saver)._view.db.default.flush()
    assert plain_in(tmp_path / "plain" / "checkpoints", *texts()), "this test looks for nothing"
    with EventSaver.open(tmp_path / "s", keys=keys) as saver:
        fill(saver)
        saver.copy_thread("t", "copy")
        saver.prune(["t"])
        runtime_of(saver)._view.db.default.flush()
        assert plain_in(tmp_path / "s", SECRET) == set()
        assert values(saver, "copy", "1")["small"] == f"{SECRET} 1"
    assert plain_in(tmp_path, SECRET) <= plain_in(tmp_path / "plain", SECRET)
    assert plain_in(tmp_path / "s", SECRET) == set()
    everything_read = rebuilt(tmp_path / "s", keys=keys)
    with everything_read as saver:
        assert values(saver, "t")["large"] == f"{SECRET} 4 " * 40_000
        found = saver.get_tuple(config("copy", "", "1"))
        assert found is not None
        assert dict(found.metadata)["user"] == f"{SECRET} 6"
        assert [value for _, _, value in found.pending_writes or ()][1] == f"{SECRET} 9"
        assert plain_in(tmp_path / "s", SECRET) == set()


def test_without_its_key_a_copy_of_the_log_is_unreadable(tmp_path: Path, keys: FolderKeys) -> None:
    """Replaying needs none; whoever reads is told. Threads beside it are as they were."""
    with EventSaver.open(tmp_path / "s", keys=keys) as saver:
        fill(saver)
        put(saver, "other", "1", {"n": 1})
        whole = rows(saver)
    shutil.copytree(tmp_path / "s", tmp_path / "backup")
    shutil.copytree(tmp_path / "keys", tmp_path / "old-keys")
    with EventSaver.open(tmp_path / "s", keys=keys) as saver:
        saver.delete_thread("t")
        assert saver.get_tuple(config("t")) is None
        assert ids(saver, "other") == ["1"]
        fill(saver)
        assert values(saver, "t")["small"] == f"{SECRET} 10"
    for given in (keys, None):
        with rebuilt(tmp_path / "backup", keys=given) as saver:
            assert rows(saver) == whole
            with pytest.raises(CheckpointSealed, match="t"):
                saver.get_tuple(config("t"))
            with pytest.raises(CheckpointSealed):
                list(saver.list(config("t"), filter={"step": 1}))
            with pytest.raises(CheckpointSealed):
                saver.get_delta_channel_history(config=config("t"), channels=["small"])
            with pytest.raises(CheckpointSealed):
                saver.copy_thread("t", "to")
            if given is not None:
                assert values(saver, "other") == {"n": 1}
    with rebuilt(tmp_path / "backup", keys=FolderKeys(tmp_path / "old-keys", MASTER)) as saver:
        assert values(saver, "t")["small"] == f"{SECRET} 10"


def test_sealed_bytes_that_were_moved_are_noticed(tmp_path: Path, keys: FolderKeys) -> None:
    """A part under another's name, a checkpoint's metadata in another's row, a flipped bit."""
    with EventSaver.open(tmp_path / "s", keys=keys) as saver:
        put(saver, "t", "1", {"a": "x" * 3000, "b": "y" * 3000}, metadata={"who": "ann"})
        put(saver, "t", "2", {"a": "x" * 3000, "b": "y" * 3000}, parent="1", metadata={"who": "bob"})
        put(saver, "u", "1", {"a": "x" * 3000}, metadata={"who": "ann"})
    for how in ("part", "row", "thread", "bit"):
        with rebuilt(tmp_path / "s", keys=keys) as saver:
            db = runtime_of(saver)._view.db.default
            before = rows(saver)
            parts = [key for key in before if key.startswith(tables.thread_prefix(tables.PART, "t"))]
            first, second = (tables.checkpoint_key(at) for at in map(_at, (("t", "1"), ("t", "2"))))
            if how == "part":
                db.put(parts[0], before[parts[1]])
                db.put(parts[1], before[parts[0]])
            elif how == "bit":
                changed = bytearray(before[parts[0]])
                changed[5] ^= 1
                db.put(parts[0], bytes(changed))
            else:
                source = first if how == "row" else tables.checkpoint_key(_at(("u", "1")))
                given = tables.row(_at(("t", "1")), before[source])
                kept = tables.row(_at(("t", "2")), before[second])
                db.put(second, tables.pack_row(kept._replace(metadata=given.metadata)))
            with pytest.raises(CheckpointSealed):
                saver.get_tuple(config("t", "", "2"))


def _at(place: tuple[str, str]) -> Any:
    return tables.Where(place[0], "", place[1])


@pytest.mark.parametrize("first", ["plain", "sealed"])
def test_keys_may_come_and_go_within_a_thread(tmp_path: Path, keys: FolderKeys, first: str) -> None:
    """What was written before is read as it was; what comes after is sealed, or is not."""
    items = [f"{number} {SECRET}" * 20 for number in range(30)]
    given: list[FolderKeys | None] = [None, keys, None, keys]
    for number, each in enumerate(given if first == "plain" else given[1:]):
        with EventSaver.open(tmp_path / "s", keys=each) as saver:
            parent = None
            if number:
                parent = f"{number - 1}-1"
                if each is not None:
                    assert values(saver, "t")["items"] == items[: 2 * number + 6]
            for step in range(2):
                made = checkpoint(
                    f"{number}-{step}",
                    {"items": items[: 2 * number + step + 7], "kept": items},
                    {"items": f"{number}-{step}", "kept": "1"},
                )
                new = {"items": f"{number}-{step}"} | ({"kept": "1"} if parent is None else {})
                saver.put(config("t", "", parent), made, {}, new)
                saver.put_writes(config("t", "", made["id"]), [("items", items[:3])], "task")
                parent = made["id"]
    with rebuilt(tmp_path / "s", keys=keys) as saver:
        found = everything(saver)
        assert len(found) == 2 * (4 if first == "plain" else 3)
        for each_found in found:
            number, step = map(int, each_found.checkpoint["id"].split("-"))
            kept = {"items": items[: 2 * number + step + 7], "kept": items}
            assert each_found.checkpoint["channel_values"] == kept
            assert each_found.pending_writes == [("task", "items", items[:3])]
        saver.copy_thread("t", "to")
        saver.prune(["t"])
        assert uncollected(saver, ["t"]) == []
        assert values(saver, "to") == values(saver, "t")


def test_an_encrypting_serializer_goes_on_top(tmp_path: Path, keys: FolderKeys) -> None:
    serde = _reversing
    for name, given in (("alone", None), ("both", keys)):
        with EventSaver.open(tmp_path / name, serde=serde(), keys=given) as saver:
            fill(saver, name)
            runtime_of(saver)._view.db.default.flush()
            assert plain_in(tmp_path / name, SECRET) == set()
            assert values(saver, name)["text"] == f"{SECRET} 2 " * 400
        with rebuilt(tmp_path / name, serde=serde(), keys=given) as saver:
            assert len(everything(saver)) == 2


class _Reverse:
    """A cipher that hides nothing from anybody but a search for the text."""

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "rev", bytes(byte ^ 0x55 for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        assert ciphername == "rev"
        return bytes(byte ^ 0x55 for byte in ciphertext)


def _reversing() -> EncryptedSerializer:
    return EncryptedSerializer(_Reverse(), JsonPlusSerializer(allowed_msgpack_modules=None))


# ------------------------------------------------------------------ keys that go while somebody writes


def test_a_put_that_overlaps_a_delete_can_be_read(tmp_path: Path, keys: FolderKeys) -> None:
    """Its key is destroyed between its being sealed and its being appended: it is sealed again."""
    serde = Hooked()
    with (
        EventSaver.open(tmp_path / "s", views=tmp_path / "other", keys=keys) as other,
        EventSaver.open(tmp_path / "s", keys=keys, serde=serde) as saver,
    ):
        serde.at_dump = lambda: other.delete_thread("t")
        put(saver, "t", "1", {"n": "now", "big": SECRET * 99})
        for each in (saver, other):
            assert values(each, "t") == {"n": "now", "big": SECRET * 99}
        serde.at_dump = lambda: other.delete_thread("t")
        saver.put_writes(config("t", "", "2"), [("n", "now")], "task")
        put(saver, "t", "2", {"n": 1}, parent="1")
        for each in (saver, other):
            found = each.get_tuple(config("t"))
            assert found is not None
            assert found.pending_writes == [("task", "n", "now")]
    assert plain_in(tmp_path / "s", SECRET) == set()


def test_a_delete_removes_what_was_put_before_its_key_was_destroyed(tmp_path: Path) -> None:
    class Slow(FolderKeys):
        def destroy(self, thread: str) -> None:
            if not put_meanwhile:
                put_meanwhile.append(True)
                put(saver, thread, "late", {"n": 1})
            super().destroy(thread)

    put_meanwhile: list[bool] = []
    keys = Slow(tmp_path / "keys", MASTER)
    with EventSaver.open(tmp_path / "s", keys=keys) as saver:
        put(saver, "t", "1", {"n": 1})
        saver.delete_thread("t")
        assert put_meanwhile
        assert saver.get_tuple(config("t")) is None
        assert keys.get("t") is None
    assert [type(event) for event in events(tmp_path / "s")] == [Put, Delete, Put, Delete]


def test_puts_and_deletes_at_once_leave_nothing_unreadable(tmp_path: Path, keys: FolderKeys) -> None:
    """One delete at a random moment of each put."""
    stop = threading.Event()
    with EventSaver.open(tmp_path / "s", keys=keys) as saver, ThreadPoolExecutor() as pool:

        def delete(seconds: float) -> None:
            time.sleep(seconds)
            saver.delete_thread("t")

        def read() -> None:
            while not stop.wait(0.001):
                keys.get("t")

        reading = pool.submit(read)
        chance = random.Random(1)
        for number in range(60):
            deleting = pool.submit(delete, chance.random() * 0.006)
            put(saver, "t", f"{number:03d}", {"n": number})
            deleting.result(30)
            for found in everything(saver):
                assert found.checkpoint["channel_values"]["n"] == int(found.checkpoint["id"])
        stop.set()
        reading.result(30)


# ------------------------------------------------------------------ the folder of keys


def test_a_key_is_made_once_and_is_gone_when_destroyed(tmp_path: Path, keys: FolderKeys) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(keys.make, ["t"] * 40))) == 1
    again = FolderKeys(tmp_path / "keys", MASTER)
    assert again.get("t") == keys.get("t") == keys.make("t")
    assert keys.make("u") != keys.make("t")
    before = keys.make("t")
    again.destroy("t")
    again.destroy("t")
    assert keys.get("t") is None
    assert keys.make("t") != before


def test_a_key_half_destroyed_is_destroyed(tmp_path: Path, keys: FolderKeys) -> None:
    """The process died between overwriting and removing its file."""
    before = keys.make("t")
    (path,) = (path for path in (tmp_path / "keys").iterdir() if path.stat().st_size > 1)
    path.write_bytes(bytes(path.stat().st_size))
    assert keys.get("t") is None
    after = keys.make("t")
    assert after != before
    assert keys.get("t") == after
    keys.destroy("t")
    assert keys.get("t") is None


def test_another_master_key_opens_nothing(tmp_path: Path, keys: FolderKeys) -> None:
    key = keys.make("t")
    other = FolderKeys(tmp_path / "keys", bytes(32))
    assert other.get("t") is None, "its files have names of their own"
    assert other.make("t") != key
    names = {path.name for path in (tmp_path / "keys").iterdir()}
    assert not any(name == "t" for name in names)
    (mine, *_) = (path for path in (tmp_path / "keys").iterdir() if path.stat().st_size > 1)
    mine.write_bytes(mine.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointSealed, match="'t'"):
        keys.get("t"), other.get("t")


@pytest.mark.parametrize("master", [b"", bytes(16), bytes(33)])
def test_a_master_key_of_another_size(tmp_path: Path, master: bytes) -> None:
    with pytest.raises(InvalidConfig, match="32"):
        FolderKeys(tmp_path / "keys", master)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidConfig, match="cannot be made"):
        FolderKeys(tmp_path / "file" / "keys", MASTER)


def test_a_folder_that_is_not_there(tmp_path: Path, keys: FolderKeys) -> None:
    """The put says so, and nothing of it is in the log."""
    with EventSaver.open(tmp_path / "s", keys=keys) as saver:
        put(saver, "t", "1", {"n": 1})
        shutil.move(tmp_path / "keys", tmp_path / "away")
        with pytest.raises(CheckpointSealed, match="cannot be kept"):
            put(saver, "u", "1", {"n": 1})
        with pytest.raises(CheckpointSealed, match="cannot be destroyed"):
            keys.destroy("t")
        with pytest.raises(CheckpointSealed, match="is not here"):
            saver.get_tuple(config("t"))
        shutil.move(tmp_path / "away", tmp_path / "keys")
        put(saver, "u", "2", {"n": 2})
        assert [each.checkpoint["id"] for each in everything(saver)] == ["2", "1"]


def test_the_folder_of_keys_is_its_owners_alone(tmp_path: Path, keys: FolderKeys) -> None:
    keys.make("t")
    assert os.stat(tmp_path / "keys").st_mode & 0o077 == 0
