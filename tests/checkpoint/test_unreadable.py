"""Bytes that the saver's serializer does not load: of another program, another cipher, another key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from eventstore.checkpoint import EventSaver
from eventstore.checkpoint.events import Packed, Put, Where, Write, Writes, encode
from eventstore.errors import CheckpointUnreadable
from tests.checkpoint.kit import config, ids, put, rows, values, writer
from tests.checkpoint.test_fragments import plain

SECRET = "what the state says"


class Aes:
    """A cipher of LangGraph's serializer."""

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "aes", bytes(12) + self._cipher.encrypt(bytes(12), plaintext, None)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        return bytes(self._cipher.decrypt(ciphertext[:12], ciphertext[12:], None))


def serde(key: bytes) -> EncryptedSerializer:
    return EncryptedSerializer(Aes(key), JsonPlusSerializer(allowed_msgpack_modules=None))


# ------------------------------------------------------------------ by another program

GARBAGE = {
    "cut msgpack": Packed("msgpack", b"\xdc\xff\xff"),
    "no json": Packed("json", b"{"),
    "of an unknown form": Packed("parquet", SECRET.encode()),
    "badly shrunk": Packed("z|msgpack", b"\xff\xff\xff\xff"),
}
PLACES = {
    "body": "the body",
    "metadata": "the metadata",
    "value": "the value of channel 'x'",
    "write": "what task 'task' wrote to 'x'",
}
HISTORY = ["value", "write"]


def foreign(folder: Path, where: str, garbage: Packed) -> None:
    """A checkpoint, and writes at it, of which one thing is garbage; and another one behind it."""
    at = Where("t", "inner", "2")
    body, metadata = plain("2")
    given = {"body": body, "metadata": metadata, "value": Packed("null", b""), "write": Packed("null", b"")}
    given[where] = garbage
    made = Put(at, None, None, given["body"], given["metadata"], (), (("x", given["value"]),), ())
    with EventSaver.open(folder) as saver:
        put(saver, "t", "1", {"n": 1}, namespace="inner")
        put(saver, "other", "1", {"n": 1})
    with writer(folder) as append:
        append(encode(made), encode(Writes(at, "task", "", (Write(0, "x", given["write"]),), ())))
        append(
            encode(made._replace(at=at._replace(id="3"), body=body, metadata=metadata, values=(), parent="2"))
        )


READS: list[Callable[[EventSaver], Any]] = [
    lambda saver: saver.get_tuple(config("t", "inner", "2")),
    lambda saver: list(saver.list(config("t", "inner"))),
    lambda saver: list(saver.list(None)),
    lambda saver: asyncio.run(saver.aget_tuple(config("t", "inner", "2"))),
    lambda saver: asyncio.run(_listed(saver)),
]


async def _listed(saver: EventSaver) -> Any:
    return [each async for each in saver.alist(config("t", "inner"))]


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("where", PLACES)
def test_garbage_of_another_program_is_told_where_it_is(tmp_path: Path, where: str, kind: str) -> None:
    foreign(tmp_path / "s", where, GARBAGE[kind])
    with EventSaver.open(tmp_path / "s") as saver:
        for read in READS:
            with pytest.raises(CheckpointUnreadable) as caught:
                read(saver)
            said = str(caught.value)
            assert said.startswith(f"{PLACES[where]} in checkpoint '2' of thread 't' does not load (")
            assert "delete the thread" in said and SECRET not in said
            assert caught.value.__cause__ is not None and not caught.value.retriable
        if where in HISTORY:
            with pytest.raises(CheckpointUnreadable, match=PLACES[where]):
                saver.get_delta_channel_history(config=config("t", "inner", "3"), channels=["x"])
        # What it does not concern is as it was, and what is said can be done.
        assert values(saver, "t", "1", "inner") == {"n": 1}
        found = saver.get_tuple(config("t", "inner", "3"))
        assert found is not None
        assert len(saver.checkpoints("t")) == 3
        put(saver, "t", "4", {"n": 4}, parent="3", namespace="inner")
        assert values(saver, "t", namespace="inner") == {"n": 4}
        saver.delete_thread("t")
        assert ids(saver, "t") == [] and ids(saver, "other") == ["1"]


@pytest.mark.parametrize("where", ["body", "metadata"])
def test_a_field_that_is_no_mapping(tmp_path: Path, where: str) -> None:
    foreign(tmp_path / "s", where, Packed(*JsonPlusSerializer().dumps_typed([1])))
    with EventSaver.open(tmp_path / "s") as saver:
        for read in READS:
            with pytest.raises(CheckpointUnreadable, match=f"{where} in checkpoint '2'"):
                read(saver)


def test_a_thread_with_garbage_is_copied_as_it_is(tmp_path: Path) -> None:
    """Nothing is loaded for that."""
    foreign(tmp_path / "s", "metadata", GARBAGE["of an unknown form"])
    with EventSaver.open(tmp_path / "s") as saver:
        saver.copy_thread("t", "copy")
        assert values(saver, "copy", "3", "inner") == {}
        with pytest.raises(CheckpointUnreadable, match="the metadata in checkpoint '2' of thread 'copy'"):
            saver.get_tuple(config("copy", "inner", "2"))


