"""Another embedding model, or other fields, for a store that goes on serving with the old.

Every live memory is embedded anew, in batches, and its new vectors are appended as events beside the
old ones; when nothing lacks them, one more event puts the new model on record. Until then rankings
are the old model's, from then on the new one's: no two models' vectors are ever compared. A work that
is stopped or killed is continued by the next one. Replaying these events calls no model.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict

from eventstore import EventStore
from eventstore.codec import encode, fields_of
from eventstore.embedding import Embedder, Vectors, differs, same_model
from eventstore.errors import EmbeddingFailed, InvalidConfig
from eventstore.events import VALUED, Embedded, Event, Kind, Provenance, new_id
from eventstore.keys import MODEL_KEY, TOUCH_PREFIX
from eventstore.log.position import Position
from eventstore.operations import check_count
from eventstore.views import HistoryRow, ReadView, Row, Signature
from projector.progress import Bar
from projector.runtime import OpenRuntime, runtime_of

log = logging.getLogger("projector.reembed")

BATCH: Final = 100
"""Texts of one call of the model, and of one append."""
PAGE: Final = 200
"""Memories looked at in one moment of the view."""
ATTEMPTS: Final = 8
"""How often one batch is given to a model that fails, with pauses that double in between."""
FIRST_PAUSE_SECONDS: Final = 0.5
LAST_PAUSE_SECONDS: Final = 30.0
SETTLE_SECONDS: Final = 2.0
"""How long writes are looked for that were being embedded with the old model at the exchange."""
LOOK_SECONDS: Final = 0.1


class Reembedded(BaseModel):
    """What a change of model or fields came to."""

    model_config = ConfigDict(frozen=True)

    outcome: Literal["switched", "current", "stopped"]
    """``switched``: the new model is of record. ``current``: it was already; what lacked its vectors has
    them now. ``stopped``: it was stopped, and the old model is of record; the next one continues."""
    model: str
    """Fingerprint of the new model, vector size included."""
    fields: tuple[str, ...]
    """The default fields that go with it."""
    replaced: str | None
    """Fingerprint of the model of before; ``None`` where there were no vectors."""
    position: str
    """Where the store stood at the end."""
    memories: int
    """Memories that were given vectors by this run."""
    texts: int
    """Texts that were embedded for it."""
    present: int
    """Memories that needed nothing: they have the new vectors already, or no text to embed."""
    seconds: float

    @property
    def rate(self) -> float:
        """Texts per second."""
        return self.texts / self.seconds if self.seconds else 0.0


def reembed(
    store: EventStore | OpenRuntime,
    *,
    index: Mapping[str, Any],
    batch: int = BATCH,
    stop: threading.Event | None = None,
    actor: str = "reembed",
) -> Reembedded:
    """Give every live memory vectors by other ``index`` settings, then put these on record.

    What a memory has embedded is what a put with these settings would embed now: its own ``index``
    paths if its put named some, nothing if it said ``False``, else the new default fields. Everybody
    goes on reading and writing meanwhile. Setting ``stop``, or Ctrl-C, ends it early; a memory
    that has its new vectors is not embedded again by the next run.

    A model that fails is asked again, some minutes long; then ``EmbeddingFailed`` is raised. Raises
    ``InvalidConfig`` for wrong settings, or where the names of the models do not tell them apart.
    """
    runtime = store if isinstance(store, OpenRuntime) else runtime_of(store)
    runtime.check()
    work = _Work(runtime, Embedder(index), max(1, check_count(batch, "batch")), stop, Provenance(actor))
    with Bar(f"embedding with {work.goal.model}", log) as bar:
        return Reembedded(
            outcome=work.run(bar),
            model=work.goal.model,
            fields=work.goal.fields or (),
            replaced=None if work.before is None else work.before.model,
            position=str(runtime.applied),
            memories=work.memories,
            texts=work.texts,
            present=work.present,
            seconds=bar.seconds,
        )


class _Stopped(Exception):
    """The caller asked for the end."""


class _Lacking(NamedTuple):
    """A memory without vectors of the new model, at the version it has."""

    key: bytes
    version: int
    texts: list[tuple[str, str]]


class _Work:
    """One run."""

    def __init__(
        self,
        runtime: OpenRuntime,
        embedder: Embedder,
        batch: int,
        stop: threading.Event | None,
        who: Provenance,
    ) -> None:
        runtime.catch_up()
        self.goal = embedder.signature
        self.before = runtime.view.signature()
        self.memories = self.texts = self.present = 0
        self._runtime = runtime
        self._embedder = embedder
        self._batch = batch
        self._stop = stop or threading.Event()
        self._who = who
        _refuse_alike(self.before, self.goal)

    def run(self, bar: Bar) -> Literal["switched", "current", "stopped"]:
        try:
            return self._run(bar)
        except _Stopped:
            return "stopped"

    def _run(self, bar: Bar) -> Literal["switched", "current"]:
        at = self._runtime.applied
        self._everything(bar)
        while True:
            since, at, lacking = self._written(at)
            if len(lacking) <= self._batch:
                break
            for some in self._batches(lacking):
                self._embed(some)
        outcome = self._exchange(lacking)
        if outcome == "switched":
            self._settle(since)
        return outcome

    def _everything(self, bar: Bar) -> None:
        """Every memory there is, in the order of keys; those written meanwhile are left for later."""
        looked = 0
        for rows, total, lacking in self._pages():
            for some in self._batches(lacking):
                self._embed(some)
            if self._stop.is_set():
                raise _Stopped
            self.present += rows - len(lacking)
            looked += rows
            bar.update(looked, max(looked, total))

    def _pages(self) -> Iterator[tuple[int, int, list[_Lacking]]]:
        start: bytes | None = None
        while True:
            with self._runtime.view.read() as view:
                rows = list(islice(view.scan(b"", start), PAGE))
                found = self._lacking(view, rows)
                total = view.count(b"")
            yield len(rows), total, found
            if len(rows) < PAGE:
                return
            start = rows[-1].key + b"\x00"

    def _written(self, since: Position) -> tuple[Position, Position, list[_Lacking]]:
        """``since``, how far the view was, and what of the memories written in between lacks vectors."""
        self._runtime.catch_up()
        at = self._runtime.applied
        keys = {
            record.key: None
            for chunk in self._runtime.log.chunks(since)
            for record in chunk.records
            if not record.key.startswith(TOUCH_PREFIX)
        }
        with self._runtime.view.read() as view:
            rows = (view.get(key) for key in keys)
            return since, at, self._lacking(view, [row for row in rows if row is not None])

    def _exchange(self, lacking: Sequence[_Lacking]) -> Literal["switched", "current"]:
        """Put the new model on record, in one append with the last memories that lacked its vectors."""
        recorded = self._runtime.view.signature()
        current = recorded is not None and _is(recorded, self.goal)
        if not current:
            change = Event(
                Kind.MODEL,
                MODEL_KEY,
                new_id(),
                provenance=self._who,
                embedded=Embedded(self.goal.model, self.goal.dims, (), b""),
                fields=self.goal.fields,
                replaced=None if recorded is None else (recorded.model, recorded.fields),
            )
            self._embed(lacking, change)
            return "switched"
        self._embed(lacking)
        return "current"

    def _settle(self, since: Position) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and not self._stop.wait(LOOK_SECONDS):
            _, since, lacking = self._written(since)
            for some in self._batches(lacking):
                self._embed(some)

    # ------------------------------------------------------------------ one memory, one batch

    def _lacking(self, view: ReadView, rows: Sequence[Row]) -> list[_Lacking]:
        looked = (self._look(view, row) for row in rows)
        return [each for each in looked if each is not None]

    def _look(self, view: ReadView, row: Row) -> _Lacking | None:
        for past in view.history(row.key, None):
            if past.outcome == Kind.EMBED:
                if fields_of(past.headers) == self.goal.fields and self._made(view, past):
                    return None
            elif past.outcome in VALUED:
                asked = orjson.loads(past.headers.get("index", b"null"))
                texts = self._embedder.texts(row.data, asked)
                made = self._made(view, past)
                paths = orjson.loads(past.headers.get("vector-paths", b"[]")) if made else []
                return None if paths == [path for path, _ in texts] else _Lacking(row.key, row.version, texts)
        return None

    def _made(self, view: ReadView, past: HistoryRow) -> bool:
        """Whether the vectors of an event are the new model's."""
        if past.vectors is None:
            return False
        model, made = view.vectors(past.vectors)
        return same_model(self.goal, made.shape[1], model)

    def _batches(self, lacking: Sequence[_Lacking]) -> Iterator[list[_Lacking]]:
        some: list[_Lacking] = []
        texts = 0
        for each in lacking:
            if some and texts + len(each.texts) > self._batch:
                yield some
                some, texts = [], 0
            some.append(each)
            texts += len(each.texts)
        if some:
            yield some

    def _embed(self, lacking: Sequence[_Lacking], change: Event | None = None) -> None:
        """Append the vectors of memories, and what else is to be appended with them."""
        if self._stop.is_set():
            raise _Stopped
        made = self._vectors([text for each in lacking for _, text in each.texts])
        nothing = Embedded(self.goal.model, self.goal.dims, (), b"")
        records = [
            encode(
                Event(
                    Kind.EMBED,
                    each.key,
                    new_id(),
                    provenance=self._who,
                    embedded=made.embedded(each.texts) or nothing,
                    seen_version=each.version,
                    fields=self.goal.fields,
                )
            )
            for each in lacking
        ]
        if change is not None:
            records.append(encode(change))
        if records:
            written = self._runtime.write(self._runtime.prepare(records))
            # What was overwritten meanwhile is void, and is found among what was written since.
            self.memories += len(lacking) - len(written.outcomes)

    def _vectors(self, texts: Sequence[str]) -> Vectors:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                made = self._embedder.embed(texts, ())
            except EmbeddingFailed as error:
                if attempt == ATTEMPTS:
                    raise
                pause = min(FIRST_PAUSE_SECONDS * 2 ** (attempt - 1), LAST_PAUSE_SECONDS)
                log.warning(
                    "the embedding model failed (%s), attempt %d of %d; again in %.1f s",
                    type(error.__cause__).__name__, attempt, ATTEMPTS, pause,
                )  # fmt: skip
            else:
                self.texts += len(texts)
                return made
            if self._stop.wait(pause):
                raise _Stopped
        raise AssertionError("the last attempt returns or raises")


def _is(recorded: Signature, goal: Signature) -> bool:
    return same_model(recorded, goal.dims, goal.model) and recorded.fields == goal.fields


def _refuse_alike(before: Signature | None, goal: Signature) -> None:
    """Raise where two embedders without names of their own could be one model or two."""
    if before is not None and before.model != goal.model and not differs(before.model, goal.model):
        raise InvalidConfig(
            f"the vectors on record were made by {before.model!r}, the new ones would be by {goal.model!r}; "
            "neither names its model, so nothing could tell their vectors apart. Name it: index['model'], or "
            "--model"
        )
