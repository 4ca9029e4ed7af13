"""Events of any size in records of a size that every broker takes.

What would be too large for one record goes in several, of one atomic batch: the value of the
event's record, cut into fragments, and behind them a small record that says how many they are.
They are found by the log's own count: a writer's records of a batch follow on each other, whatever
other writers append between them. The fold keeps fragments until that last record comes, and then
reads the event from the very bytes its own record would have had; so nobody else, who composes an
event or who applies it, has to think of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from eventstore.checkpoint.events import Event, Fragment, Large, Where, decode, encode
from eventstore.log.base import Record, StoredRecord

RECORD_BYTES: Final = 768 * 1024
"""What is larger travels in fragments, also on logs that would take more: Kafka's own limit is 1 MB, and
a topic can be copied to another one."""

Take = Callable[[int], bytes | None]
"""Gives the fragment in the record of a number of the same writer and partition, once."""


def records(event: Event, limit: int | None = None) -> list[Record]:
    """The records of an event, to be appended together, of which the last makes it count.

    ``limit`` is the largest that a log takes, if there is one. Equal events give equal bytes. Raises
    ``InvalidInput`` as :func:`eventstore.checkpoint.events.encode`.
    """
    record = encode(event)
    value = record.value
    most = RECORD_BYTES if limit is None else min(limit, RECORD_BYTES)
    if value is None or _size(record) <= most:
        return [record]
    # Under the key of the thread alone, which keeps them in the partition of the event.
    thread, sealed = Where(event.at.thread), "encoding" in dict(record.headers)
    # An id that takes the better part of a record is for the log to refuse.
    room = max(1, most // 2, most - _size(encode(Fragment(thread, b"", sealed))))
    firsts = range(0, len(value), room)
    fragments = [encode(Fragment(thread, value[first : first + room], sealed)) for first in firsts]
    return [*fragments, encode(Large(event.at, record.headers, len(fragments)))]


def opened(record: StoredRecord, large: Large, take: Take) -> Event | None:
    """The event that the ``large`` one in a record stands for; ``None`` where a fragment is not there.

    Raises ``UndecodableEvent``, naming the place of the record, where they come to no event.
    """
    fragments: list[bytes] = []
    # Backwards from the event, so that a false number of them costs no more than there are.
    for sequence in range(record.sequence - 1, max(0, record.sequence - large.fragments - 1), -1):
        fragment = take(sequence)
        if fragment is None:
            break
        fragments.append(fragment)
    if len(fragments) < large.fragments:
        return None
    return decode(record._replace(value=b"".join(reversed(fragments)), headers=large.headers))


class Opener:
    """Decodes a log's records in their order, for who only looks at them."""

    def __init__(self) -> None:
        self._fragments: dict[tuple[int, bytes, int], bytes] = {}

    def event(self, record: StoredRecord) -> Event:
        """What a record says; of a large event, what it stands for, if its fragments were seen here.

        Raises ``UndecodableEvent``.
        """
        event = decode(record)
        if isinstance(event, Fragment):
            self._fragments[record.partition, record.session, record.sequence] = event.data
        if not isinstance(event, Large):
            return event

        def take(sequence: int) -> bytes | None:
            return self._fragments.pop((record.partition, record.session, sequence), None)

        return opened(record, event, take) or event


def _size(record: Record) -> int:
    headers = sum(len(name) + len(value) for name, value in record.headers)
    return len(record.key) + len(record.value or b"") + headers
