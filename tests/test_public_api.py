"""What can be imported is what is promised: nothing becomes public, or disappears, by accident."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from pathlib import Path

import pytest

import eventstore

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("package", ["eventstore", "eventstore.cache", "eventstore.log", "projector.vectors"])
def test_all_is_sorted_and_complete(package: str) -> None:
    module = importlib.import_module(package)
    names = list(module.__all__)
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", ["eventstore", "projector"])
def test_packages_say_that_they_are_typed(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None
    assert Path(module.__file__).with_name("py.typed").exists()


def test_the_store_is_where_the_readme_says() -> None:
    assert "EventStore" in eventstore.__all__
    assert eventstore.EventStore.from_conn_string.__doc__


def test_every_error_is_of_one_tree_and_explained() -> None:
    errors = importlib.import_module("eventstore.errors")
    root = errors.EventStoreError
    found = [
        one for one in vars(errors).values() if isinstance(one, type) and one.__module__ == errors.__name__
    ]
    assert root in found
    for one in found:
        assert issubclass(one, root)
        assert one.__name__ in (errors.__doc__ or ""), f"{one.__name__} is missing from the drawn tree"
        assert one.__doc__


def test_the_changelog_names_the_installed_version() -> None:
    assert f"## [{version('eventstore-langgraph')}]" in (ROOT / "CHANGELOG.md").read_text()
