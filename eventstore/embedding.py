"""Which text of a memory is embedded, by what, and whether the vectors can be trusted.

Texts are embedded before the append, once each, and the vectors travel in the event: a replay
never calls a model. The work is planned without I/O (:meth:`Embedder.texts`), so the sync and
async paths differ only in how they wait for the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast, get_args

import numpy as np
from langchain_core.embeddings import Embeddings
from langgraph.store.base import ensure_embeddings, get_text_at_path, tokenize_path
from langgraph.store.base.embed import EmbeddingsLambda

from eventstore.errors import EmbeddingFailed, IndexMismatch, InvalidConfig, InvalidEmbedding, InvalidType
from eventstore.events import Embedded
from eventstore.values import decode_value
from eventstore.views import IndexSettings, Metric, Ranks, Signature, Vector

log = logging.getLogger("eventstore.embedding")

DISTANCES: Final = get_args(Metric)
WHOLE: Final = "$"
_FLOATS: Final = np.dtype("<f4")
CHECKED_AT_ONCE: Final = 64
"""So many vectors are checked on the event loop; checking more of them would hold it up."""
_KNOWN = {"dims", "embed", "fields", "text_fields", "distance_type", "ann_index_config", "model", "exact"}
_ANN_KINDS = ("flat", "hnsw", "ivfflat")
_ANN_NUMBERS = ("m", "ef_construction", "lists", "nlist")


@functools.lru_cache(maxsize=1024)
def _tokens(path: str) -> list[str] | str:
    """A path as LangGraph reads it; ``$`` and the empty path mean the whole value."""
    return WHOLE if path in (WHOLE, "") else tokenize_path(path)


def check_paths(paths: object, where: str) -> tuple[str, ...]:
    """Paths as a tuple. Raises ``InvalidType`` for anything but a list of strings."""
    if isinstance(paths, str) or not isinstance(paths, (list, tuple)):
        raise InvalidType(f"{where} takes a list of paths, such as ['text'], not {type(paths).__name__}")
    for at, path in enumerate(paths):
        if not isinstance(path, str):
            raise InvalidType(f"{where}[{at}] is a {type(path).__name__}; a path is a string")
    return tuple(paths)


def fingerprint(config: Mapping[str, Any], embed: object) -> str:
    """Names the model: ``index['model']``, else the provider string, else the embedder's own name for it.

    An embedder that has no name of its own gives ``python:<class or function>``. Only real
    names are held against each other (:func:`differs`).
    """
    given = config.get("model") or (config["embed"] if isinstance(config.get("embed"), str) else None)
    if given is None and isinstance(embed, Embeddings):
        for attribute in ("model", "model_name", "model_id"):
            named = getattr(embed, attribute, None)
            if isinstance(named, str) and named:
                given = named
                break
    if given is None:
        what = config.get("embed")
        owner = type(what) if isinstance(what, Embeddings) else what
        name = getattr(owner, "__qualname__", type(what).__name__)
        given = f"python:{getattr(owner, '__module__', '?')}.{name}"
    return f"{given}/{config['dims']}"


def differs(recorded: str, configured: str) -> bool:
    """Whether two fingerprints certainly name different models.

    Two unnamed embedders may be one model behind another wrapper, so they are not refused.
    """
    if recorded.startswith("python:") and configured.startswith("python:"):
        return recorded.rpartition("/")[2] != configured.rpartition("/")[2]
    return recorded != configured


def same_model(recorded: Signature, dims: int, model: str) -> bool:
    """Whether vectors on record may be compared with a model's, as far as their names tell."""
    return recorded.dims == dims and not differs(recorded.model, model)


def check_same_model(recorded: Signature | None, dims: int, model: str) -> None:
    """Raise ``IndexMismatch`` when the vectors on record cannot be compared with a model's."""
    if recorded is not None and not same_model(recorded, dims, model):
        raise IndexMismatch(
            f"the vectors on record were made by {recorded.model!r}; this index is set to {model!r}. "
            "Open with the settings they were made with (index['model'] names a model), or a new store; "
            "or change the model of this store with `projector reembed`"
        )


