"""What the tests of the whole store share: embedders, dumps of everything a view holds, damage."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings

from eventstore import EventStore
from eventstore.log import EmbeddedLog
from projector.rocks import FAMILIES, scan
from projector.runtime import OpenRuntime

ROOT = Path(__file__).parents[2]
DIMS = 4
ALL = 2**62


class TinyEmbedder(Embeddings):
    """A vector of small whole numbers for each text, so equal scores are common. Counts its calls."""

    def __init__(self) -> None:
        self.documents = 0
        self.queries = 0
        self.failure: Exception | None = None

    def vector(self, text: str) -> list[float]:
        if not text.strip():
            return [0.0] * DIMS
        seed = zlib.crc32(text.encode())
        return [float((seed >> 8 * at) % 5) - 2.0 for at in range(DIMS)]

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        if self.failure is not None:
            raise self.failure
        self.documents += len(texts)
        return [self.vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        if self.failure is not None:
            raise self.failure
        self.queries += 1
        return self.vector(text)

    @property
    def calls(self) -> int:
        return self.documents + self.queries


def index_of(embedder: Embeddings, **more: Any) -> dict[str, Any]:
    return {"dims": DIMS, "embed": embedder, "fields": ["t", "tags[*]"], "model": "tiny", **more}


def runtime_of(store: EventStore) -> OpenRuntime:
    runtime = store._runtime
    assert isinstance(runtime, OpenRuntime)
    return runtime


def rows(store: EventStore) -> dict[str, dict[bytes, bytes]]:
    """Every row of every column family: two views of one log must agree on all of them."""
    runtime_of(store).catch_up()
    db = runtime_of(store)._view.db
    return {name: dict(scan(getattr(db, name), b"")) for name in ("default", *FAMILIES)}


def ranked(store: EventStore, queries: Iterable[str]) -> dict[str, list[tuple[Any, ...]]]:
    """Namespaces, keys and scores, best first, for each query over the whole store."""
    return {
        query: [
            (hit.namespace, hit.key, round(hit.score or 0.0, 4))
            for hit in store.search((), query=query, limit=ALL, refresh_ttl=False)
        ]
        for query in queries
    }


def listed(store: EventStore) -> list[dict[str, Any]]:
    """Every memory, most recently updated first, as its users see it."""
    return [item.dict() for item in store.search((), limit=ALL, refresh_ttl=False)]


def keys_of(store: EventStore, *prefix: str) -> set[str]:
    return {item.key for item in store.search(prefix, limit=ALL, refresh_ttl=False)}


def log_end(directory: Path) -> int:
    """Where the log ends, asked by an outsider."""
    log = EmbeddedLog.open(directory / "log")
    try:
        return log.end()
    finally:
        log.close()


def log_keys(directory: Path) -> list[bytes]:
    """Record keys in log order, asked by an outsider; offsets are checked to be dense."""
    log = EmbeddedLog.open(directory / "log")
    try:
        records = [record for group in log.read(0) for record in group]
        assert [record.offset for record in records] == list(range(log.end()))
        return [record.key for record in records]
    finally:
        log.close()


def view_number(store: EventStore) -> str:
    return runtime_of(store)._lease.directory.name


def python(code: str, *arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, in the project's folder."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def in_child(act: Callable[[], None], *, timeout: int = 30) -> int:
    """Run ``act`` in a forked child and return its exit code, or minus the signal that ended it.

    The child dies after ``timeout`` seconds, so that a hang is a failure and not a wait.
    """
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(timeout)
            act()
            code = 0
        except BaseException:
            logging.getLogger("tests").exception("the child failed")
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def together(*acts: Callable[[], Any]) -> list[Any]:
    """Run each in a thread of its own, all at once; their results, or the first exception."""
    results: list[Any] = [None] * len(acts)
    failures: list[BaseException] = []

    def run(at: int) -> None:
        try:
            results[at] = acts[at]()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
    return results


def run_async(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(main)


def flip(path: Path, at: int) -> None:
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(bytes(data))


def warnings_in(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")
