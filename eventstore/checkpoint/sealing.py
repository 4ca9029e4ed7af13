"""Keys of threads: what is sealed under one cannot be read anywhere once it is destroyed.

Parts, checkpoints and metadata are sealed with AES-GCM before they are appended, so the log and
every view of it hold sealed bytes only, and replaying needs no key. A part's digest is keyed and
is its nonce, so equal parts of a thread are still stored once, and a part that is moved to another
name cannot be opened. What stays readable: thread, namespace, checkpoint, task, run and channel
names, sizes and times.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Protocol

from eventstore.checkpoint.events import DIGEST_BYTES, Packed, Where
from eventstore.checkpoint.splitting import digest
from eventstore.errors import CheckpointSealed, InvalidConfig

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class ThreadKeys(Protocol):
    """Where the keys of threads are kept, outside of the log. Safe for threads and processes."""

    def get(self, thread: str) -> bytes | None:
        """A thread's key of 32 bytes; ``None`` where there is none, or none any more."""

    def make(self, thread: str) -> bytes:
        """A thread's key, made if it has none; durable before it is returned."""

    def destroy(self, thread: str) -> None:
        """Forget a thread's key for good. Without a word where there is none."""


class FolderKeys:
    """Keys in a folder, a file each, wrapped under a master key of 32 bytes.

    A backup of this folder brings destroyed keys back: keep it apart from those of the log, and short.
    """

    def __init__(self, folder: str | Path, master: bytes) -> None:
        """Raises ``InvalidConfig`` for another size, a folder that cannot be made, or a missing cipher."""
        if len(master) != KEY_BYTES:
            raise InvalidConfig(f"the master key has {len(master)} bytes; it must have {KEY_BYTES}")
        self._cipher = _cipher(master)
        self._names = blake2b(master, digest_size=KEY_BYTES, person=b"es-thread-names").digest()
        self._folder = Path(folder).expanduser().absolute()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidConfig(
                f"the folder for keys {self._folder} cannot be made: {error.strerror}"
            ) from error

    def get(self, thread: str) -> bytes | None:
        """See :class:`ThreadKeys`. Raises ``CheckpointSealed`` where the master key is another one."""
        with self._typed("be read"):
            try:
                return self._read(thread)
            except CheckpointSealed:
                with self._alone():
                    return self._read(thread)  # it may have been read while it was being destroyed

    def make(self, thread: str) -> bytes:
        """See :class:`ThreadKeys`. Raises ``CheckpointSealed``, for a full disk as well."""
        found = self.get(thread)
        if found is not None:
            return found
        with self._typed("be kept"), self._alone():
            found = self._read(thread)
            if found is not None:
                return found
            key = secrets.token_bytes(KEY_BYTES)
            unfinished = self._folder / "unfinished"
            with unfinished.open("wb") as file:
                file.write(_closed(self._cipher, key, thread.encode()))
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._path(thread))
            self._sync()
        return key

    def destroy(self, thread: str) -> None:
        """See :class:`ThreadKeys`. The file is overwritten, then removed. Raises ``CheckpointSealed``."""
        path = self._path(thread)
        with self._typed("be destroyed"), self._alone():
            try:
                with path.open("r+b") as file:
                    file.write(bytes(path.stat().st_size))
                    file.flush()
                    os.fsync(file.fileno())
                path.unlink()
            except FileNotFoundError:
                return
            self._sync()

    def _read(self, thread: str) -> bytes | None:
        try:
            data = self._path(thread).read_bytes()
        except FileNotFoundError:
            return None
        if not any(data):
            return None  # whoever destroyed it did not come to remove the file
        return _opened(self._cipher, data, thread.encode(), f"the key of thread {thread!r}")

    @contextmanager
    def _typed(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheckpointSealed(
                f"the key of a thread cannot {what} in {self._folder}: {error.strerror}"
            ) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else, in any process, makes or destroys a key meanwhile."""
        descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have the file open, too
            os.close(descriptor)

    def _path(self, thread: str) -> Path:
        return self._folder / blake2b(thread.encode(), digest_size=16, key=self._names).hexdigest()

    def _sync(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Seal:
    """How one thread's bytes are named, closed and opened; without a key they are as they are."""

    def __init__(self, key: bytes | None = None) -> None:
        self._cipher: Any = None
        self._key = key
        self._naming = b""
        if key is not None:
            self._naming = blake2b(key, digest_size=KEY_BYTES, person=b"es-part-names").digest()
            self._cipher = _cipher(blake2b(key, digest_size=KEY_BYTES, person=b"es-part-bytes").digest())

    @property
    def closes(self) -> bool:
        """Whether bytes are sealed."""
        return self._cipher is not None

    def is_under(self, key: bytes | None) -> bool:
        """Whether this is the seal of a key, or of none."""
        return self._key == key

    def digest(self, data: bytes) -> bytes:
        """The name of a part."""
        if self._cipher is None:
            return digest(data)
        return blake2b(data, digest_size=DIGEST_BYTES, key=self._naming).digest()

    def close_part(self, name: bytes, data: bytes) -> bytes:
        """A part's bytes for the log."""
        return data if self._cipher is None else bytes(self._cipher.encrypt(name[:_NONCE_BYTES], data, name))

    def open_part(self, name: bytes, data: bytes) -> bytes:
        """A part's bytes from the view. Raises ``CheckpointSealed`` where they are not what was sealed."""
        if self._cipher is None:
            return data
        try:
            return bytes(self._cipher.decrypt(name[:_NONCE_BYTES], data, name))
        except Exception as error:
            raise CheckpointSealed(
                "part of a checkpoint does not open: it was changed, or its key was"
            ) from error

    def close(self, packed: Packed, at: Where, what: bytes) -> Packed:
        """What stands in an event itself."""
        if self._cipher is None:
            return packed
        return Packed(packed.tag, _closed(self._cipher, packed.data, _context(packed.tag, at, what)))

    def open(self, packed: Packed, at: Where, what: bytes) -> Packed:
        """What :meth:`close` was given. Raises ``CheckpointSealed``."""
        if self._cipher is None:
            return packed
        about = f"checkpoint {at.id} of thread {at.thread!r}"
        return Packed(packed.tag, _opened(self._cipher, packed.data, _context(packed.tag, at, what), about))


def _context(tag: str, at: Where, what: bytes) -> bytes:
    return b"\x00".join((what, tag.encode(), *(b"%d:%b" % (len(text), text.encode()) for text in at)))


def _cipher(key: bytes) -> Any:
    try:
        return importlib.import_module("cryptography.hazmat.primitives.ciphers.aead").AESGCM(key)
    except ModuleNotFoundError as error:
        raise InvalidConfig(
            "sealing threads needs cryptography: pip install 'eventstore-langgraph[crypto]'"
        ) from error


def _closed(cipher: Any, data: bytes, context: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + bytes(cipher.encrypt(nonce, data, context))


def _opened(cipher: Any, data: bytes, context: bytes, about: str) -> bytes:
    try:
        return bytes(cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], context))
    except Exception as error:
        raise CheckpointSealed(f"{about} does not open: it was changed, or the key is another one") from error