def test_what_goes_is_not_guessed_from_metadata_that_does_not_load(tmp_path: Path) -> None:
    """Which checkpoints delta channels are rebuilt from stands there."""
    foreign(tmp_path / "s", "metadata", GARBAGE["cut msgpack"])
    with EventSaver.open(tmp_path / "s") as saver:
        put(saver, "t", "4", {"n": 4}, parent="3", namespace="inner")
        before = rows(saver)
        for act in (
            lambda: saver.thin_out(keep=3),
            lambda: saver.thin_out(keep=3, dry_run=True),
        ):
            with pytest.raises(CheckpointUnreadable, match="the metadata in checkpoint '2'"):
                act()
        assert rows(saver) == before


def test_a_checkpoint_behind_one_that_does_not_load_is_refused(tmp_path: Path) -> None:
    """What it has of its parent cannot be told, and a checkpoint without it would be another one."""
    foreign(tmp_path / "s", "body", GARBAGE["cut msgpack"])
    with EventSaver.open(tmp_path / "s") as saver:
        with pytest.raises(CheckpointUnreadable, match="the body in checkpoint '2'"):
            put(saver, "t", "4", {"n": 4}, parent="2", namespace="inner")
        put(saver, "t", "4", {"n": 4}, parent="1", namespace="inner")
        assert values(saver, "t", "4", "inner") == {"n": 4}


# ------------------------------------------------------------------ ciphers


@pytest.mark.parametrize("given", ["another key", "none"])
def test_without_the_cipher_s_key_it_is_said_what_is_missing(tmp_path: Path, given: str) -> None:
    with EventSaver.open(tmp_path / "s", serde=serde(bytes(16))) as saver:
        put(saver, "t", "1", {"x": [SECRET] * 100})
        saver.put_writes(config("t", "", "1"), [("x", SECRET)], "task")
    wrong: dict[str, Any] = {"serde": serde(bytes(range(16)))} if given == "another key" else {}
    with EventSaver.open(tmp_path / "s", **wrong) as saver:
        for read in (
            lambda: saver.get_tuple(config("t")),
            lambda: next(saver.list(config("t"))),
            lambda: asyncio.run(saver.aget_tuple(config("t"))),
            lambda: put(saver, "t", "2", {"n": 2}, parent="1"),
        ):
            with pytest.raises(CheckpointUnreadable) as caught:
                read()
            said = str(caught.value)
            assert "in checkpoint '1' of thread 't' is encrypted ('aes') and does not load" in said
            assert "the key, that it was written with" in said and SECRET not in said
        assert [each.step for each in saver.checkpoints("t")] == [None]
    with EventSaver.open(tmp_path / "s", serde=serde(bytes(16))) as saver:
        assert values(saver, "t") == {"x": [SECRET] * 100}


# ------------------------------------------------------------------ while writing


class Unwilling(JsonPlusSerializer):
    """Does not write what is secret; and loads nothing when told so."""

    loads = True

    def __init__(self) -> None:
        super().__init__(allowed_msgpack_modules=None)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if obj == SECRET:
            raise LookupError("not this one")
        return super().dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        if not self.loads:
            raise TimeoutError("the key service does not answer")
        return super().loads_typed(data)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_serializer_raises_while_it_writes_comes_as_it_is(tmp_path: Path, asynchronous: bool) -> None:
    unwilling = Unwilling()

    def done(sync: Callable[[], Any], coroutine: Callable[[], Any]) -> Any:
        return asyncio.run(coroutine()) if asynchronous else sync()

    with EventSaver.open(tmp_path / "s", serde=unwilling) as saver:
        at = put(saver, "t", "1", {"x": 1})
        before = rows(saver)
        given: Any = {
            "v": 4, "id": "2", "ts": "", "channel_values": {"x": SECRET}, "channel_versions": {"x": "2"},
            "versions_seen": {}, "updated_channels": None,
        }  # fmt: skip
        with pytest.raises(LookupError, match="not this one"):
            done(
                lambda: saver.put(at, given, {}, {"x": "2"}),
                lambda: saver.aput(at, given, {}, {"x": "2"}),
            )
        with pytest.raises(LookupError, match="not this one"):
            done(
                lambda: saver.put_writes(at, [("x", SECRET)], "task"),
                lambda: saver.aput_writes(at, [("x", SECRET)], "task"),
            )
        # A parent that just now does not load is not taken for none: who puts is told.
        unwilling.loads = False
        given["channel_values"] = {"x": 2}
        with pytest.raises(CheckpointUnreadable, match="the body in checkpoint '1'") as caught:
            done(
                lambda: saver.put(at, given, {}, {"x": "2"}),
                lambda: saver.aput(at, given, {}, {"x": "2"}),
            )
        assert isinstance(caught.value.__cause__, TimeoutError)
        assert rows(saver) == before
        unwilling.loads = True
        put(saver, "t", "2", {"x": 2}, parent="1")
        assert values(saver, "t") == {"x": 2}
