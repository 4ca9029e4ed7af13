"""Reads segment files by ``docs/log-format.md`` alone, sharing no code with the log."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

SEGMENT_HEADER = struct.Struct("<8sII16sQQQ8x")
FRAME_HEADER = struct.Struct("<4sIIIQQQqQ16s")


class Place(NamedTuple):
    position: int
    size: int
    offset: int
    records: int


def segment_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.seg"))


def places(path: Path) -> list[Place]:
    """Where the frames of a segment are; asserts that only zeros follow the last."""
    raw = path.read_bytes()
    magic, version, crc, log_id, base, _, _ = SEGMENT_HEADER.unpack_from(raw)
    assert (magic, version, base) == (b"EvSegmnt", 1, int(path.stem))
    assert crc == crc32(raw[16:64], crc32(raw[:12]))
    found = []
    position, offset = 64, base
    while raw[position : position + 4] == b"EvFr":
        fields = FRAME_HEADER.unpack_from(raw, position)
        body = raw[position + 72 : position + 72 + fields[2]]
        assert fields[4] == offset
        assert fields[1] == crc32(raw[position + 8 : position + 72], crc32(body)) ^ crc32(log_id)
        found.append(Place(position, 72 + len(body), offset, fields[3]))
        position += 72 + len(body)
        offset += fields[3]
    assert not raw[position:].strip(b"\0")
    return found


def values(path: Path) -> list[bytes | None]:
    """The values of all records of a segment."""
    raw = path.read_bytes()
    found: list[bytes | None] = []
    for place in places(path):
        at = place.position + 72
        for _ in range(place.records):
            key_bytes, value_bytes, headers, name_bytes = struct.unpack_from("<IIII", raw, at)
            at += 16 + name_bytes
            lengths = struct.unpack_from(f"<{headers}I", raw, at)
            at += 4 * headers + sum(lengths) + key_bytes
            size = 0 if value_bytes == 0xFFFF_FFFF else value_bytes
            found.append(None if value_bytes == 0xFFFF_FFFF else raw[at : at + size])
            at += size
        assert at == place.position + place.size
    return found


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(path: Path, position: int) -> None:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 0x40]))
