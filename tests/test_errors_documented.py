"""``docs/errors.md`` and the error tree: each class is explained there, and nothing else is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eventstore import errors

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "errors.md").read_text(encoding="utf-8")
CLASSES: dict[str, type[errors.EventStoreError]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type)
    and issubclass(found, errors.EventStoreError)
    and found.__module__ == errors.__name__
}
SECTIONS = {
    found[1]: found[2]
    for found in re.finditer(r"^### (\w+)$\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
}
DRAWN = re.compile(r"^([│ ]*)[├└]── (\w+)", re.MULTILINE)


def test_every_class_has_a_section_and_every_section_a_class() -> None:
    assert set(SECTIONS) == set(CLASSES)


def test_the_page_draws_the_tree_as_it_is() -> None:
    parents = ["EventStoreError"]
    drawn: dict[str, str] = {}
    for indent, name in DRAWN.findall(PAGE):
        depth = len(indent) // 4 + 1
        del parents[depth:]
        drawn[name] = parents[-1]
        parents.append(name)
    real = {
        name: next(base.__name__ for base in found.__bases__ if issubclass(base, errors.EventStoreError))
        for name, found in CLASSES.items()
        if found is not errors.EventStoreError
    }
    assert drawn == real


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_class_says_what_it_is(name: str) -> None:
    own = CLASSES[name].__dict__.get("__doc__")
    assert own
    assert own.strip().endswith(".")


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_the_page_says_whether_to_retry_as_the_class_does(name: str) -> None:
    said = re.search(r"Retriable:\s+(yes|no)", SECTIONS[name])
    assert said, f"{name} does not say whether it is retriable"
    # A bare ViewError is made retriable where it is raised, which its section says.
    if name != "ViewError":
        assert (said[1] == "yes") is CLASSES[name].retriable


def test_nearly_every_section_shows_a_message() -> None:
    without = {name for name, text in SECTIONS.items() if not re.search(r"^> .+", text, re.MULTILINE)}
    assert without <= {"EventStoreError", "ViewError", "NoSuchMoment", "ReadOnlyStore"}
