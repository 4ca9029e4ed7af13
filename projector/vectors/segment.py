"""A sealed part: rows in key order, in one memory-mapped file that never changes.

The file holds, after a 64-byte header: vectors (float32, as given) padded to 8 bytes, norms
(float64), where each key begins (uint64, and where the last ends), the key filter, the keys.
Numbers are little-endian, places count from the start of the file.
Only ``died`` is kept in memory; the manifest saves it. The file proves nothing about
itself: its checksum stands in the manifest.
"""

from __future__ import annotations

import mmap
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from projector.vectors.files import FileRecord, UnusableFile
from projector.vectors.limits import ALIVE, Flags, Floats32, Floats64, Numbers, Offsets
from projector.vectors.part import successor
from projector.vectors.scoring import Rows, is_tame

if TYPE_CHECKING:
    from projector.vectors.graph import Graph

_HEADER = struct.Struct("<8sQQ40x")
_MAGIC = b"vecseg1\n"
_STRIDE = 16
_PROBES = (0, 21, 42)

digest_of = xxhash.xxh3_64_intdigest
"""The 64 bits of a key that the key filters are made of."""


def filter_bits(rows: int) -> int:
    """Size of the key filter in bits, a power of two from which one probe takes at most 21 bits."""
    return 1 << min(21, max(6, (rows * 16 - 1).bit_length()))


Block = tuple[list[bytes], Floats32, Floats64]
"""Keys, vectors and norms of some consecutive rows."""


class Layout:
    """Where each section of a file begins."""

    def __init__(self, rows: int, dims: int) -> None:
        self.rows = rows
        self.dims = dims
        self.bits = 1 << min(21, max(6, (rows * 16 - 1).bit_length()))
        """Size of the key filter, a power of two that 21 bits of a digest can address."""
        self.padding = -(rows * dims * 4) % 8
        self.norms = _HEADER.size + rows * dims * 4 + self.padding
        self.places = self.norms + rows * 8
        self.filter = self.places + (rows + 1) * 8
        self.keys = self.filter + self.bits // 8


class Writer:
    """Turns rows given in key order into the bytes of a segment file."""

    def __init__(self, rows: int, dims: int) -> None:
        self.items = 0
        """Different keys so far."""
        self._layout = Layout(rows, dims)
        self._norms: list[Floats64] = []
        self._keys: list[bytes] = []
        self._lengths: list[Numbers] = []
        self._digests: list[Offsets] = []
        self._last: bytes | None = None

    def encode(self, blocks: Iterable[Block]) -> Iterator[bytes | memoryview]:
        """The file's bytes, from all rows in key order."""
        layout = self._layout
        yield _HEADER.pack(_MAGIC, layout.rows, layout.dims)
        for keys, vectors, norms in blocks:
            yield vectors.data.cast("B")
            self._note(keys, norms)
        yield bytes(layout.padding)
        yield np.concatenate(self._norms).tobytes()
        places = np.full(layout.rows + 1, layout.keys, np.int64)
        places[1:] += np.cumsum(np.concatenate(self._lengths))
        yield places.tobytes()
        marks = np.zeros(layout.bits, np.bool_)
        digests = np.concatenate(self._digests)
        for shift in _PROBES:
            marks[(digests >> np.uint64(shift)) & np.uint64(layout.bits - 1)] = True
        yield np.packbits(marks, bitorder="little").tobytes()
        yield from self._keys

    def _note(self, keys: list[bytes], norms: Floats64) -> None:
        self._norms.append(norms)
        self._keys.append(b"".join(keys))
        self._lengths.append(np.fromiter(map(len, keys), np.int64, len(keys)))
        self._digests.append(np.fromiter(map(digest_of, keys), np.uint64, len(keys)))
        self.items += len(set(keys)) - (self._last == keys[0])
        self._last = keys[-1]


