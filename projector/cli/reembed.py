"""The command that changes the embedding model or the fields of a store, while others use it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Annotated, Any

import typer
from langchain_core.embeddings import Embeddings

from eventstore import EventStore
from eventstore.connection import parse
from projector.cli.items import Json
from projector.cli.output import complain, emit, print_table
from projector.cli.views import INTERRUPTED, Store, Views, say_more
from projector.places import require
from projector.reembed import BATCH
from projector.reembed import reembed as carry_out


def reembed(
    store: Store,
    embed: Annotated[str, typer.Option(help="The new model: 'provider:model', or module:factory.")],
    dims: Annotated[int, typer.Option(min=1, help="Size of its vectors.")],
    model: Annotated[str | None, typer.Option(help="Its name, as index['model'] will give it.")] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="Path whose text is embedded; may be repeated.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Texts of one call of the model.")] = BATCH,
    views: Views = None,
    as_json: Json = False,
) -> None:
    """Embed every memory with another model or other fields, then put these on record.

    The old vectors serve until then. Ctrl-C stops it; the next run continues.
    """
    say_more()
    require(parse(store))
    index = {"embed": _model(embed), "dims": dims, "model": model, "fields": field}
    with EventStore.open(store, views=views) as opened:
        try:
            done = carry_out(opened, index=index, batch=batch)
        except KeyboardInterrupt:
            complain("stopped; the old model is of record, and the next run continues from there")
            raise typer.Exit(INTERRUPTED) from None
    if as_json:
        emit({**done.model_dump(), "rate": done.rate})
        return
    print_table(
        [
            {
                "outcome": done.outcome,
                "model": done.model,
                "fields": ", ".join(done.fields),
                "replaced": done.replaced,
                "memories": done.memories,
                "texts": done.texts,
                "present": done.present,
                "seconds": round(done.seconds, 1),
                "texts/s": round(done.rate),
            }
        ]
    )


def _model(name: str) -> Any:
    """An embedder that a factory of one's own gives, else the name, for LangChain to look up."""
    module, _, attribute = name.partition(":")
    if not attribute.isidentifier() or importlib.util.find_spec(module.partition(".")[0]) is None:
        return name
    found = getattr(importlib.import_module(module), attribute, None)
    if found is None:
        return name
    return found if isinstance(found, Embeddings) else found()
