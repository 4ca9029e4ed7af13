"""Every memory of a store, read through ``list_namespaces`` and ``search`` alone, without refreshing any.

The trees of namespaces are read one after the other, page by page. Stores cut corners here: one
lists no more than ten namespaces, another puts memories of one time on each page in another order,
so that some come twice and some never. So what was read is held against what the store counts, and
where that is more, it is asked for all at once. Writing is left to ``migrating``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final

from langgraph.store.base import BaseStore, SearchItem

from eventstore.errors import InvalidConfig

log = logging.getLogger("projector.transfer")

PAGE: Final = 2_000
"""Memories, or namespaces, of one request."""


class Listing:
    """The memories under a prefix, each once: an iterator, the least recently updated of each tree first.

    Those that a store leaves out of its pages come last. Warns where the store counts more than it lists.
    """

    def __init__(self, source: BaseStore, prefix: tuple[str, ...]) -> None:
        """Raises what the source raises, as does iterating; ``InvalidConfig`` if it lists only so many."""
        self._source = source
        self._prefix = prefix
        self._seen: set[tuple[tuple[str, ...], str]] = set()
        self.total = _count(source, prefix)
        """How many the source counted at the start."""

    @property
    def read(self) -> int:
        """How many memories were given so far."""
        return len(self._seen)

    def __iter__(self) -> Iterator[SearchItem]:
        for root in self._roots():
            yield from self._under(root)
        if self.read < _count(self._source, self._prefix):
            # Not all namespaces were listed, or the store finds more under a prefix than lies there.
            yield from self._under(self._prefix)

    def _roots(self) -> list[tuple[str, ...]]:
        """Namespaces that no other one with memories stands above: reading below each gives all, once."""
        listed: set[tuple[str, ...]] = set()
        while True:
            before = len(listed)
            page = self._source.list_namespaces(prefix=self._prefix or None, limit=PAGE, offset=before)
            listed.update(map(tuple, page))
            if len(page) < PAGE or len(listed) == before:
                break
        found = {each for each in listed if _lies_under(each, self._prefix)}
        return sorted(each for each in found if not any(each[:depth] in found for depth in range(len(each))))

    def _under(self, namespace: tuple[str, ...]) -> Iterator[SearchItem]:
        """What lies under a namespace; stores list the last updated first, so pages are read backwards."""
        before, count = self.read, _count(self._source, namespace)
        end = count
        while end > 0:
            start = max(0, end - PAGE)
            yield from self._new(namespace, self._search(namespace, start, end - start))
            end = start
        missing = (before if namespace != self._prefix else 0) + count - self.read
        if missing > 0:
            found = self._search(namespace, 0, count)
            yield from self._new(namespace, found)
            if len(found) < count:
                log.warning(
                    "the source counts %d memories under %s and lists %d of them; migrate once more when "
                    "nothing is deleted there, and see whether it lists all",
                    count, namespace or "no prefix", len(found),
                )  # fmt: skip

    def _search(self, namespace: tuple[str, ...], offset: int, limit: int) -> list[SearchItem]:
        return self._source.search(namespace, limit=limit, offset=offset, refresh_ttl=False)

    def _new(self, namespace: tuple[str, ...], page: Iterable[SearchItem]) -> Iterator[SearchItem]:
        for item in sorted(page, key=lambda item: item.updated_at):
            at = (tuple(item.namespace), item.key)
            if at not in self._seen and _lies_under(at[0], namespace):
                self._seen.add(at)
                yield item


def _lies_under(namespace: tuple[str, ...], prefix: tuple[str, ...]) -> bool:
    # Some stores compare prefixes as text: under ("a",) they find ("ab",), too.
    return namespace[: len(prefix)] == prefix


def _count(source: BaseStore, namespace: tuple[str, ...]) -> int:
    """How many memories a search under a namespace finds, in a few small questions.

    Raises ``InvalidConfig`` where the source does not go as far as that.
    """
    refused: dict[int, Exception] = {}

    def holds(offset: int) -> bool:
        try:
            return bool(source.search(namespace, limit=1, offset=offset, refresh_ttl=False))
        except Exception as error:
            if not offset:
                raise
            # Perhaps only further than what is there.
            refused[offset] = error
            return False

    high = PAGE
    while holds(high):
        high *= 2
    low = 0
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            low = middle + 1
        else:
            high = middle
    # Redis finds nothing at its bound, and refuses what lies beyond.
    holds(low + 1)
    error = refused.get(low) or refused.get(low + 1)
    if error is not None:
        raise InvalidConfig(
            f"the source lists no more than {low} memories under {namespace or 'no prefix'} "
            f"({type(error).__name__}: {error}). Have it list more (Redis: FT.CONFIG SET MAXSEARCHRESULTS), "
            "or migrate one prefix after the other"
        ) from error
    return low
