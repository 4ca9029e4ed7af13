"""Values of channels and of writes: described for an event, and put together from a view.

What was read or written last is kept in memory, so that a growing list is neither cut anew nor
read back for every checkpoint that continues it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple

from eventstore.checkpoint.events import Assembled, Copy, Described, Packed, Part, Piece
from eventstore.checkpoint.recent import Recent
from eventstore.checkpoint.sealing import Seal
from eventstore.checkpoint.splitting import WHOLE_BYTES, Split, split
from eventstore.checkpoint.views import CheckpointView, Manifest, Stored

KEPT_BYTES: Final = 64 * 1024 * 1024
_ENTRY_BYTES: Final = 200
_LATEST: Final = 4_096
_MANY_PARTS: Final = 16
_PLAIN: Final = Seal()


class Missing(Exception):
    """Something that a value consists of is not there any more: a prune or delete came between."""


class Earlier(NamedTuple):
    """A value that another may continue."""

    name: bytes
    digests: tuple[bytes, ...]
    split: Split | None
    """Its bytes and borders, where they are in memory."""


class Contents:
    """The values of one log. Safe for threads."""

    def __init__(self, view: Callable[[], CheckpointView], kept_bytes: int = KEPT_BYTES) -> None:
        self._view = view
        self._kept: Recent[Split] = Recent(kept_bytes)
        self._latest: Recent[bytes] = Recent(_LATEST)
        """Of each thread, the entry of the last value that has many parts."""

    def read(self, thread: str, stored: Stored, seal: Callable[[], Seal]) -> Packed:
        """A value's bytes; ``seal`` is asked for sealed ones.

        Raises :class:`Missing` and ``CheckpointSealed``.
        """
        if isinstance(stored, Packed):
            return stored
        kept = self._kept.get(_entry(thread, stored))
        if kept is not None:
            return kept.packed()
        manifest = self._manifest(thread, stored)
        value = self._put_together(thread, manifest, seal() if manifest.sealed else _PLAIN)
        self.keep(thread, value)
        return value.packed()

    def earlier(self, thread: str, stored: Stored | None) -> Earlier | None:
        """A value as one to continue; ``None`` for a small one, or one that is gone."""
        if stored is None or isinstance(stored, Packed):
            return None
        kept = self._kept.get(_entry(thread, stored))
        if kept is not None:
            return Earlier(stored, kept.digests, kept)
        manifest = self._view().manifest(thread, stored)
        return None if manifest is None else Earlier(stored, manifest.digests, None)

    def keep(self, thread: str, value: Split) -> None:
        """Remember a value."""
        weight = len(value.body) + _ENTRY_BYTES + 80 * len(value.digests)
        entry = _entry(thread, value.name())
        self._kept.put(entry, value, weight)
        if len(value.digests) >= _MANY_PARTS:
            self._latest.put(_entry(thread), entry, 1)

    def describe(self, thread: str, seal: Seal, *, whole: bool = False) -> Description:
        """Begin to describe the values of an event, or of several that are appended together.

        ``whole`` when they must name nothing that was before them.
        """
        return Description(self._view(), thread, seal, whole)

    def _put_together(self, thread: str, manifest: Manifest, seal: Seal) -> Split:
        """A value from its parts; what it begins with is often in memory, with a neighbour's value."""
        names = manifest.digests
        latest = self._latest.get(_entry(thread))
        near = None if latest is None else self._kept.get(latest)
        shared = 0
        if near is not None and names and near.digests[:1] == names[:1]:
            shared = _run(names, 0, near.digests, 0)
        pieces: list[bytes] = []
        ends: list[int] = []
        if near is not None and shared:
            ends += near.ends[:shared]
            pieces.append(near.body[: ends[-1]])
        for name, data in zip(names[shared:], self._view().parts(thread, names[shared:]), strict=True):
            if data is None:
                raise Missing
            pieces.append(seal.open_part(name, data))
            ends.append(len(pieces[-1]) + (ends[-1] if ends else 0))
        return Split(manifest.tag, manifest.head, b"".join(pieces), ends, names)

    def _manifest(self, thread: str, name: bytes) -> Manifest:
        found = self._view().manifest(thread, name)
        if found is None:
            raise Missing
        return found


class Description:
    """The values of one event, or of several in a row, and the parts each has to bring."""

    def __init__(self, view: CheckpointView, thread: str, seal: Seal, whole: bool) -> None:
        self._view = view
        self._thread = thread
        self._seal = seal
        self._whole = whole
        self._parts: list[Part] = []
        self._numbers: dict[bytes, int] = {}
        self._brought: set[bytes] = set()
        """Parts that an event in front of this one brings."""
        self.splits: list[Split] = []
        """The values, for :meth:`Contents.keep` once the events count."""

    def take_parts(self) -> tuple[Part, ...]:
        """What the values described since the last call consist of and was not there before.

        They go with the event of these values; what is described next is another one's, behind it.
        """
        parts = tuple(self._parts)
        self._brought.update(self._numbers)
        self._parts, self._numbers = [], {}
        return parts

    def value(self, packed: Packed, earlier: Earlier | None = None) -> Described:
        """A value as the event has it."""
        return self.described(packed, earlier)[0]

    def described(self, packed: Packed, earlier: Earlier | None) -> tuple[Described, Split | None]:
        """A value as the event has it, and how it was cut, if it was."""
        if len(packed.data) <= WHOLE_BYTES and not self._seal.closes:
            return packed, None
        made = split(packed, self._seal.digest, None if earlier is None else earlier.split)
        self.splits.append(made)
        places = {} if self._whole or earlier is None else _places(earlier, made)
        old: tuple[bytes, ...] = () if earlier is None else earlier.digests
        pieces: list[Piece] = []
        number = 0
        while number < len(made.digests):
            name = made.digests[number]
            first = places.get(name)
            if first is None:
                pieces.append(self._piece(name, made, number))
                number += 1
            else:
                count = _run(made.digests, number, old, first)
                pieces.append(Copy(first, count))
                number += count
        copied = earlier is not None and any(isinstance(piece, Copy) for piece in pieces)
        after = earlier.name if earlier is not None and copied else None
        return Assembled(packed.tag, made.head, after, tuple(pieces)), made

    def _piece(self, name: bytes, made: Split, number: int) -> Piece:
        known = self._numbers.get(name)
        if known is not None:
            return known
        if name in self._brought or (not self._whole and self._view.has_part(self._thread, name)):
            return name
        self._numbers[name] = len(self._parts)
        data = self._seal.close_part(name, made.part(number))
        self._parts.append(Part(data, name if self._seal.closes else None))
        return len(self._parts) - 1


def _places(earlier: Earlier, made: Split) -> dict[bytes, int]:
    """Where the earlier value has its parts; only the first, when the new one continues it unchanged."""
    old, new = earlier.digests, made.digests
    if old and new[: len(old)] == old:
        return {old[0]: 0}
    places: dict[bytes, int] = {}
    for number, name in enumerate(old):
        places.setdefault(name, number)
    return places


def _run(new: tuple[bytes, ...], at: int, old: tuple[bytes, ...], first: int) -> int:
    """How many parts both have in common from two places on."""
    most = min(len(new) - at, len(old) - first)
    if new[at : at + most] == old[first : first + most]:
        return most
    return (
        bisect_left(
            range(1, most), True, key=lambda count: new[at : at + count + 1] != old[first : first + count + 1]
        )
        + 1
    )


def _entry(thread: str, name: bytes = b"") -> bytes:
    return name + thread.encode("utf-8", "surrogatepass")
