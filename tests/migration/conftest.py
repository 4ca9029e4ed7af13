"""These tests look at what a target's log holds, so theirs is in a folder."""

from __future__ import annotations

import pytest

from tests.logs import Kind


@pytest.fixture
def kind_of_log() -> Kind:
    """The one kind of log that is files."""
    return "embedded"
