"""Every error this project raises, as one tree.

::

    EventStoreError
    ├── InvalidInput (ValueError)        the call itself is wrong; nothing was appended
    │   ├── InvalidNamespace             also langgraph's InvalidNamespaceError
    │   ├── InvalidFilter
    │   ├── LimitExceeded                a key, value, namespace or batch larger than allowed
    │   ├── InvalidConfig                connection string, index or ttl settings
    │   ├── IndexMismatch                the index settings differ from the vectors on record
    │   └── NoSuchMoment                 a moment before the log's first event or beyond its end
    ├── InvalidType (TypeError)          a value or argument of the wrong Python type
    ├── EmbeddingFailed                  the embedder raised; also an instance of its own error
    ├── InvalidEmbedding (ValueError)    the embedder returned the wrong number or shape of vectors
    ├── VersionConflict                  a conditional write lost; carries the current version
    ├── ReadOnlyStore                    a write to a store of the past
    ├── CheckpointSealed                 a checkpoint whose key is missing, or another one
    ├── CheckpointUnreadable             bytes of a checkpoint that the saver's serializer does not load
    ├── StoreClosed (RuntimeError)       use after close
    │   └── StoreForked                  use of a parent's store in a forked child
    ├── LogError
    │   ├── LogUnavailable               could not write; nothing was appended; retry may help
    │   │   └── LogFull                  no space left for the log
    │   ├── OutcomeUnknown               the write may or may not be in the log
    │   ├── LogDamaged                   a checksum says the log was changed or cut
    │   └── LogMismatch                  this view was built from another log, or from a longer one
    ├── UndecodableEvent                 a record no reader of this version understands
    │   └── UnappliedEvent               one that is understood, and that a projection fails on
    └── ViewError
        ├── ViewBehind                   the write is in the log, the view does not show it yet
        └── ViewDamaged                  the view lost data; the log is intact, reopening rebuilds it

Each message says what was being done, on what, and what to do next. An error never
carries a memory's content, since error texts travel to places memories must not go.
"""

from __future__ import annotations

from typing import cast

from langgraph.store.base import InvalidNamespaceError


class EventStoreError(Exception):
    """Root of the tree. ``retriable`` tells whether the same call may succeed later."""

    retriable: bool = False


class InvalidInput(EventStoreError, ValueError):
    """An argument that no retry will make right. Nothing was appended."""


class InvalidNamespace(InvalidInput, InvalidNamespaceError):
    """A namespace that is not a tuple of usable labels."""


class InvalidFilter(InvalidInput):
    """A filter that is malformed, whether or not any memory would have been compared."""


class LimitExceeded(InvalidInput):
    """A key, value, namespace or batch larger than the store accepts."""


class InvalidConfig(InvalidInput):
    """A connection string, index, ttl or other setting that cannot be used."""


class IndexMismatch(InvalidInput):
    """The index settings name another model or vector size than the vectors on record."""


class NoSuchMoment(InvalidInput):
    """A moment that the log does not hold: before its first event, or beyond its end."""


class InvalidType(EventStoreError, TypeError):
    """An argument or value of a Python type that JSON, or this call, has no place for."""


class EmbeddingFailed(EventStoreError):
    """The embedder raised. Nothing was appended; the original error is ``__cause__``."""

    retriable = True

    @classmethod
    def wrap(cls, error: Exception, doing: str) -> EmbeddingFailed:
        """An error that is both ``EmbeddingFailed`` and of the embedder's own class.

        Code that already catches its provider's errors (rate limits, time-outs) keeps
        working. Classes that cannot be combined give a plain ``EmbeddingFailed``.
        """
        text = (
            f"{doing}: {type(error).__name__}: {error}. Nothing was appended; retry when the embedder answers"
        )
        try:
            both = cast(
                type[EmbeddingFailed], type(cls.__name__, (cls, type(error)), {"__module__": cls.__module__})
            )
            made = both.__new__(both, text)
        except TypeError:
            return cls(text)
        vars(made).update(vars(error))
        made.args = (text,)
        return made

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InvalidEmbedding(EventStoreError, ValueError):
    """The embedder returned vectors of the wrong number, size or with non-finite numbers."""


class VersionConflict(EventStoreError):
    """A conditional write lost. ``current`` is the version that is there (0: absent)."""

    def __init__(self, message: str, *, current: int) -> None:
        super().__init__(message)
        self.current = current


class ReadOnlyStore(EventStoreError):
    """A write to the store as it was at a past moment. Nothing was appended."""


class CheckpointSealed(EventStoreError):
    """A checkpoint is sealed under a key that is not at hand, or its bytes were changed."""


class CheckpointUnreadable(EventStoreError):
    """Bytes of a checkpoint that the saver's serializer does not load; what it raised is ``__cause__``."""


class StoreClosed(EventStoreError, RuntimeError):
    """The store was closed."""


class StoreForked(StoreClosed):
    """The store was opened before a fork and is used in the child."""


class LogError(EventStoreError):
    """Something about the log itself."""


class LogUnavailable(LogError):
    """The log could not be written. Nothing was appended."""

    retriable = True


class LogFull(LogUnavailable):
    """There is no space left for the log. Nothing was appended."""


class OutcomeUnknown(LogError):
    """The write may or may not be in the log; read before writing again."""


class LogDamaged(LogError):
    """A checksum says that bytes of the log were changed, or cut out of its middle."""


class LogMismatch(LogError):
    """A view that was built from another log, or from more of this log than exists."""


class UndecodableEvent(EventStoreError):
    """A record that this version cannot understand. The view stops in front of it, or sets it aside."""


class UnappliedEvent(UndecodableEvent):
    """An event that a projection fails on: a defect of this release. It is treated as one not understood."""


class ViewError(EventStoreError):
    """Something about a materialized view; the log is not affected."""


class ViewBehind(ViewError):
    """The write is in the log, but the view does not show it yet."""

    retriable = True


class ViewDamaged(ViewError):
    """The view cannot be trusted. The log is intact; opening the store again rebuilds the view."""
