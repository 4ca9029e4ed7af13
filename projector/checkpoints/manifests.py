"""Reading how values are made, and keeping what was read last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from eventstore.checkpoint.recent import Recent
from eventstore.checkpoint.views import Manifest
from projector.checkpoints import tables

Get = Callable[[bytes], bytes | None]
_KEPT_DIGESTS: Final = 500_000


class Manifests:
    """Of one view. Safe for threads."""

    def __init__(self) -> None:
        self._kept: Recent[Manifest] = Recent(_KEPT_DIGESTS)

    def get(self, thread: str, value: bytes, get: Get) -> Manifest | None:
        """How a value is made; ``None`` where it, or a node of it, is not there."""
        kept = self._kept.get(_entry(thread, value))
        if kept is not None:
            return kept
        data = get(tables.thread_prefix(tables.VALUE, thread) + value)
        if data is None:
            return None
        tag, head, sealed, entries = tables.manifest_entries(data)
        prefix = tables.thread_prefix(tables.NODE, thread)
        digests: list[bytes] = []
        for family, name in entries:
            if family == tables.PART:
                digests.append(name)
                continue
            node = get(prefix + name)
            if node is None:
                return None
            digests += tables.node_digests(node)
        manifest = Manifest(tag, head, sealed, tuple(digests))
        self.keep(thread, value, manifest)
        return manifest

    def keep(self, thread: str, value: bytes, manifest: Manifest) -> None:
        """Remember how a value is made."""
        self._kept.put(_entry(thread, value), manifest, 1 + len(manifest.digests))


def _entry(thread: str, value: bytes) -> bytes:
    return value + thread.encode()
