"""From rows of vectors to a FAISS index of one model: what of them counts there, and what it is saved as.

A view may hold vectors of several models. An index is of one, and of the vectors that were made for
it with certain default fields, so that no two models' vectors ever meet in a ranking.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from eventstore.views import Signature
from projector.projections import vectors
from projector.vectors import VectorChange, VectorIndex, manifest


def feed(index: VectorIndex, of: Signature, rows: Sequence[tuple[int, vectors.VectorRow]]) -> None:
    """Apply rows of vectors to an index of a model and fields. The caller holds the index's lock.

    What another model made cannot be compared: as all that a memory has, it means that the memory is
    not ranked; added for another index, it means nothing.
    """
    changes = [
        VectorChange(sequence, row.key, row.vectors if row.fits(of) else None)
        for sequence, row in rows
        if row.counts_for(of)
    ]
    index.apply(changes, through=rows[-1][0] if rows else None)


def edition(fields: tuple[str, ...] | None) -> str:
    """How an index says which fields' vectors it holds."""
    return "" if fields is None else json.dumps(fields)


def indexed(owner: manifest.Owner) -> Signature:
    """What a saved index is of."""
    fields = tuple(json.loads(owner.edition)) if owner.edition else None
    return Signature(owner.identity.partition("|")[2], owner.dims, fields)
