"""Import: JSON lines become events, in batches; what is there already is left alone.

So an import that was stopped is simply started again. The log decides when a memory was created
and updated: times in the file are not carried over. Lines keep their order from append to append;
those of one append have one time.
"""

from __future__ import annotations

import logging
from itertools import groupby
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from eventstore import EventStore
from eventstore.errors import InvalidConfig, InvalidInput, InvalidType
from eventstore.events import Provenance
from projector.progress import Bar
from projector.runtime import runtime_of
from projector.transfer.lines import Head, Line, read
from projector.transfer.loading import Loader

log = logging.getLogger("projector.transfer")


class Imported(BaseModel):
    """What an import did, in lines."""

    model_config = ConfigDict(frozen=True)

    file: str
    written: int
    present: int
    """Left alone because the store says the same already."""
    expired: int
    """Left out because their time to live has passed."""
    conflicts: int
    """Versions left out because the store has another history of their memory."""
    reused: int
    """Written with the vectors of the file."""
    embedded: int
    """Written by way of the embedding model."""
    seconds: float


def import_(store: EventStore, file: str | Path, *, actor: str = "import") -> Imported:
    """Write the memories of a file that the store does not have as they are there.

    A file with history is loaded version by version, with who wrote each; other lines are written
    in the name of ``actor``. Vectors of the file are used where the model's name fits, else the
    store's model makes new ones. Raises ``InvalidInput`` naming the first line that is wrong, and
    ``InvalidConfig`` when the file cannot be read; what was written before stays.
    """
    runtime = runtime_of(store)
    runtime.catch_up()
    path = Path(file)
    loader = Loader(store, Provenance(actor), runtime.config.max_value_bytes)
    try:
        with path.open("rb") as lines, Bar(f"reading {path.name}", log) as bar:
            total = sum(1 for _ in lines)
            lines.seek(0)
            history = False
            found = read(path, lines)
            for (_, _), group in groupby(found, _memory):
                block = list(group)
                if isinstance(block[0], Head):
                    history = block[0].history
                    continue
                given = [each for each in block if not isinstance(each, Head)]
                try:
                    _load(loader, [line for _, line in given], history)
                except (InvalidInput, InvalidType) as error:
                    raise type(error)(f"{path}, line {given[-1][0]}: {error}") from error
                bar.update(given[-1][0], total)
            loader.flush()
            seconds = bar.seconds
    except OSError as error:
        raise InvalidConfig(f"{path} could not be read: {error.strerror}") from error
    return Imported(
        file=str(path),
        written=loader.written,
        present=loader.present,
        expired=loader.expired,
        conflicts=loader.conflicts,
        reused=loader.reused,
        embedded=loader.embedded,
        seconds=seconds,
    )


def _load(loader: Loader, lines: list[Line], history: bool) -> None:
    if history:
        loader.versions(lines)
        return
    for line in lines:
        loader.memory(line)


def _memory(found: Head | tuple[int, Line]) -> tuple[tuple[str, ...], str]:
    if isinstance(found, Head):
        return (), ""
    return tuple(found[1].namespace), found[1].key
