"""The lines of an export: one JSON object each, checked when they are read back.

The first line says what the file is. A file without it is taken, too, so that one can be made by
hand: a line needs ``namespace``, ``key`` and ``value``. Reading and writing files is left to
``exporting`` and ``importing``.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eventstore.errors import InvalidInput
from eventstore.events import Embedded
from eventstore.values import decode_value
from eventstore.views import Vector

FORMAT: Final = 1
_VALUE: Final = b',"value":'


class Head(BaseModel):
    """What the first line of an export says."""

    model_config = ConfigDict(frozen=True)

    export: Literal["eventstore"] = "eventstore"
    format: int = FORMAT
    log_id: str
    position: str
    """Where the store stood."""
    prefix: list[str] = Field(default_factory=list)
    history: bool = False
    """Whether there is a line for every version, oldest first for each memory."""


class LineVectors(BaseModel):
    """The vectors of a memory, with what made them."""

    model_config = ConfigDict(frozen=True)

    model: str
    """Fingerprint of the embedding model; the vectors' size is its last part."""
    paths: list[str]
    """Where in the value the text of each vector stood."""
    data: str
    """One vector after another, little-endian float32, in base64."""

    @classmethod
    def of(cls, model: str, paths: list[str], vectors: Vector) -> Self:
        """The written form."""
        data = np.ascontiguousarray(vectors, "<f4").tobytes()
        return cls(model=model, paths=paths, data=base64.b64encode(data).decode())

    def embedded(self) -> Embedded:
        """What an event carries. Raises ``InvalidInput`` for sizes that do not fit."""
        try:
            data = base64.b64decode(self.data, validate=True)
            dims = int(self.model.rpartition("/")[2])
        except (binascii.Error, ValueError):
            raise InvalidInput("its vectors are not base64, or their model names no size") from None
        if len(data) != 4 * dims * len(self.paths) or not np.isfinite(np.frombuffer(data, "<f4")).all():
            raise InvalidInput("its vectors do not have the size their model names, or are not finite")
        return Embedded(self.model, dims, tuple(self.paths), data)


class Line(BaseModel):
    """A memory as it is, or one version of it. Times are ISO 8601."""

    model_config = ConfigDict(frozen=True)

    namespace: list[str]
    key: str
    kind: Literal["put", "restore", "delete", "expire"] = "put"
    rejected: bool = False
    """Whether the event's condition did not hold; import leaves such lines out."""
    version: int | None = None
    at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    ttl_minutes: float | None = None
    """What a refresh adds."""
    ttl_left_minutes: float | None = None
    """What was left of it when the file was written."""
    expires_at: datetime | None = None
    index: list[str] | bool | None = None
    """What was asked to be embedded."""
    actor: str | None = None
    thread: str | None = None
    run: str | None = None
    node: str | None = None
    checkpoint: str | None = None
    vectors: LineVectors | None = None
    value: dict[str, Any] | None = None


def written(line: Line, value: bytes | None) -> bytes:
    """A line as bytes; the value's JSON is put in as it is kept, so that no number changes."""
    head = orjson.dumps(line.model_dump(mode="json", exclude_defaults=True, exclude={"value"}))
    return head[:-1] + _VALUE + (value or b"null") + b"}\n"


def head(line: Head) -> bytes:
    """The first line."""
    return orjson.dumps(line.model_dump(mode="json")) + b"\n"


def read(path: Path, lines: Iterable[bytes]) -> Iterator[Head | tuple[int, Line]]:
    """What the lines of a file say, with their numbers. Raises ``InvalidInput`` naming the line."""
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            body = decode_value(text.strip())
            if number == 1 and "export" in body:
                yield _head(body)
                continue
            yield number, Line(**body)
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise InvalidInput(f"{path}, line {number}: {where}: {first['msg']}") from None
        except (ValueError, TypeError) as error:
            told = error if isinstance(error, InvalidInput) else "it is not JSON, or was cut"
            raise InvalidInput(f"{path}, line {number}: {told}") from None


def _head(body: dict[str, Any]) -> Head:
    if body.get("format") != FORMAT:
        raise InvalidInput(f"an export of format {body.get('format')!r}; this release reads {FORMAT}")
    return Head(**body)
