"""These tests carry logs about as files: copies, exports, snapshots. Theirs is in a folder."""

from __future__ import annotations

import pytest

from tests.logs import Kind


@pytest.fixture
def kind_of_log() -> Kind:
    """The one kind of log that is files."""
    return "embedded"