class Segment:
    """One segment file, opened. Items found in it are those of its key filter and keys."""

    def __init__(self, mapped: mmap.mmap, record: FileRecord, items: int) -> None:
        """Read the layout of a file whose checksum was verified.

        Raises:
            UnusableFile: it is not a segment file of this format.
        """
        if len(mapped) < _HEADER.size:
            raise UnusableFile(record.name, "is too short")
        magic, rows, dims = _HEADER.unpack_from(mapped)
        layout = Layout(rows, dims)
        if magic != _MAGIC or rows == 0 or layout.keys > len(mapped):
            raise UnusableFile(record.name, "is not a segment of this format")
        self.record = record
        self.dims: int = dims
        self.items = items
        self.single = items == rows
        self.graph: Graph | None = None
        self.dead = 0
        self.died: Offsets = np.full(rows, ALIVE, np.uint64)
        flat: Floats32 = np.frombuffer(mapped, np.float32, rows * dims, _HEADER.size)
        self.vectors = flat.reshape(rows, dims)
        self.norms: Floats64 = np.frombuffer(mapped, np.float64, rows, layout.norms)
        self.tame = is_tame(self.norms)
        self._rows: int = rows
        self._places = memoryview(mapped)[layout.places : layout.filter].cast("Q")
        if self._places[rows] != len(mapped):
            raise UnusableFile(record.name, "has keys that do not fill it")
        self._mapped = mapped
        self._filter = mapped[layout.filter : layout.keys]
        self._mask = layout.bits - 1
        self._samples = [self.key(row) for row in range(0, rows, _STRIDE)]

    def __len__(self) -> int:
        return self._rows

    @property
    def all_alive(self) -> bool:
        """Rows of a segment were born before any state that has it."""
        return not self.dead

    def key(self, row: int) -> bytes:
        """The key of the item that the row belongs to."""
        return self._mapped[self._places[row] : self._places[row + 1]]

    def find(self, prefix: bytes) -> Rows:
        """Rows whose key begins with the prefix: always one range."""
        if not prefix:
            return slice(0, self._rows)
        low = self._place(prefix)
        if low == self._rows or not self.key(low).startswith(prefix):
            return slice(low, low)
        end = successor(prefix)
        return slice(low, self._rows if end is None else self._place(end))

    def find_item(self, key: bytes, digest: int) -> Rows | None:
        """Rows of one item, dead ones included."""
        for shift in _PROBES:
            bit = (digest >> shift) & self._mask
            if not self._filter[bit >> 3] >> (bit & 7) & 1:
                return None
        low = self._place(key)
        if low == self._rows or self.key(low) != key:
            return None
        if self.single:
            return slice(low, low + 1)
        return slice(low, self._place(key + b"\0"))

    def visible(self, rows: Rows, offset: int) -> Flags:
        """Which of the rows a state at this offset sees; all were born before it was taken."""
        seen: Flags = self.died[rows] > offset
        return seen

    def sorted_rows(self) -> Numbers:
        """All rows in key order."""
        return np.arange(self._rows)

    def kill(self, key: bytes, digest: int, offset: int) -> bool:
        """Mark the live rows of the item dead. The lock is held."""
        rows = self.find_item(key, digest)
        if rows is None:
            return False
        view = self.died[rows]
        alive = view == ALIVE
        killed = int(np.count_nonzero(alive))
        view[alive] = offset
        self.dead += killed
        return killed > 0

    def dead_by(self, offset: int) -> int:
        """How many rows no state at or after the offset sees."""
        return int(np.count_nonzero(self.died <= offset)) if self.dead else 0

    def bury(self, died: Offsets) -> None:
        """Take over which rows died when, from the parts that this one was made of."""
        self.died[:] = died
        self.dead = int(np.count_nonzero(died != ALIVE))

    def _place(self, key: bytes) -> int:
        """The first row whose key is not below this one."""
        sample = bisect_left(self._samples, key)
        if sample == 0:
            return 0
        low, high = (sample - 1) * _STRIDE + 1, min(sample * _STRIDE, self._rows)
        while low < high:
            middle = (low + high) // 2
            if self.key(middle) < key:
                low = middle + 1
            else:
                high = middle
        return low
