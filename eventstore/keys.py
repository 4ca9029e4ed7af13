"""(namespace, key) to bytes and back: reversible, ordered, and with whole-label prefixes.

A label is ``02``, its UTF-8 with ``00`` written ``01 01`` and ``01`` written ``01 02``, then
``00``. The labels are followed by ``01`` and by the key's UTF-8, unescaped, to the end.

* No two (namespace, key) pairs share an encoding, whatever their text.
* Byte order is the order of the label tuples, then of the keys, by code point.
* ``encode_namespace(a)`` is a byte prefix of ``encode_namespace(b)`` exactly when the labels of
  ``a`` are the first labels of ``b``: ``("a",)`` never reaches into ``("ab",)``.
* The memories of a namespace sort before those of its children.

Which labels and keys a caller may use is decided in :mod:`eventstore.namespaces`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from eventstore.errors import InvalidInput

LABEL: Final = b"\x02"
END_LABEL: Final = b"\x00"
END_NAMESPACE: Final = b"\x01"
TOUCH_PREFIX: Final = b"\x00"
"""First byte of the key of records about a memory that must not replace its own in a compacted
copy; no encoded namespace begins with it."""
EMBED_PREFIX: Final = TOUCH_PREFIX + b"e"
"""The same for further vectors of a memory, apart from its refreshes: encoded keys begin with 01 or 02."""
MODEL_KEY: Final = TOUCH_PREFIX + b"model"
"""Key of records that say which embedding model is of record; they are about no memory."""

_CACHED_BYTES: Final = 512
_CACHED_ENTRIES: Final = 16_384
# Bounded in bytes too (long namespaces stay out), which an LRU of tuples would not be.
_encoded: dict[tuple[str, ...], bytes] = {}
_decoded: dict[bytes, tuple[str, ...]] = {}
_ancestors: dict[bytes, tuple[bytes, ...]] = {}


def escape(data: bytes) -> bytes:
    """``data`` without a zero byte, in the same order; works byte by byte, so prefixes stay prefixes."""
    return data.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01")


def unescape(data: bytes) -> bytes:
    """The bytes that :func:`escape` was given. Raises ``InvalidInput`` for what it never makes."""
    if b"\x01" not in data and b"\x00" not in data:
        return data
    plain = data.replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01")
    if escape(plain) != data:
        raise InvalidInput("bytes with a broken escape; they are not part of an encoded key")
    return plain


def encode_namespace(namespace: tuple[str, ...]) -> bytes:
    """The labels only, without the end of the namespace: the prefix of everything under it."""
    found = _encoded.get(namespace)
    if found is not None:
        return found
    data = encode_labels(namespace)
    if len(data) <= _CACHED_BYTES:
        if len(_encoded) >= _CACHED_ENTRIES:
            _encoded.clear()
        _encoded[namespace] = data
    return data


def decode_namespace(data: bytes) -> tuple[str, ...]:
    """The labels of :func:`encode_namespace`. Raises ``InvalidInput`` for any other bytes."""
    found = _decoded.get(data)
    if found is not None:
        return found
    namespace = decode_labels(data)
    if len(data) <= _CACHED_BYTES:
        if len(_decoded) >= _CACHED_ENTRIES:
            _decoded.clear()
        _decoded[data] = namespace
    return namespace


def encode_labels(labels: Iterable[str]) -> bytes:
    """Texts one after the other, of which no two sequences have the same bytes; in their order."""
    return b"".join([LABEL + escape(label.encode()) + END_LABEL for label in labels])


def decode_labels(data: bytes) -> tuple[str, ...]:
    """The texts of :func:`encode_labels`. Raises ``InvalidInput`` for any other bytes."""
    if not data:
        return ()
    *parts, rest = data.split(END_LABEL)
    if rest or not all(part.startswith(LABEL) for part in parts):
        raise InvalidInput("bytes that are not an encoded namespace")
    return tuple([_text(unescape(part[1:])) for part in parts])


def encode_item(namespace: tuple[str, ...], key: str) -> bytes:
    """The bytes under which one memory is stored, and which its events carry."""
    return encode_namespace(namespace) + END_NAMESPACE + key.encode()


def decode_item(data: bytes) -> tuple[tuple[str, ...], str]:
    """Namespace and key of :func:`encode_item`. Raises ``InvalidInput`` for any other bytes."""
    end = namespace_end(data)
    return decode_namespace(data[:end]), _text(data[end + 1 :])


def check_item(data: bytes) -> None:
    """Raise ``InvalidInput`` as :func:`decode_item` would, without giving what it gives."""
    end = data.find(END_LABEL + END_NAMESPACE) + 1
    if data[:end] not in _decoded or not end:
        decode_item(data)
    else:
        _text(data[end + 1 :])


def memory_of(record: bytes) -> bytes:
    """The encoded item that a record is about, given the record's key."""
    return record.removeprefix(EMBED_PREFIX if record.startswith(EMBED_PREFIX) else TOUCH_PREFIX)


def namespace_end(data: bytes) -> int:
    """How many leading bytes of an encoded item are its encoded namespace."""
    if data.startswith(END_NAMESPACE):
        return 0
    # Labels hold no zero byte, so the first 00 01 is where the labels stop, whatever the key holds.
    end = data.find(END_LABEL + END_NAMESPACE) + 1
    if not end:
        raise InvalidInput("bytes that are not an encoded memory key: they have no end of a namespace")
    return end


def ancestors(data: bytes) -> tuple[bytes, ...]:
    """Of an encoded namespace: the encodings of ``()``, of each ancestor and of itself, shortest first."""
    known = _ancestors.get(data)
    if known is not None:
        return known
    found = [b""]
    end = data.find(0) + 1
    while end:
        found.append(data[:end])
        end = data.find(0, end) + 1
    made = tuple(found)
    if len(data) <= _CACHED_BYTES:
        if len(_ancestors) >= _CACHED_ENTRIES:
            _ancestors.clear()
        _ancestors[data] = made
    return made


def after(prefix: bytes) -> bytes | None:
    """The smallest bytes above everything that begins with ``prefix``; ``None`` when there are none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidInput("bytes that are not an encoded memory key: part of them is not UTF-8") from None
