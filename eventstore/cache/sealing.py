"""Digests of cache keys, and the sealing of values where a secret is set.

Without a secret a digest hides a key text as well as the text is hard to guess, and values are in
the log as they are. With one (32 bytes in Base64, in ``EVENTSTORE_CACHE_KEY``) digests are keyed
and values are sealed with AES-GCM; who has the log and not the secret learns sizes and times.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import os
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

from eventstore.errors import InvalidConfig, UndecodableEvent

ENVIRONMENT: Final = "EVENTSTORE_CACHE_KEY"
SECRET_BYTES: Final = 32
DIGEST_BYTES: Final = 32
_NONCE_BYTES: Final = 12


class Seal:
    """Makes digests, and closes and opens values."""

    def __init__(self, secret: bytes | None = None) -> None:
        """Raises ``InvalidConfig`` for a secret of another size, or where the cipher is missing."""
        self.name: bytes | None = None
        """How values are sealed; ``None``: not at all."""
        self._digest_key = b""
        self._cipher: Any = None
        if secret is None:
            return
        if len(secret) != SECRET_BYTES:
            raise InvalidConfig(f"the cache's secret has {len(secret)} bytes; it must have {SECRET_BYTES}")
        try:
            ciphers = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
        except ModuleNotFoundError as error:
            raise InvalidConfig(
                "sealing cache values needs cryptography: pip install 'eventstore-langgraph[crypto]'"
            ) from error
        self.name = b"aes-gcm/1"
        self._digest_key = blake2b(secret, digest_size=DIGEST_BYTES, person=b"es-digest-key").digest()
        self._cipher = ciphers.AESGCM(blake2b(secret, digest_size=32, person=b"es-value-key").digest())

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Seal:
        """With the secret in ``EVENTSTORE_CACHE_KEY``, if there is one. Raises ``InvalidConfig``."""
        text = environment.get(ENVIRONMENT)
        if not text:
            return cls()
        try:
            return cls(base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True))
        except binascii.Error:
            raise InvalidConfig(
                f"{ENVIRONMENT} is not Base64; it holds {SECRET_BYTES} random bytes"
            ) from None

    def digest(self, space: str, text: bytes) -> bytes:
        """What stands for a key in the log."""
        return blake2b(text, digest_size=DIGEST_BYTES, key=self._digest_key, person=space.encode()).digest()

    def close(self, value: bytes, digest: bytes) -> bytes:
        """A value sealed for the entry it belongs to."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed: bytes = self._cipher.encrypt(nonce, value, digest)
        return nonce + sealed

    def open(self, sealed: bytes, digest: bytes) -> bytes:
        """The value. Raises ``UndecodableEvent`` for another secret's, or a changed one."""
        try:
            value: bytes = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], digest)
        except Exception as error:
            # Its InvalidTag cannot be named here: the package is optional.
            raise UndecodableEvent(f"a cache value does not open ({type(error).__name__})") from None
        return value
