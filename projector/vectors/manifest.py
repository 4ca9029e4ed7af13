"""The manifest: which files make up the saved state, and up to which offset it holds everything.

It is the last file written and carries its own checksum, so the state it names is either
whole or noticed not to be. Older or newer files beside it do not count.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from projector.vectors import files
from projector.vectors.files import FileRecord, UnusableFile
from projector.vectors.graph import Graph
from projector.vectors.limits import Metric
from projector.vectors.segment import Segment

NAME = "manifest.json"
_FORMAT = 1


@dataclass(frozen=True)
class Owner:
    """What the saved vectors belong to; state of another owner is never used."""

    identity: str
    dims: int
    metric: Metric
    edition: str = ""
    """Which of the vectors of that identity, where there are several."""


class Saved(NamedTuple):
    """A saved state, loaded."""

    covered: int
    next_number: int
    segments: list[Segment]
    names: set[str]
    """The files it consists of, without the manifest."""


def owner(directory: Path) -> Owner | None:
    """What the saved state in a directory belongs to; ``None`` if there is none that can be read."""
    try:
        body = json.loads((directory / NAME).read_bytes())["state"]
        return Owner(body["identity"], body["dims"], body["metric"], body["edition"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def load(directory: Path, owner: Owner) -> Saved | None:
    """The saved state; ``None`` if the directory is empty.

    Raises:
        UnusableFile: something is missing, damaged or of another owner or generation.
    """
    try:
        text = (directory / NAME).read_bytes()
    except FileNotFoundError:
        if any(directory.iterdir()):
            raise UnusableFile(NAME, "is missing") from None
        return None
    try:
        outer = json.loads(text)
        body = outer["state"]
        if outer["xxh3"] != _checksum(body):
            raise UnusableFile(NAME, "does not match its checksum")
        if body["format"] != _FORMAT:
            raise UnusableFile(NAME, f"has format {body['format']}, this version reads {_FORMAT}")
        for name, value in asdict(owner).items():
            if body[name] != value:
                raise UnusableFile(NAME, f"was saved for another {name}")
        return _open(directory, body, owner)
    except (ValueError, KeyError, TypeError) as error:
        raise UnusableFile(NAME, "is damaged") from error


def _open(directory: Path, body: dict[str, Any], owner: Owner) -> Saved:
    names: set[str] = set()
    dead: list[np.ndarray[Any, np.dtype[np.uint32]]] = []
    counts = [entry["dead"] for entry in body["segments"]]
    if body["dead"] is not None:
        record = FileRecord(*body["dead"])
        names.add(record.name)
        numbers = np.frombuffer(bytes(files.open_verified(directory, record)), np.uint32)
        if len(numbers) != sum(counts):
            raise UnusableFile(record.name, "has another number of rows than the manifest says")
        dead = np.split(numbers, np.cumsum(counts)[:-1])
    segments: list[Segment] = []
    for at, entry in enumerate(body["segments"]):
        record = FileRecord(*entry["file"])
        segment = Segment(files.open_verified(directory, record), record, entry["items"])
        if segment.dims != owner.dims or len(segment) != entry["rows"]:
            raise UnusableFile(record.name, "has another shape than the manifest says")
        names.add(record.name)
        if dead:
            segment.died[dead[at]] = 0
            segment.dead = len(dead[at])
        if entry["graph"] is not None:
            graph, nodes = entry["graph"]
            segment.graph = Graph.open(directory, (FileRecord(*graph), FileRecord(*nodes)), len(segment))
            names |= {record.name for record in segment.graph.records}
        segments.append(segment)
    return Saved(body["covered"], body["next"], segments, names)


def save(
    directory: Path, owner: Owner, covered: int, next_number: int, segments: Sequence[Segment]
) -> tuple[set[str], int]:
    """Make these segments the saved state; what died up to ``covered`` is saved with them.

    Returns the names of all files it consists of, and the next free number for one.

    Raises:
        OSError: it could not be written; the former saved state stays.
    """
    dead = [np.flatnonzero(segment.died <= covered).astype(np.uint32) for segment in segments]
    record = None
    names: set[str] = set()
    if any(map(len, dead)):
        record = files.write(directory / f"dead-{next_number:08d}", [np.concatenate(dead).tobytes()])
        names.add(record.name)
        next_number += 1
    entries = []
    for segment, rows in zip(segments, dead, strict=True):
        graph = segment.graph
        names |= {segment.record.name, *(record.name for record in (graph.records if graph else ()))}
        entries.append(
            {
                "file": segment.record,
                "rows": len(segment),
                "items": segment.items,
                "dead": len(rows),
                "graph": graph.records if graph else None,
            }
        )
    body = {"format": _FORMAT, **asdict(owner), "covered": covered, "next": next_number}
    body |= {"dead": record, "segments": entries}
    files.write(directory / NAME, [json.dumps({"state": body, "xxh3": _checksum(body)}).encode()])
    return names, next_number


def _checksum(body: dict[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(body, sort_keys=True).encode())