class Embedder:
    """The ``index`` settings of a store, checked once, and the embedding model behind them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises ``InvalidConfig`` or ``InvalidType`` naming the setting that is wrong."""
        if not isinstance(config, Mapping):
            raise InvalidType(f"index takes a mapping with 'dims' and 'embed', not {type(config).__name__}")
        unknown = sorted(str(key) for key in config if key not in _KNOWN)
        if unknown:
            log.warning("index settings %s are unknown and have no effect", unknown)
        dims = config.get("dims")
        if isinstance(dims, bool) or not isinstance(dims, int) or dims < 1:
            raise InvalidConfig(
                f"index['dims'] must be the model's vector size, a positive int; got {dims!r}"
            )
        self.dims: int = dims
        self._floats = struct.Struct(f"<{dims}f")
        distance = config.get("distance_type") or "cosine"
        if distance not in DISTANCES:
            raise InvalidConfig(f"index['distance_type'] must be one of {DISTANCES}; got {distance!r}")
        self.distance: Metric = cast(Metric, distance)
        self.exact = bool(config.get("exact")) or _exact(config.get("ann_index_config"))
        fields = config.get("fields")
        if isinstance(fields, str):
            fields = [fields]
        self.fields = check_paths(fields, "index['fields']") if fields else (WHOLE,)
        if config.get("embed") is None:
            raise InvalidConfig(
                "index['embed'] is missing; give a LangChain Embeddings, a function, or 'provider:model'"
            )
        model = config.get("model")
        if model is not None and not (isinstance(model, str) and model):
            raise InvalidConfig(
                f"index['model'] names the embedding model, a string; got {type(model).__name__}"
            )
        try:
            self._model = ensure_embeddings(config["embed"])
        except (ValueError, TypeError, ImportError) as error:
            raise InvalidConfig(f"index['embed'] cannot be used: {error}") from error
        self._async_only = isinstance(self._model, EmbeddingsLambda) and not hasattr(self._model, "func")
        self.fingerprint = fingerprint(config, self._model)
        self._signature = Signature(self.fingerprint, dims, tuple(sorted(set(self.fields))))
        self._same: Signature | None = None
        """What was last found to be the same, and is looked at before every batch."""

    def check_same(self, recorded: Signature | None) -> None:
        """Raise ``IndexMismatch`` when the vectors on record are another model's, or of other fields."""
        if recorded is self._same:
            return
        check_same_model(recorded, self.dims, self.fingerprint)
        mine = self.signature.fields
        if recorded is not None and recorded.fields not in (None, mine):
            raise IndexMismatch(
                f"the vectors on record, made by {recorded.model!r}, are of the fields "
                f"{list(recorded.fields or ())}; this index is set to {list(mine or ())}. Open with the "
                "fields on record, or change those of this store with `projector reembed`"
            )
        self._same = recorded

    @property
    def signature(self) -> Signature:
        """What it makes vectors by, as it is put on record."""
        return self._signature

    @property
    def settings(self) -> IndexSettings:
        """What its index is opened with."""
        return self.dims, self.distance, self.fingerprint, self.exact

    @property
    def ranks(self) -> Ranks:
        """What a store with these settings ranks by."""
        return Ranks(self.dims, self.distance, self.fingerprint)

    def texts(
        self, value: bytes, index: tuple[str, ...] | bool | None, given: Mapping[str, Any] | None = None
    ) -> list[tuple[str, str]]:
        """Path and text of everything to embed in a value's JSON; ``index`` is the put's own choice.

        ``given`` is what the JSON was made of, where that is at hand.
        """
        if index is False:
            return []
        found: list[tuple[str, str]] = []
        decoded = None
        plain = given if type(given) is dict else {}
        for path in self.fields if index is None or index is True else index:
            text = plain.get(path) if path.isidentifier() else None
            if type(text) is str:
                # What most memories have; nothing needs to be read back for it.
                found.append((path, text))
                continue
            if decoded is None:
                decoded = decode_value(value)
            found += [(path, text) for text in get_text_at_path(decoded, _tokens(path))]
        return found

    def embed(self, texts: Sequence[str], queries: Sequence[str]) -> Vectors:
        """Vectors of documents and queries; each distinct text is embedded once.

        Raises ``EmbeddingFailed`` when the model raises, ``InvalidEmbedding`` when what it
        returned cannot be used.
        """
        if self._async_only and (texts or queries):
            raise InvalidConfig(
                "index['embed'] is an async function; use aput and asearch, or give one with sync methods"
            )
        wanted, asked = _distinct(texts), _distinct(queries)
        try:
            made = self._model.embed_documents(wanted) if wanted else []
        except Exception as error:
            raise EmbeddingFailed.wrap(error, f"embedding {len(wanted)} texts failed") from error
        try:
            answers = [self._model.embed_query(query) for query in asked]
        except Exception as error:
            raise EmbeddingFailed.wrap(error, "embedding the query failed") from error
        return Vectors(
            self.fingerprint, self.dims, self._by_text(wanted, made), self._by_text(asked, answers)
        )

    async def aembed(self, texts: Sequence[str], queries: Sequence[str]) -> Vectors:
        """:meth:`embed` for the event loop; a model without async methods runs in a thread."""
        asked = _distinct(queries)
        made = await self._adocuments(_distinct(texts)) if texts else {}
        try:
            answers = [await self._model.aembed_query(query) for query in asked]
        except Exception as error:
            raise EmbeddingFailed.wrap(error, "embedding the query failed") from error
        return Vectors(self.fingerprint, self.dims, made, self._by_text(asked, answers))

    async def _adocuments(self, wanted: list[str]) -> dict[str, Vector]:
        try:
            made = await self._model.aembed_documents(wanted)
        except Exception as error:
            raise EmbeddingFailed.wrap(error, f"embedding {len(wanted)} texts failed") from error
        if len(wanted) <= CHECKED_AT_ONCE:
            return self._by_text(wanted, made)
        return await asyncio.to_thread(self._by_text, wanted, made)

    def _by_text(self, texts: Sequence[str], made: Iterable[Any]) -> dict[str, Vector]:
        return dict(zip(texts, self._check(made, len(texts)), strict=True))

    def _check(self, made: Iterable[Any], count: int) -> Vector:
        """The vectors as rows."""
        try:
            rows = list(made)
        except TypeError:
            raise InvalidEmbedding(
                f"the embedder returned a {type(made).__name__}, not a list of vectors"
            ) from None
        if len(rows) != count:
            raise InvalidEmbedding(f"the embedder returned {len(rows)} vectors for {count} texts")
        packed = b"".join(map(self._packed, rows))
        vectors: Vector = np.frombuffer(packed, _FLOATS).reshape(count, self.dims)
        if np.count_nonzero(np.isfinite(vectors)) != vectors.size:
            raise InvalidEmbedding("the embedder returned a vector with NaN or infinity in it")
        return vectors

    def _packed(self, row: Any) -> bytes:
        """A vector as float32."""
        if type(row) is list and len(row) == self.dims:
            # A fifth of the time that numpy takes for what most models return. Whether anything else
            # is numbers, and what is too large for float32, is for numpy to say.
            with contextlib.suppress(struct.error, OverflowError):
                return self._floats.pack(*row)
        try:
            vector = np.asarray(row, dtype=_FLOATS)
        except (TypeError, ValueError, OverflowError):
            raise InvalidEmbedding(
                "the embedder returned a vector that is not a sequence of numbers"
            ) from None
        if vector.shape != (self.dims,):
            raise InvalidEmbedding(
                f"the embedder returned a vector of shape {vector.shape}; index['dims'] is {self.dims}"
            )
        return vector.tobytes()


