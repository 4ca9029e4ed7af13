"""Another process on the same store: ``python -m tests.cache.children CONN_STRING VIEWS``.

It carries out commands, one JSON list a line, and answers each with a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eventstore import EventStore
from eventstore.cache import Cache, EventCache

ROOT = Path(__file__).parents[2]
HOUR = timedelta(hours=1)


class OtherProcess:
    """A child that is told what to do. Killed at the end, closed or not."""

    def __init__(self, conn: str, views: Path) -> None:
        command = [sys.executable, "-m", "tests.cache.children", conn, str(views)]
        self._child = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "ready"

    def do(self, *command: Any) -> Any:
        assert self._child.stdin
        self._child.stdin.write(json.dumps(command) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout):
            if stream:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _answer(self) -> Any:
        assert self._child.stdout
        line = self._child.stdout.readline()
        assert line, f"the other process died with {self._child.wait()}"
        return json.loads(line)


async def _carry_out(store: EventStore, cache: Cache, loads: list[str], command: list[Any]) -> Any:
    name, *arguments = command
    if name == "swr":
        key, value, options = arguments
        pause = options.pop("pause", 0)

        async def load() -> Any:
            loads.append(key)
            await asyncio.sleep(pause)
            return value

        windows = {each: timedelta(seconds=options.pop(each)) for each in [*options] if each != "depends_on"}
        on = [_dependency(each) for each in options.get("depends_on", ())]
        results = await asyncio.gather(*[cache.swr(key, load, depends_on=on, **windows) for _ in range(25)])
        (result,) = {(json.dumps(each.value), each.status) for each in results}
        return [json.loads(result[0]), result[1]]
    if name == "put":
        store.put(tuple(arguments[0]), arguments[1], arguments[2])
        return None
    if name == "delete":
        store.delete(tuple(arguments[0]), arguments[1])
        return None
    if name == "loads":
        return len(loads)
    if name == "node_get":
        return [value for value in EventCache(cache).get([(tuple(arguments[0]), arguments[1])]).values()]
    if name == "sync":
        return await cache.sync()
    return await getattr(cache, name)(*arguments)


def _dependency(given: list[Any]) -> Any:
    return (tuple(given[0]), given[1]) if isinstance(given[0], list) else tuple(given)


async def main(conn: str, views: str) -> None:
    store = EventStore.open(conn, views=views)
    cache = Cache.from_store(store)
    loads: list[str] = []
    print(json.dumps("ready"), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await _carry_out(store, cache, loads, json.loads(line))), flush=True)
    store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
