"""Old schemas are brought up step by step; unknown ones are refused."""

from __future__ import annotations

import pytest

from eventstore import upcasters
from eventstore.errors import UndecodableEvent
from eventstore.events import Kind
from eventstore.upcasters import Headers, upcast


def test_each_step_takes_one_version_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(number: bytes) -> upcasters.Upcaster:
        def act(headers: Headers, value: bytes | None) -> tuple[Headers, bytes | None]:
            return {**headers, "seen": headers.get("seen", b"") + number}, (value or b"") + number

        return act

    monkeypatch.setitem(upcasters.CURRENT, Kind.PUT, 3)
    monkeypatch.setitem(upcasters.UPCASTERS, (Kind.PUT, 1), step(b"1"))
    monkeypatch.setitem(upcasters.UPCASTERS, (Kind.PUT, 2), step(b"2"))
    assert upcast(Kind.PUT, 1, {"id": b"x"}, b"") == ({"id": b"x", "seen": b"12"}, b"12")
    assert upcast(Kind.PUT, 2, {"id": b"x"}, b"") == ({"id": b"x", "seen": b"2"}, b"2")
    assert upcast(Kind.PUT, 3, {"id": b"x"}, b"") == ({"id": b"x"}, b"")
    with pytest.raises(UndecodableEvent, match=r"4.*1 to 3"):
        upcast(Kind.PUT, 4, {}, b"")


@pytest.mark.parametrize("kind", Kind)
def test_there_is_a_step_from_every_version_ever_written(kind: Kind) -> None:
    for version in range(1, upcasters.CURRENT[kind]):
        assert (kind, version) in upcasters.UPCASTERS
    with pytest.raises(UndecodableEvent, match="upgrade"):
        upcast(kind, upcasters.CURRENT[kind] + 1, {}, None)
    with pytest.raises(UndecodableEvent):
        upcast(kind, 0, {}, None)
