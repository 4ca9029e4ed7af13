"""Serializers that do something in between: what others do at exactly the wrong moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

Act = Callable[[], object]


class Hooked(JsonPlusSerializer):
    """Calls ``at_dump`` when the value ``"now"`` is written, and ``at_load`` when it is read; once each."""

    def __init__(self, at_dump: Act | None = None, at_load: Act | None = None) -> None:
        super().__init__(allowed_msgpack_modules=None)
        self.at_dump = at_dump
        self.at_load = at_load

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if obj == "now" and self.at_dump is not None:
            act, self.at_dump = self.at_dump, None
            act()
        return super().dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        found = super().loads_typed(data)
        if found == "now" and self.at_load is not None:
            act, self.at_load = self.at_load, None
            act()
        return found
