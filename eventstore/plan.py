"""A batch between the caller and the log: what to embed, and the records it becomes.

Planning finds everything that can be wrong with a batch before any of it is read, embedded or
appended. Of several writes of one memory in a batch the last one wins, and is the only one
appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from langgraph.store.base import Op

from eventstore.codec import encode
from eventstore.embedding import Embedder, Vectors
from eventstore.errors import VersionConflict
from eventstore.events import Event, Kind, Provenance, new_id
from eventstore.keys import decode_item
from eventstore.log.base import Record
from eventstore.operations import Conditional, Put, Search, Step, check
from eventstore.turns import EVERY_STEPS, in_turns
from eventstore.views import Written


class Plan(NamedTuple):
    """A checked batch."""

    steps: list[Step]
    puts: dict[bytes, Put]
    """The winning write of each memory."""
    texts: dict[bytes, list[tuple[str, str]]]
    """Path and text of what each memory has embedded."""
    queries: list[str]

    @property
    def needs_model(self) -> bool:
        """Whether anything is to be embedded."""
        return bool(self.queries) or any(self.texts.values())

    @property
    def documents(self) -> list[str]:
        """The texts of all memories."""
        return [text for found in self.texts.values() for _, text in found]

    @property
    def writes_only(self) -> bool:
        """Whether no step reads anything."""
        return len(self.puts) == len(self.steps) or all(isinstance(step, Put) for step in self.steps)


def plan(ops: Sequence[Op | Conditional], embedder: Embedder | None, max_value_bytes: int) -> Plan:
    """Check a batch. Raises the first thing wrong with any of its operations."""
    steps = check(ops, max_value_bytes)
    puts = {step.key: step for step in steps if isinstance(step, Put)}
    texts: dict[bytes, list[tuple[str, str]]] = {}
    queries: list[str] = []
    if embedder is not None:
        for key, put in puts.items():
            if put.value is not None and put.indexing is not False:
                texts[key] = embedder.texts(put.value, put.indexing, put.given)
        queries = [step.query for step in steps if isinstance(step, Search) and step.query]
    return Plan(steps, puts, texts, queries)


def records(
    planned: Plan, vectors: Vectors | None, provenance: Provenance, omits_expired: bool
) -> list[Record]:
    """One record for each memory the batch writes."""
    made = []
    for put in in_turns(planned.puts.values(), EVERY_STEPS):
        embedded = vectors.embedded(planned.texts.get(put.key, ())) if vectors is not None else None
        event = Event(
            kind=Kind.DELETE if put.value is None else Kind.PUT,
            key=put.key,
            id=new_id(),
            value=put.value,
            provenance=provenance,
            ttl=put.ttl,
            indexing=put.indexing,
            embedded=embedded,
            expected_version=put.expected_version,
            omits_expired=omits_expired,
        )
        made.append(encode(event))
    return made


def refuse_rejected(written: Written) -> None:
    """Raise ``VersionConflict`` for the first record whose condition did not hold."""
    for record in written.records:
        outcome = written.outcomes.get((record.partition, record.offset))
        if outcome is not None and outcome.reason == "rejected":
            namespace, key = decode_item(record.key)
            raise VersionConflict(
                f"{namespace} {key!r} is at version {outcome.version}, not at the one expected; "
                "read it again and decide anew",
                current=outcome.version,
            )
