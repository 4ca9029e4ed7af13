"""What the tests run in processes of their own: ``python -m tests.log.children NAME ARGUMENTS``.

Each prints JSON lines.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from eventstore.errors import LogFull, LogUnavailable, StoreForked
from eventstore.log import EmbeddedLog, Record

ROOT = Path(__file__).parents[2]


def start(name: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.log.children", name, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(child: subprocess.Popen[str]) -> list[Any]:
    """Wait for a child that must succeed; its JSON lines."""
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 0, out
    return [json.loads(line) for line in out.splitlines()]


def run(name: str, *arguments: object) -> list[Any]:
    return finish(start(name, *arguments))


def say(fact: Any) -> None:
    print(json.dumps(fact), flush=True)


def put(log: EmbeddedLog, key: str, value: bytes = b"v") -> int:
    [[record]] = log.append([log.prepare([Record(key.encode(), value, ())])])
    return record.offset


def keys(log: EmbeddedLog, start: int = 0) -> list[str]:
    return [record.key.decode() for records in log.read(start) for record in records]


def writer(directory: str, name: str, count: str, segment_bytes: str) -> None:
    """Waits for a line, then appends one record at a time."""
    log = EmbeddedLog.open(Path(directory), segment_bytes=int(segment_bytes))
    say("ready")
    sys.stdin.readline()
    for number in range(int(count)):
        put(log, f"{name}-{number}", b"x" * (number % 50))
    log.close()


def follower(directory: str, until: str) -> None:
    """Follows the mark and reads what is new, to ``until`` records."""
    log = EmbeddedLog.open(Path(directory))
    say("ready")
    seen: list[str] = []
    moves = 0
    give_up = time.monotonic() + 20
    while len(seen) < int(until) and time.monotonic() < give_up:
        if log.end() > len(seen):
            moves += 1
            seen += keys(log, len(seen))
        time.sleep(0.0005)
    log.close()
    say([moves, seen])


def storm(directory: str, rounds: str, segment_bytes: str) -> None:
    """Kills a child in a put storm, again and again; tells what it printed and what is there."""
    chance = random.Random(1)
    for number in range(int(rounds)):
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            log = EmbeddedLog.open(Path(directory), segment_bytes=int(segment_bytes))
            for put_number in range(1_000_000):
                put(log, f"{number}-{put_number}", b"x" * chance.randrange(8000))
                os.write(write_end, f"{number}-{put_number}\n".encode())
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            first = pipe.readline()
            time.sleep(chance.random() * 0.03)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            printed = [first.strip(), *pipe.read().split()]
        log = EmbeddedLog.open(Path(directory), segment_bytes=int(segment_bytes))
        offsets = [record.offset for records in log.read(0) for record in records]
        say({"printed": printed, "present": keys(log), "dense": offsets == list(range(log.end()))})
        log.close()


def full(directory: str, limit: str) -> None:
    """Appends until files may not grow, then lets them grow again."""
    log = EmbeddedLog.open(Path(directory))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), hard))
    done: list[str] = []
    refused = ""
    while not refused:
        try:
            put(log, f"k{len(done)}", b"x" * 5000)
            done.append(f"k{len(done)}")
        except LogFull as error:
            refused = str(error)
    say({"refused": refused, "same": keys(log) == done})
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    offset = put(log, "after")
    say({"offset": offset == len(done), "same": keys(log) == [*done, "after"]})
    log.close()


def forked(directory: str) -> None:
    """Forks with a log open; the child tries everything on it."""
    log = EmbeddedLog.open(Path(directory))
    put(log, "before")
    reading = log.read(0)
    child = os.fork()
    if not child:
        refused = 0
        for call in (log.end, lambda: put(log, "child"), lambda: log.read(0), lambda: next(reading)):
            try:
                call()
            except StoreForked:
                refused += 1
        log.close()
        own = EmbeddedLog.open(Path(directory))
        say({"refused": refused, "own": put(own, "own")})
        own.close()
        os._exit(0)
    os.waitpid(child, 0)
    say({"parent": put(log, "parent"), "keys": keys(log)})
    log.close()


def orphan(directory: str) -> None:
    """Dies at the moment it holds the lock, with a forked child that lives on."""
    log = EmbeddedLog.open(Path(directory))
    read_end, write_end = os.pipe()

    def die(_: object) -> None:
        child = os.fork()
        if not child:
            os.write(write_end, b"1")
            time.sleep(100)
            os._exit(0)
        os.read(read_end, 1)
        say(child)
        os.kill(os.getpid(), signal.SIGKILL)

    log.append([log.prepare([Record(b"k", b"v", ())])], die)


def powerless(directory: str) -> None:
    """Tries to open a folder that belongs to somebody else."""
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        EmbeddedLog.open(Path(directory))
        say("opened")
    except LogUnavailable as error:
        say(str(error))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
