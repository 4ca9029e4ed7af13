"""Settings are checked once, by name."""

from __future__ import annotations

from typing import Any

import pytest

from eventstore import StoreConfig
from eventstore.errors import InvalidConfig, InvalidType


def test_a_config_is_taken_as_it_is_as_a_mapping_or_not_at_all() -> None:
    config = StoreConfig(max_value_bytes=5)
    assert StoreConfig.of(config) is config
    assert StoreConfig.of({"max_value_bytes": 5}) == config
    assert StoreConfig.of(None) == StoreConfig()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"speed": 1}, "speed"),
        ({"max_value_bytes": 0}, "max_value_bytes"),
        ({"max_value_bytes": "many"}, "max_value_bytes"),
        ({"read_consistency": "sometimes"}, "read_consistency"),
        ({"wait_timeout": -1}, "wait_timeout"),
        ({"follow_interval": 0}, "follow_interval"),
        ({"segment_bytes": 1}, "segment_bytes"),
    ],
)
def test_a_wrong_option_is_named_with_those_that_exist(given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidConfig, match=named) as caught:
        StoreConfig.of(given)
    assert "max_value_bytes" in str(caught.value)


@pytest.mark.parametrize("given", ["fast", 5, [("max_value_bytes", 5)]])
def test_what_is_no_mapping_is_refused(given: Any) -> None:
    with pytest.raises(InvalidType, match="config"):
        StoreConfig.of(given)


def test_a_config_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        StoreConfig().max_value_bytes = 5  # type: ignore[misc]
