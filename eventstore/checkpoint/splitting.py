"""Where a serialized value is cut into parts, so that what two values share is stored once.

A value is cut between the elements of its outermost list or map, and of large ones in it, found by
skipping over the msgpack bytes: nothing is decoded, and what the elements are does not matter. Long
texts and bytes are cut into blocks. Head and parts, one after the other, are always exactly the value.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgpack

from eventstore.checkpoint.events import DIGEST_BYTES, Packed

WHOLE_BYTES: Final = 64
"""Values up to this size are not worth a name of their own."""
PART_BYTES: Final = ((1 << 20, 64), (1 << 24, 1 << 10), (1 << 62, 1 << 14))
"""Elements smaller than this share a part with their neighbours, by the size of the whole value:
naming a part takes 16 bytes, and all the names of a value stand in the event that names it anew."""
BLOCK_BYTES: Final = 4 * 1024
"""Size of the blocks that long texts and bytes are cut into."""
NESTED_PARTS: Final = 4
"""Elements as large as so many of the smallest parts are cut at their own elements: a message and the
same message with an id then share their text."""
DEEPEST: Final = 4
"""How many levels of elements are cut, since each one has parts of its own, however small."""
LARGEST_PART: Final = 256 * 1024
"""What is larger is cut, wherever that is."""
_MSGPACK: Final = "msgpack"
_SNAPSHOT: Final = 7
"""The extension type in which LangGraph keeps a delta channel's whole value."""

Digest = Callable[[bytes], bytes]


