"""What was used last, up to a size."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """Values by key; the least recently used go when all together weigh too much. Safe for threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._entries: OrderedDict[bytes, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: bytes) -> V | None:
        """The value, if it is there; counts as a use."""
        found = self._entries.get(key)
        if found is None:
            return None
        # Another thread may have dropped it just now.
        with contextlib.suppress(KeyError):
            self._entries.move_to_end(key)
        return found[0]

    def put(self, key: bytes, value: V, weight: int) -> None:
        """Keep a value; one that weighs more than all may together is not kept."""
        if weight > self._most:
            return
        with self._lock:
            before = self._entries.pop(key, None)
            self._weight += weight - (0 if before is None else before[1])
            self._entries[key] = (value, weight)
            while self._weight > self._most:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._weight -= dropped
