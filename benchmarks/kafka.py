"""``python -m benchmarks.kafka``: the store on Kafka beside kafka-python alone, on one broker in one run.

    python -m benchmarks.kafka
    python -m benchmarks.kafka --servers host:9092 --json figures.json

Without ``--servers`` a broker is started, as the tests do it. Both sides write the same bytes, and
take turns, so that ratios hold on a busy machine. "Alone" is what the network and the broker
cost anyone: ``send().get()`` by one producer, and ``poll()`` by one consumer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from rich.console import Console
from rich.table import Table

from benchmarks import servers
from benchmarks.measure import threads
from eventstore import EventStore
from eventstore.codec import encode
from eventstore.events import Event, Kind
from eventstore.keys import encode_item
from eventstore.log.kafka import stamps

USERS: Final = 50
PARTITIONS: Final = 6
VALUE: Final = {"text": "x" * 280, "n": 1}
GOAL: Final = 1.4
"""A put takes at most so many times as long as the acknowledgement alone."""


class Figure(NamedTuple):
    """One line of the report: both sides, and how they compare."""

    name: str
    unit: str
    ours: float
    alone: float

    @property
    def ratio(self) -> float:
        """How many times as much work the same thing is with us."""
        return self.ours / self.alone if self.unit == "ms" else self.alone / self.ours


class Alone:
    """kafka-python and nothing else, writing the records that a store would."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers, self._topic = servers, topic
        self._session = uuid.uuid4().bytes
        self._producer = KafkaProducer(
            bootstrap_servers=servers,
            acks="all",
            enable_idempotence=True,
            metrics_enabled=False,
            batch_size=256 * 1024,
        )
        self._producer.partitions_for(topic)

    def send(self, number: int) -> Any:
        key = encode_item((f"user{number % USERS}", "notes"), f"k{number}")
        record = encode(Event(Kind.PUT, key, uuid.uuid4().bytes, json.dumps(VALUE).encode()))
        return self._producer.send(
            self._topic,
            key=record.key,
            value=record.value,
            headers=stamps.stamped(record, self._session, number + 1, time.time_ns() // 1000, None),
            partition=stamps.partition_of(record.key, PARTITIONS),
        )

    def put(self, number: int) -> None:
        self.send(number).get(30)

    def fill(self, count: int) -> None:
        for number in range(count):
            self.send(number)
        self._producer.flush(120)

    def read(self, count: int) -> float:
        """Seconds to read so many records from the beginning."""
        partitions = [TopicPartition(self._topic, number) for number in range(PARTITIONS)]
        consumer = KafkaConsumer(
            bootstrap_servers=self._servers,
            auto_offset_reset="none",
            isolation_level="read_committed",
            metrics_enabled=False,
            max_partition_fetch_bytes=4 << 20,
        )
        with contextlib.closing(consumer):
            consumer.assign(partitions)
            for each in partitions:
                consumer.seek(each, 0)
            began, seen = time.perf_counter(), 0
            while seen < count:
                seen += sum(len(records) for records in consumer.poll(1_000, max_records=5_000).values())
            return time.perf_counter() - began

    def close(self) -> None:
        self._producer.close(timeout=10)


def measure(
    address: str, folder: Path, *, rounds: int, calls: int, seconds: float, records: int
) -> list[Figure]:
    """All figures of one run against one broker; topics are left behind."""

    def at(topic: str) -> str:
        return f"kafka://{address}/{topic}?partitions={PARTITIONS}"

    topic = f"bench-{uuid.uuid4().hex[:8]}"
    EventStore.open(at(f"{topic}-alone"), views=folder / "maker").close()
    figures: list[Figure] = []
    with contextlib.closing(Alone(address, f"{topic}-alone")) as alone:
        with EventStore.open(at(topic), views=folder / "puts") as store:

            def put(number: int) -> None:
                store.put((f"user{number % USERS}", "notes"), f"k{number}", VALUE)

            both = {"ours": put, "alone": alone.put}
            times = {name: list[float]() for name in both}
            for _ in range(rounds):
                for name, call in both.items():
                    times[name] += _timed(call, calls)
            for name, share in (("p50", 0.5), ("p99", 0.99)):
                ours, theirs = (_quantile(times[side], share) * 1e3 for side in both)
                figures.append(Figure(f"put, one caller, {name}", "ms", ours, theirs))
            for writers in (1, 8, 64):
                rates = [_rate(call, writers, seconds) for call in both.values()]
                figures.append(Figure(f"puts with {writers} threads", "1/s", rates[0], rates[1]))
        full = f"{topic}-full"
        EventStore.open(at(full), views=folder / "maker2").close()
        with contextlib.closing(Alone(address, full)) as filler:
            filler.fill(records)
            began = time.perf_counter()
            with EventStore.open(at(full), views=folder / "fresh") as store:
                ours = records / (time.perf_counter() - began)
                assert store.status().lag == 0
            figures.append(Figure("catching up, a new view", "1/s", ours, records / filler.read(records)))
    return figures


def _timed(call: Callable[[int], None], count: int) -> list[float]:
    times = []
    for number in range(count + count // 10):
        began = time.perf_counter()
        call(number)
        times.append(time.perf_counter() - began)
    return times[count // 10 :]


def _rate(call: Callable[[int], None], writers: int, seconds: float) -> float:
    def work(writer: int) -> Iterator[None]:
        number = writer * 1_000_000
        while True:
            call(number := number + 1)
            yield

    return threads(work, writers, seconds)[0]


def _quantile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


@contextlib.contextmanager
def broker(given: str | None) -> Iterator[tuple[str, str]]:
    """Address and name of the broker to use; one that is started ends with the block."""
    if given is not None:
        yield given, f"the broker at {given}"
        return
    try:
        with servers.broker() as started:
            yield started.address, started.name
    except servers.Unavailable as unavailable:
        sys.exit(f"No Kafka broker: {unavailable}. Give one with --servers.")


def table(figures: list[Figure], name: str) -> Table:
    """The figures for people."""
    made = Table(title=f"EventStore on {name}", caption=f"Goal: put p50 at most {GOAL} times the raw one.")
    for column in ("", "EventStore", "kafka-python alone", "times the work"):
        made.add_column(column, justify="left" if not column else "right")
    for each in figures:
        digits = 2 if each.unit == "ms" else 0
        made.add_row(
            each.name,
            f"{each.ours:,.{digits}f} {each.unit}",
            f"{each.alone:,.{digits}f} {each.unit}",
            f"{each.ratio:.2f}",
        )
    return made


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0; figures that miss the goal are only shown."""
    options = argparse.ArgumentParser(prog="benchmarks.kafka", description=__doc__.partition("\n")[0])
    options.add_argument("--servers", help="a broker that holds nothing of value, as host:port")
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--calls", type=int, default=400, help="puts by each side in a round")
    options.add_argument("--seconds", type=float, default=4.0, help="for each rate")
    options.add_argument("--records", type=int, default=30_000, help="to catch up with")
    options.add_argument("--json", type=Path, help="where to write the figures")
    chosen = options.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="benchmark-") as folder,
        broker(chosen.servers) as (address, name),
    ):
        figures = measure(
            address,
            Path(folder),
            rounds=chosen.rounds,
            calls=chosen.calls,
            seconds=chosen.seconds,
            records=chosen.records,
        )
    Console().print(table(figures, name))
    if chosen.json is not None:
        chosen.json.write_text(
            json.dumps({each.name: {**each._asdict(), "ratio": each.ratio} for each in figures}, indent=2)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