def digest(data: bytes) -> bytes:
    """The name of a part: 16 bytes of BLAKE2b, so that nobody can make two parts of one name."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


class Split(NamedTuple):
    """A value and its parts."""

    tag: str
    head: bytes
    body: bytes
    ends: Sequence[int]
    """Where each part ends in the body."""
    digests: tuple[bytes, ...]
    borders: Sequence[int] = ()
    """After how many parts an element of the outermost list or map ends, as far as that is known."""

    def part(self, number: int) -> bytes:
        """The bytes of one part."""
        return self.body[self.ends[number - 1] if number else 0 : self.ends[number]]

    def packed(self) -> Packed:
        """The value as it was given."""
        return Packed(self.tag, self.head + self.body)

    def name(self) -> bytes:
        """The digest of the whole value."""
        return value_digest(self.tag, self.head, self.digests)


def split(packed: Packed, name: Digest = digest, before: Split | None = None) -> Split:
    """The parts of a value; what an earlier value of its channel begins with, too, is not cut anew."""
    data = packed.data
    size, cuttable = _head(packed.tag, data)
    body = data[size:] if size else data
    if not cuttable:
        ends = _blocks(len(body))
        return Split(packed.tag, data[:size], body, ends, tuple(map(name, _pieces(body, ends, 0))))
    kept = borders_kept = 0
    if before is not None:
        borders_kept, kept = _shared(body, before)
    cutter = _Cutter(body, before, kept, borders_kept)
    names = [] if before is None else list(before.digests[:kept])
    names += map(name, _pieces(body, cutter.ends, kept))
    return Split(packed.tag, data[:size], body, cutter.ends, tuple(names), cutter.borders)


def value_digest(tag: str, head: bytes, digests: Sequence[bytes]) -> bytes:
    """The name of a whole value; equal values have one, wherever they were cut anew."""
    made = blake2b(digest_size=DIGEST_BYTES, person=b"es-value")
    made.update(b"%d:%b%d:%b" % (len(tag), tag.encode(), len(head), head))
    made.update(b"".join(digests))
    return made.digest()


def _shared(body: bytes, before: Split) -> tuple[int, int]:
    """How many borders, and parts in front of the last of them, both values have in common."""
    old, ends, borders = before.body, before.ends, before.borders
    if not borders or _least(len(old)) != _least(len(body)):
        return 0, 0
    if body.startswith(old):
        shared = len(borders)
    else:
        shared = bisect_right(
            borders, False, key=lambda parts: body[: ends[parts - 1]] != old[: ends[parts - 1]]
        )
    # More elements might have joined the last part if there had been any.
    shared = max(0, shared - 1)
    return shared, borders[shared - 1] if shared else 0


class _Cutter:
    """Finds the ends of the parts of a list's or map's elements, behind those that are known."""

    def __init__(self, body: bytes, before: Split | None, parts: int, borders: int) -> None:
        self.ends: list[int] = [] if before is None else list(before.ends[:parts])
        self.borders: list[int] = [] if before is None else list(before.borders[:borders])
        self._body = body
        self._least = _least(len(body))
        self._large = NESTED_PARTS * self._least
        start = self.ends[-1] if self.ends else 0
        if not self._elements(start, len(body)):
            # Not msgpack after all; it is stored as it is.
            self._cut(self.ends[-1] if self.ends else 0, len(body))
            self.borders.append(len(self.ends))

    def _elements(self, start: int, end: int, depth: int = 0) -> bool:
        """Cut between elements; whether there were such to the very end."""
        reader = msgpack.Unpacker(max_buffer_size=max(1, end - start))
        reader.feed(self._body[start:end])
        last = at = start
        try:
            while at < end:
                reader.skip()
                before, at = at, start + reader.tell()
                if at - before >= self._large and self._nested(last, before, at, depth + 1):
                    last = at
                elif at - last >= self._least:
                    self._cut(last, at)
                    last = at
                else:
                    continue
                if not depth:
                    self.borders.append(len(self.ends))
        except (ValueError, msgpack.UnpackException):
            return False
        if last < end:
            self._cut(last, end)
            if not depth:
                self.borders.append(len(self.ends))
        return True

    def _nested(self, pending: int, start: int, end: int, depth: int) -> bool:
        """Cut a large element at its own elements; what is pending before it goes with its head."""
        if depth > DEEPEST:
            return False
        size, cuttable = _head(_MSGPACK, self._body[start : start + 12], any_extension=True)
        if not cuttable or start + size >= end:
            return False
        kept = len(self.ends)
        self._cut(pending, start + size)
        if self._elements(start + size, end, depth):
            return True
        del self.ends[kept:]
        return False

    def _cut(self, start: int, end: int) -> None:
        if start < end:
            self.ends += [*range(start + LARGEST_PART, end, LARGEST_PART), end]


def _least(size: int) -> int:
    return next(least for limit, least in PART_BYTES if size <= limit)


def _pieces(body: bytes, ends: Sequence[int], first: int) -> Iterator[bytes]:
    start = ends[first - 1] if first else 0
    for number in range(first, len(ends)):
        yield body[start : ends[number]]
        start = ends[number]


def _blocks(size: int) -> list[int]:
    step = BLOCK_BYTES if size <= LARGEST_PART else LARGEST_PART
    return [*range(step, size, step), size]


def _head(tag: str, data: bytes, *, any_extension: bool = False) -> tuple[int, bool]:
    """How long the head of a value is, and whether elements follow it."""
    if tag != _MSGPACK or not data:
        return 0, False
    first = data[0]
    if 0x80 <= first <= 0x9F:
        return 1, True
    if first in _CONTAINERS:
        return _CONTAINERS[first], True
    size = _EXTENSIONS.get(first)
    if size is not None and len(data) > size and (any_extension or data[size - 1] == _SNAPSHOT):
        inner, cuttable = _head(tag, data[size : size + 6])
        return size + inner, cuttable
    return _TEXTS.get(first, 0), False


_CONTAINERS: Final = {0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}
_EXTENSIONS: Final = {0xC7: 3, 0xC8: 4, 0xC9: 6}
_TEXTS: Final = {0xD9: 2, 0xDA: 3, 0xDB: 5, 0xC4: 2, 0xC5: 3, 0xC6: 5}
