"""What is opened and closed: usable in ``with`` and ``async with``."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Opened(ABC):
    """A face on a log, a store or a saver, from when it is opened until it is closed."""

    @abstractmethod
    def close(self) -> None:
        """Give up what it holds. Idempotent."""

    @abstractmethod
    def _check(self) -> None:
        """Raise what makes it unusable: it is closed, or was opened before a fork."""

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
