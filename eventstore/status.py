"""Where a store stands: how far the log goes, how much of it the view shows, and what stopped it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Status(BaseModel):
    """A store at one moment."""

    model_config = ConfigDict(frozen=True)

    log: str
    """Where the log is."""
    log_id: str
    end: str
    """The log's high-water mark, as a position."""
    applied: str
    """The position before which everything is visible in this process's view."""
    lag: int
    """How many offsets lie between the two."""
    memories: int
    """Live memories in the view, expired ones not yet swept included."""
    stopped: str | None
    """Why the projection goes no further, if it does not."""
