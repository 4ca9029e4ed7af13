"""What Maya says to the agent: data, and nothing else."""

from __future__ import annotations

from typing import NamedTuple

USER = "maya"

LEARNING_THREAD = "monday-breakfast"
RECALL_THREAD = "thursday-evening"

LEARNING: tuple[str, ...] = (
    "Good morning! Nice to meet you. I work as a nurse on the night shift.",
    "I have played the cello since I was nine. Isn't it a lovely day?",
    "What else? I am allergic to peanuts. My sister Ines lives in Lisbon with two cats.",
    "I get up at five and go running along the river before work.",
    "I would rather take a sleeper train than fly. I can't stand horror films.",
    "My daughter starts school in September. My flat is on the fourth floor and there is no lift.",
)


class Recall(NamedTuple):
    """A question, and a word of the memory that answers it."""

    question: str
    remembers: str


RECALLS: tuple[Recall, ...] = (
    Recall("Which musical instrument do I know?", "cello"),
    Recall("Are there nuts I must not eat?", "peanuts"),
    Recall("Which movie should we avoid tonight?", "horror"),
    Recall("What do I do for exercise?", "running"),
    Recall("Do any of my relatives live abroad?", "Ines"),
)

CORRECTION = "Actually, my sister Ines lives in Porto now."
AFTERWARDS = Recall("Do any of my relatives live abroad?", "Porto")