class Vectors:
    """What the model returned for one batch: documents and queries by their text."""

    def __init__(
        self, model: str, dims: int, documents: Mapping[str, Vector], queries: Mapping[str, Vector]
    ) -> None:
        self._model = model
        self._dims = dims
        self._documents = documents
        self._queries = queries

    def query(self, text: str) -> Vector:
        """The vector of a query."""
        return self._queries[text]

    def embedded(self, texts: Sequence[tuple[str, str]]) -> Embedded | None:
        """The vectors of one memory, for its event."""
        if not texts:
            return None
        data = b"".join([self._documents[text].tobytes() for _, text in texts])
        return Embedded(self._model, self._dims, tuple([path for path, _ in texts]), data)


def _distinct(texts: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _exact(config: object) -> bool:
    """Whether PostgresStore's ``ann_index_config`` asks for a flat index. Its tuning has no use here."""
    if config is None:
        return False
    if not isinstance(config, Mapping):
        raise InvalidType(f"index['ann_index_config'] takes a mapping, not {type(config).__name__}")
    kind = config.get("kind", "hnsw")
    if kind not in _ANN_KINDS:
        raise InvalidConfig(f"index['ann_index_config']['kind'] must be one of {_ANN_KINDS}; got {kind!r}")
    if config.get("vector_type", "vector") not in ("vector", "halfvec"):
        raise InvalidConfig("index['ann_index_config']['vector_type'] must be 'vector' or 'halfvec'")
    for name in set(config) - {"kind", "vector_type"}:
        number = config[name]
        if name not in _ANN_NUMBERS:
            raise InvalidConfig(f"index['ann_index_config'] has no parameter {name!r}; known: {_ANN_NUMBERS}")
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise InvalidConfig(f"index['ann_index_config'][{name!r}] must be a positive int; got {number!r}")
    return bool(kind == "flat")
