"""These tests change the model of a folder that several processes share."""

from __future__ import annotations

import pytest

from tests.logs import Kind


@pytest.fixture
def kind_of_log() -> Kind:
    """The one kind of log that is files."""
    return "embedded"
