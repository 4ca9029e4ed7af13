"""Small texts that are much alike, made smaller: what every checkpoint says of its channels."""

from __future__ import annotations

import zlib
from typing import Final

from eventstore.checkpoint.events import Packed

_MARK: Final = "z|"
_ALIKE: Final = (
    b"counters_since_delta_snapshot langgraph_ __interrupt__ __pregel_tasks branch:to:agent branch:to:tools "
    b"__root__ context user_id assistant_id graph_id run_id \xa7parents\x80\xa4step\xff\xa6source\xa6update"
    b"\xa6source\xa5input\xa6source\xa4loop\xafupdated_channels\x92\xa8messages\xafbranch:to:model"
    b"\xadversions_seen\x83\xa9__input__\x80\xa9__start__\x81\xa9__start__\xaf0000000.\xb0channel_versions\x84"
    b"\xa1v\x04\xa2ts\xd9 2026-01-01T00:00:00.000000+00:00"
)
"""What is likely to stand in them. It is part of the format: another one is another mark."""


def shrink(packed: Packed) -> Packed:
    """The same, smaller where that is possible."""
    maker = zlib.compressobj(level=6, wbits=-15, memLevel=5, zdict=_ALIKE)
    data = maker.compress(packed.data) + maker.flush()
    return Packed(_MARK + packed.tag, data) if len(data) + len(_MARK) < len(packed.data) else packed


def grow(packed: Packed) -> Packed:
    """What :func:`shrink` was given."""
    if not packed.tag.startswith(_MARK):
        return packed
    return Packed(
        packed.tag[len(_MARK) :], zlib.decompressobj(wbits=-15, zdict=_ALIKE).decompress(packed.data)
    )
