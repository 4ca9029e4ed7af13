"""What goes in comes out, in order, whole batches at a time."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.errors import InvalidConfig, InvalidInput, LimitExceeded, StoreClosed
from eventstore.log import EmbeddedLog, Record, StoredRecord, embedded
from tests.log import layout
from tests.log.children import keys, put, run
from tests.log.conftest import OpenLog

ODD = [
    Record(b"", b"", ()),
    Record(b"", None, ()),
    Record(b"k", None, (("a", b""),)),
    Record(b"\0\xff" * 9, b"EvFr" * 40, (("type", b"put"), ("type", b"again"), ("", b"\0"))),
    Record("ключ".encode(), "värde".encode(), (("заголовок", b"1"), ("名前", "値".encode()), ("🜁", b"x"))),
    Record(b"many", b"v", tuple((f"h{i}", bytes([i % 256]) * i) for i in range(300))),
    Record(b"long name", b"v", (("n" * 0xFFFF, b"x"),)),
]


def plain(records: list[StoredRecord]) -> list[Record]:
    return [Record(record.key, record.value, record.headers) for record in records]


def test_odd_records_come_back_as_they_went_in(open_log: OpenLog) -> None:
    log = open_log()
    returned = log.append([log.prepare(ODD), *(log.prepare([record]) for record in ODD)])
    assert list(log.read(0)) == returned
    assert plain(returned[0]) == ODD
    log.close()
    again = list(open_log().read(0))
    assert again == returned
    assert [type(record) for record in again[0]] == [StoredRecord] * len(ODD)


def test_another_program_can_read_the_files(open_log: OpenLog, directory: Path) -> None:
    log = open_log(segment_bytes=2048)
    for _ in range(5):
        log.append([log.prepare(ODD[:5])])
    paths = layout.segment_paths(directory)
    assert len(paths) > 1
    assert [value for path in paths for value in layout.values(path)] == [r.value for r in ODD[:5]] * 5


def test_stamps(open_log: OpenLog) -> None:
    log = open_log()
    before = time.time_ns() // 1000
    batches = log.append([log.prepare([Record(b"a", b"", ())] * 2), log.prepare([Record(b"b", b"", ())])])
    after = time.time_ns() // 1000
    records = [record for batch in batches for record in batch]
    assert [(r.partition, r.offset, r.sequence) for r in records] == [(0, 0, 1), (0, 1, 2), (0, 2, 3)]
    assert len({r.session for r in records}) == 1
    assert len(records[0].session) == 16
    assert all(before <= r.time_us == r.appended_us <= after for r in records)
    log.close()
    [[later]] = (log := open_log()).append([log.prepare([Record(b"c", b"", ())])])
    assert (later.offset, later.sequence) == (3, 1)
    assert later.session != records[0].session


@pytest.mark.parametrize("roll", [False, True])
def test_append_time_never_steps_back(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, roll: bool) -> None:
    log = open_log(segment_bytes=1024)
    monkeypatch.setattr(time, "time_ns", lambda: 5_000_000_000)
    put(log, "late", b"x" * (900 if roll else 1))
    monkeypatch.setattr(time, "time_ns", lambda: 3_000_000_000)
    put(log, "early", b"x" * (900 if roll else 1))
    log.close()
    log = open_log(segment_bytes=1024)
    put(log, "after reopening")
    records = [record for records in log.read(0) for record in records]
    assert [record.appended_us for record in records] == [5_000_000] * 3
    assert [record.time_us for record in records] == [5_000_000, 3_000_000, 3_000_000]


def test_on_durable_runs_before_the_mark_moves(open_log: OpenLog) -> None:
    log = open_log()
    told: list[object] = []
    returned = log.append([log.prepare([Record(b"k", b"v", ())])], lambda got: told.extend([got, log.end()]))
    assert told == [returned, 0]
    assert log.end() == 1


def test_an_error_in_on_durable_leaves_the_record_announced(open_log: OpenLog) -> None:
    log = open_log()

    def fail(_: object) -> None:
        raise OSError("no")

    with pytest.raises(OSError, match=r"^no$"):
        log.append([log.prepare([Record(b"k", b"v", ())])], fail)
    assert log.end() == 1
    assert put(log, "next") == 1
    assert keys(log) == ["k", "next"]


def test_nothing_to_append(open_log: OpenLog) -> None:
    log = open_log()
    assert log.append([]) == []
    assert log.append([log.prepare([]), log.prepare([Record(b"k", b"v", ())])])[0] == []
    assert log.end() == 1
    assert keys(log) == ["k"]


def test_reading_from_every_offset(open_log: OpenLog) -> None:
    log = open_log(segment_bytes=1024)
    written: list[list[StoredRecord]] = []
    for size in (1, 3, 2, 5, 1, 4):
        written += log.append([log.prepare([Record(b"k%d" % i, b"x" * 150, ()) for i in range(size)])])
    flat = [record for records in written for record in records]
    for start in [*reversed(range(len(flat))), *range(len(flat))]:
        lists = list(log.read(start))
        assert [record for records in lists for record in records] == flat[start:]
        whole = [records for records in written if records[0].offset >= start]
        assert lists[len(lists) - len(whole) :] == whole
    assert list(log.read(len(flat))) == []
    assert list(log.read(len(flat) + 5)) == []


def test_a_read_stops_at_the_mark_of_its_start(open_log: OpenLog) -> None:
    log = open_log()
    put(log, "a")
    reading = log.read(0)
    put(log, "b")
    assert [record.key for records in reading for record in records] == [b"a"]


def test_reading_far_into_a_large_segment(open_log: OpenLog) -> None:
    log = open_log()
    for first in range(0, 4000, 100):
        log.append([log.prepare([Record(b"%d" % i, b"x" * 400, ())]) for i in range(first, first + 100)])
    log.close()
    log = open_log()
    for start in (3999, 2000, 3500, 1, 0):
        assert keys(log, start) == [str(i) for i in range(start, 4000)]


def test_segments_roll_over(open_log: OpenLog, directory: Path) -> None:
    log = open_log(segment_bytes=4096)
    written = [f"k{put(log, f'k{i}', b'x' * (i * 37 % 900))}" for i in range(60)]
    paths = layout.segment_paths(directory)
    assert len(paths) > 5
    assert all(path.stat().st_size <= 4096 for path in paths)
    assert keys(log) == written
    log.close()
    log = open_log(segment_bytes=4096)
    assert keys(log) == written
    assert put(log, "more") == 60


def test_a_frame_larger_than_a_segment_has_one_of_its_own(open_log: OpenLog, directory: Path) -> None:
    log = open_log(segment_bytes=4096)
    put(log, "small")
    put(log, "large", b"y" * 3_000_000)
    put(log, "small again")
    assert [path.stem.lstrip("0") for path in layout.segment_paths(directory)] == ["", "1", "2"]
    log.close()
    log = open_log()
    assert [len(r.value or b"") for records in log.read(0) for r in records] == [1, 3_000_000, 1]


def test_small_logs_stay_small_and_grow_in_steps(open_log: OpenLog, directory: Path) -> None:
    log = open_log()
    [path] = layout.segment_paths(directory)
    sizes = {path.stat().st_size}
    for _ in range(40):
        put(log, "k", b"x" * 50_000)
        sizes.add(path.stat().st_size)
    steps = [later - earlier for earlier, later in pairwise(sorted(sizes))]
    assert len(steps) > 4 and all(step >= 256 * 1024 for step in steps)
    # What is reserved and not used yet is never much beside what is.
    assert max(sizes) <= 1.25 * 40 * 50_000 + 256 * 1024


def test_offsets_are_dense_and_sequences_in_order_across_threads(open_log: OpenLog) -> None:
    log = open_log()
    got: dict[int, list[int]] = {}

    def work(number: int) -> None:
        got[number] = [put(log, f"{number}-{i}") for i in range(60)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    records = [record for records in log.read(0) for record in records]
    assert [record.offset for record in records] == list(range(240))
    assert [record.sequence for record in records] == list(range(1, 241))
    for number, offsets in got.items():
        assert offsets == sorted(offsets)
        assert [records[offset].key for offset in offsets] == [b"%d-%d" % (number, i) for i in range(60)]


def test_two_logs_of_one_process_share_a_folder(open_log: OpenLog) -> None:
    one, other = open_log(segment_bytes=1024), open_log(segment_bytes=1024)
    for i in range(10):
        assert put(one, f"one-{i}", b"x" * 300) == 2 * i
        assert other.end() == 2 * i + 1
        assert put(other, f"other-{i}", b"x" * 300) == 2 * i + 1
    assert one.log_id == other.log_id
    assert keys(one) == keys(other) == [f"{name}-{i}" for i in range(10) for name in ("one", "other")]
    sequences = {(r.session, r.sequence) for records in one.read(0) for r in records}
    assert {sequence for _, sequence in sequences} == set(range(1, 11))
    assert len(sequences) == 20


def test_a_batch_too_large_is_refused(open_log: OpenLog) -> None:
    log = open_log(max_batch_bytes=1000)
    log.append([log.prepare([Record(b"k", b"x" * 983, ())])])
    with pytest.raises(LimitExceeded, match="1000 bytes"):
        log.prepare([Record(b"k", b"x" * 984, ())])
    with pytest.raises(LimitExceeded):
        log.prepare([Record(b"k", b"x" * 490, (("h", b""),))] * 2)
    with pytest.raises(LimitExceeded, match="header name"):
        log.prepare([Record(b"k", b"", (("n" * 0x10000, b""),))])
    with pytest.raises(InvalidInput, match="Unicode"):
        log.prepare([Record(b"k", b"", (("\ud800", b""),))])
    assert log.end() == 1


def test_after_close_everything_is_refused(open_log: OpenLog) -> None:
    log = open_log()
    put(log, "a")
    put(log, "b")
    batch = log.prepare([Record(b"k", b"v", ())])
    reading = log.read(0)
    next(reading)
    log.close()
    log.close()
    for call in (log.end, lambda: log.append([batch]), lambda: log.read(0), lambda: next(reading)):
        with pytest.raises(StoreClosed, match="closed"):
            call()


def test_a_log_made_again_has_another_id(tmp_path: Path) -> None:
    ids = []
    for name in ("a", "a", "b"):
        log = EmbeddedLog.open(tmp_path / name)
        ids.append(log.log_id)
        assert log.location == str(tmp_path / name)
        assert log.end_is_local
        log.close()
    assert ids[0] == ids[1] != ids[2]


def test_places_where_no_log_can_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="does not exist"):
        EmbeddedLog.open(tmp_path / "missing" / "log")
    for place in (tmp_path / "file", tmp_path / "file" / "log"):
        with pytest.raises(InvalidConfig, match="not a folder"):
            EmbeddedLog.open(place)
    with pytest.raises(InvalidConfig, match="segment_bytes"):
        EmbeddedLog.open(tmp_path / "log", segment_bytes=10)
    with pytest.raises(InvalidConfig, match="max_batch_bytes"):
        EmbeddedLog.open(tmp_path / "log", max_batch_bytes=0)
    assert not (tmp_path / "log").exists()


def test_a_folder_that_cannot_be_written_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = EmbeddedLog.open(Path(folder, "log"))
        put(log, "k")
        log.close()
        os.chmod(folder, 0o755)
        for path in Path(folder, "log").iterdir():
            path.chmod(0o444)
        assert "Permission denied" in run("powerless", Path(folder, "log"))[0]


def test_wrong_partition_and_offset(open_log: OpenLog) -> None:
    log = open_log()
    with pytest.raises(InvalidInput, match="partition 0"):
        log.end(1)
    with pytest.raises(InvalidInput, match="partition 0"):
        log.read(0, 1)
    with pytest.raises(InvalidInput, match="start at 0"):
        log.read(-1)


RECORDS = st.builds(
    Record,
    st.binary(max_size=12),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.text("aé🜁", max_size=3), st.binary(max_size=8)), max_size=3).map(tuple),
)
STEPS = st.lists(st.just("reopen") | st.lists(st.lists(RECORDS, max_size=3), max_size=3), max_size=8)


@settings(max_examples=40, deadline=None)
@given(STEPS, st.integers(0, 20))
def test_random_batches_equal_a_list(steps: list[str | list[list[Record]]], start: int) -> None:
    model: list[Record] = []
    with tempfile.TemporaryDirectory() as folder:
        log = EmbeddedLog.open(Path(folder, "log"), segment_bytes=1024)
        for step in steps:
            if isinstance(step, str):
                log.close()
                log = EmbeddedLog.open(Path(folder, "log"), segment_bytes=1024)
                continue
            returned = log.append([log.prepare(batch) for batch in step])
            assert [plain(batch) for batch in returned] == step
            model += [record for batch in step for record in batch]
            assert log.end() == len(model)
        records = [record for records in log.read(start) for record in records]
        log.close()
    assert plain(records) == model[start:]
    assert [record.offset for record in records] == list(range(start, len(model)))


def test_on_written_runs_before_the_record_is_durable(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    told: list[object] = []
    sync = embedded.sync_data

    def synced(fd: int) -> None:
        told.append("synced")
        sync(fd)

    monkeypatch.setattr(embedded, "sync_data", synced)
    batches = [log.prepare([Record(b"k%d" % at, b"v", ()) for at in range(2)]), log.prepare([])]
    returned = log.append(batches, lambda got: told.append(got), lambda got: told.append(got))
    first, between, last = told
    assert (between, log.end()) == ("synced", 2)
    assert first is last and first == returned
    told.clear()
    log.append([], None, lambda got: told.append(got))
    assert told == []


def test_an_append_broken_off_before_it_was_durable_is_found_by_the_next(open_log: OpenLog) -> None:
    log = open_log()

    def fail(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        log.append([log.prepare([Record(b"k", b"v", ())])], None, fail)
    put(log, "next")
    assert keys(log) == ["k", "next"]
