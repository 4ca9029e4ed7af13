"""The checkpoints' log and views from outside: status, verify, healing at open, and the log's events."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from rocksdict import WriteBatch

from eventstore import EventStore
from eventstore.checkpoint import EventSaver
from eventstore.checkpoint.events import Where
from eventstore.errors import ViewDamaged
from eventstore.log import EmbeddedLog
from eventstore.log.base import Record
from projector import integrity
from projector.checkpoints import tables
from projector.standing import standing
from tests.checkpoint.kit import config, everything, grown, put, rows, runtime_of
from tests.checkpoint_ops.conftest import Run
from tests.checkpoint_ops.kit import agent, talk

SECRET = "what the state says"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Threads of an agent, one pruned, and one that was deleted."""
    folder = tmp_path / "place"
    with EventSaver.open(folder) as saver:
        graph = agent(saver)
        talk(graph, "kept", [SECRET, "again"])
        talk(graph, "thinned", ["hello"], approve=False)
        talk(graph, "gone", ["hello"])
        saver.thin_out(["thinned"], keep=1)
        saver.delete_thread("gone")
        chance, items = random.Random(1), list[str]()
        for number in range(30):
            items = grown(chance, items)
            put(
                saver,
                "long",
                f"{number:02}",
                {"items": items},
                parent=f"{number - 1:02}",
                metadata={"run_id": "r"},
            )
    return folder


def view_of(place: Path, number: int = 0) -> Path:
    return place / "views" / "checkpoints" / str(number)


# ------------------------------------------------------------------ status


def test_status_shows_log_and_view(run: Run, place: Path) -> None:
    with EventSaver.open(place) as saver:
        end = sum(runtime_of(saver).applied)
        found = run("projector", "status", place, "--json").json["checkpoints"]
        (view,) = found["views"]
        assert found["log"] == str(place / "checkpoints")
        assert (found["end"], view["position"], view["lag"]) == (str(end), str(end), 0)
        assert (view["threads"], view["memories"], view["problem"]) == (3, None, None)
        assert view["owner"] is not None
        assert view["directory"] == str(view_of(place))
    table = run("projector", "status", place).out
    assert str(view_of(place)) in table and "threads" in table


def test_status_of_a_view_that_lags(place: Path) -> None:
    shutil.copytree(view_of(place), view_of(place, 1))
    with EventSaver.open(place) as saver:
        put(saver, "more", "1", {"a": 1})
    found = standing(place).checkpoints
    assert found is not None
    assert [view.lag for view in found.views] == [0, 1]
    assert [view.threads for view in found.views] == [4, 3]


def test_status_of_what_cannot_be_read(run: Run, place: Path) -> None:
    (view_of(place) / "rocksdb" / "CURRENT").unlink()
    (view,) = run("projector", "status", place, "--json").json["checkpoints"]["views"]
    assert "no view" in view["problem"] and view["position"] is None
    damage_log(place)
    done = run("projector", "status", place, "--json")
    assert done.code == 2
    assert done.json["checkpoints"]["problem"].startswith("LogDamaged: ")
    assert done.json["problem"] is None and done.json["end"] is not None
    assert "LogDamaged" in done.err


def damage_log(place: Path) -> None:
    (segment,) = (place / "checkpoints").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(SECRET.encode())] ^= 1
    segment.write_bytes(bytes(data))


# ------------------------------------------------------------------ verify


def test_verify_compares_every_row(run: Run, place: Path) -> None:
    with EventSaver.open(place) as saver:
        there = rows(saver)
        done = run("projector", "verify", place, "--json")
        memories, found = done.json
    assert (done.code, found["exit_code"], found["first"]) == (0, 0, None)
    assert memories["view"] == str(place / "views" / "0")
    assert found["view"] == str(view_of(place))
    families = {
        "checkpoints": b"c", "writes": b"k", "ids": b"i", "runs": b"r", "threads": b"t", "values": b"v",
        "nodes": b"n", "parts": b"p", "fragments": b"f", "writers": b"w",
    }  # fmt: skip
    counted = {name: sum(key.startswith(prefix) for key in there) for name, prefix in families.items()}
    assert found["rows"] == counted | {"quarantined": 0}
    assert counted.pop("fragments") == 0 and all(counted.values())
    assert found["records"] == int(found["end"])
    assert not list((place / "views" / "checkpoints").glob(".scratch*"))


CHANGES: dict[str, Callable[[WriteBatch, dict[bytes, bytes]], None]] = {
    "checkpoints": lambda batch, there: batch.put(*changed(there, tables.CHECKPOINT)),
    "writes": lambda batch, there: batch.delete(first(there, tables.WRITE)),
    "ids": lambda batch, there: batch.put(tables.id_key(Where("never", "", "put")), b""),
    "runs": lambda batch, there: batch.delete(first(there, tables.RUN)),
    "threads": lambda batch, there: batch.put(first(there, tables.THREAD), b"no row of ours"),
    "values": lambda batch, there: batch.delete(first(there, tables.VALUE)),
    "nodes": lambda batch, there: batch.put(*changed(there, tables.NODE)),
    "parts": lambda batch, there: batch.put(*changed(there, tables.PART)),
    "fragments": lambda batch, there: batch.put(tables.fragment_key("never", bytes(16), 9), b"put"),
}


def first(there: dict[bytes, bytes], prefix: bytes) -> bytes:
    return next(key for key in sorted(there) if key.startswith(prefix))


def changed(there: dict[bytes, bytes], prefix: bytes) -> tuple[bytes, bytes]:
    key = first(there, prefix)
    return key, there[key][:-1] + bytes([there[key][-1] ^ 1])


@pytest.mark.parametrize("family", CHANGES)
def test_verify_names_the_first_difference(run: Run, place: Path, family: str) -> None:
    with EventSaver.open(place) as saver:
        batch = WriteBatch(raw_mode=True)
        CHANGES[family](batch, rows(saver))
        runtime_of(saver)._view.db.default.write(batch)
    done = run("projector", "verify", place, "--json")
    report = done.json[1]
    assert (done.code, report["differences"]) == (1, {family: 1})
    assert report["first"]["family"] == family
    assert report["first"]["expected"] != report["first"]["found"]
    (thread, *_) = report["first"]["namespace"]
    assert thread in ("kept", "long", "never", "thinned")
    assert SECRET not in done.out
    assert thread in run("projector", "verify", place).err


def test_verify_of_a_view_that_another_wrote_to_since(place: Path) -> None:
    """A view that stands further back is compared where it stands, also after one that is ahead."""
    shutil.copytree(view_of(place), view_of(place, 1))
    with EventSaver.open(place) as saver:
        put(saver, "more", "1", {"a": 1})
    found = integrity.verify_at(place)[1:]
    assert [report.exit_code for report in found] == [0, 0]
    assert int(found[0].position or 0) == int(found[1].position or 0) + 1


def test_verify_of_a_damaged_log(run: Run, place: Path) -> None:
    with EventSaver.open(place):
        damage_log(place)
        done = run("projector", "verify", place, "--json")
        assert done.code == 2
        assert "LogDamaged" in done.err or any(report["damage"] for report in done.json)


# ------------------------------------------------------------------ healing


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(0, len(data), max(1, len(data) // 50)):
        data[at] ^= 0xFF
    path.write_bytes(bytes(data))


def flip_tables(view: Path) -> None:
    found = list((view / "rocksdb").glob("*.sst"))
    assert found
    for path in found:
        flipped(path)


def remove_tables(view: Path) -> None:
    for path in (view / "rocksdb").glob("*.sst"):
        path.unlink()


def remove_manifest(view: Path) -> None:
    for path in (view / "rocksdb").glob("MANIFEST-*"):
        path.unlink()


def flip_current(view: Path) -> None:
    flipped(view / "rocksdb" / "CURRENT")


def remove_all(view: Path) -> None:
    shutil.rmtree(view / "rocksdb")


DAMAGES = (flip_tables, remove_tables, remove_manifest, flip_current, remove_all)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_view_heals_at_open_or_at_the_read_that_finds_it(
    place: Path, damage: Callable[[Path], None]
) -> None:
    with EventSaver.open(place) as saver:
        before, there = everything(saver), rows(saver)
    damage(view_of(place))
    healed = healed_answer(place)
    assert healed == before
    with EventSaver.open(place) as saver:
        assert rows(saver) == there
        put(saver, "long", "99", {"items": []}, parent="29")
        assert saver.get_tuple(config("long")) is not None
    assert [report.exit_code for report in integrity.verify_at(place)] == [0, 0]


def healed_answer(place: Path) -> list[object]:
    """What a listing says; the read that meets the damage may fail, and then the next open heals."""
    for _ in range(2):
        try:
            with EventSaver.open(place) as saver:
                return list(everything(saver))
        except ViewDamaged:
            continue
    raise AssertionError("the view did not heal")


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("views", ["views/0", "views/checkpoints/0"])
def test_verify_finds_a_damaged_view(
    run: Run, place: Path, views: str, damage: Callable[[Path], None]
) -> None:
    """A secondary of RocksDB stands still, empty perhaps, before a table file that is not there."""
    with EventStore.open(place) as store:
        store.put(("a",), "k", {"n": 1})
    damage(place / views)
    done = run("projector", "verify", place, "--json")
    assert done.code == 1
    found = {Path(report["view"]): report for report in done.json}
    report = found.pop(place / views)
    assert (report["first"]["family"], report["exit_code"]) == ("view", 1)
    assert [other["exit_code"] for other in found.values()] == [0]
    status = run("projector", "status", place, "--json").json
    problems = [view["problem"] for view in (*status["views"], *status["checkpoints"]["views"])]
    assert [problem is not None for problem in problems] == [views == "views/0", views != "views/0"]


# ------------------------------------------------------------------ the log


def test_the_log_is_printed(run: Run, place: Path) -> None:
    events = run("eventstore", "log", place, "--checkpoints", "--limit", 10_000, "--json").json
    assert [event["offset"] for event in events] == list(range(len(events)))
    kinds = {event["kind"] for event in events}
    assert kinds == {"cp.put", "cp.writes", "cp.dropped", "cp.deleted"}
    assert len({tuple(event) for event in events}) == 1, "every event has the same fields"
    with EventSaver.open(place) as saver:
        found = saver.checkpoints("kept")
    written = {event["checkpoint"]: event for event in events if event["kind"] == "cp.put"}
    for each in found:
        event = written[each.checkpoint]
        assert (event["parent"], event["namespace"]) == (each.parent, each.namespace)
        assert event["memories"] == each.position
    (dropped,) = [event for event in events if event["kind"] == "cp.dropped"]
    assert (dropped["thread"], dropped["hidden"]) == ("thinned", []) and dropped["dropped"]
    assert [event["thread"] for event in events if event["kind"] == "cp.deleted"] == ["gone"]
    values = [each for event in events if event["thread"] == "long" for each in event["values"] or ()]
    assert any(value["copied"] for value in values) and any(value["new"] for value in values)
    table = run("eventstore", "log", place, "--checkpoints").out
    assert "__interrupt__" in table and SECRET not in table and SECRET not in json.dumps(events)


def test_an_event_larger_than_a_record_is_told_behind_its_fragments(run: Run, tmp_path: Path) -> None:
    """As what it stands for; where the print begins behind the fragments, only as what it is."""
    with EventSaver.open(tmp_path / "place") as saver:
        put(saver, "t", "1", {"x": random.Random(1).randbytes(2_000_000), "n": 1})
    events = run("eventstore", "log", tmp_path / "place", "--checkpoints", "--json").json
    *carried, event = events
    assert [each["kind"] for each in carried] == ["cp.fragment"] * 3
    assert {each["thread"] for each in events} == {"t"}
    assert (event["kind"], event["of"], event["checkpoint"]) == ("cp.large", "cp.put", "1")
    assert [each["channel"] for each in event["values"]] == ["x", "n"]
    assert event["part_bytes"] > 1_990_000 and event["bytes"] < 100
    assert len({tuple(each) for each in events}) == 1, "every event has the same fields"
    (alone,) = run("eventstore", "log", tmp_path / "place", "--checkpoints", "--from", 3, "--json").json
    assert (alone["kind"], alone["of"], alone["values"]) == ("cp.large", "cp.put", None)
    table = run("eventstore", "log", tmp_path / "place", "--checkpoints").out
    assert table.count("cp.fragment") == 3 and "cp.put" in table


def test_what_cannot_be_decoded_is_shown_among_what_can(run: Run, place: Path) -> None:
    log = EmbeddedLog.open(place / "checkpoints")
    end = sum(log.high_water_mark())
    log.append([log.prepare([Record(b"no thread of ours", b"{}", (("type", b"cp.put/99"),))])])
    log.close()
    (event,) = run("eventstore", "log", place, "--checkpoints", "--from", end, "--json").json
    assert (event["kind"], event["bytes"]) == (None, 19)
    assert "cp.put/99" in event["undecodable"]
    assert "undecodable" in run("eventstore", "log", place, "--checkpoints", "--from", end).out


# ------------------------------------------------------------------ rebuild


def test_rebuild_repairs_what_verify_found(run: Run, place: Path) -> None:
    with EventSaver.open(place) as saver:
        before = rows(saver)
        batch = WriteBatch(raw_mode=True)
        CHANGES["parts"](batch, before)
        runtime_of(saver)._view.db.default.write(batch)
    assert run("projector", "verify", place).code == 1
    done = run("projector", "rebuild", place, "--json").json
    assert [(each["directory"], each["outcome"]) for each in done] == [
        (str(place / "views" / "0"), "exchanged"),
        (str(view_of(place)), "exchanged"),
    ]
    assert run("projector", "verify", place).code == 0
    with EventSaver.open(place) as saver:
        assert rows(saver) == before
        put(saver, "long", "99", {"items": []}, parent="29")
    assert not (view_of(place) / "rocksdb").exists(), "what the rebuild replaced is removed"


def test_a_rebuild_beside_the_process_that_has_the_view(run: Run, place: Path) -> None:
    with EventSaver.open(place) as saver:
        done = run("projector", "rebuild", place, "--json").json
        assert done[1]["outcome"] == "ready"
        put(saver, "more", "1", {"a": 1})
        before = rows(saver)
        assert (view_of(place) / "rocksdb").exists()
    with EventSaver.open(place) as saver:
        assert rows(saver) == before
        assert not (view_of(place) / "rocksdb").exists(), "the next to open it took the new view"
    assert run("projector", "verify", place).code == 0


def test_a_rebuild_of_one_view_leaves_checkpoints_alone(run: Run, place: Path) -> None:
    done = run("projector", "rebuild", place, "--view", 0, "--json").json
    assert [each["directory"] for each in done] == [str(place / "views" / "0")]


def test_commands_set_aside_what_the_views_have_set_aside(run: Run, place: Path) -> None:
    log = EmbeddedLog.open(place / "checkpoints")
    end = sum(log.high_water_mark())
    log.append([log.prepare([Record(b"no thread of ours", b"{}", (("type", b"cp.put/99"),))])])
    log.close()
    stopped = run("eventstore", "prune", place, "--keep", 1)
    assert stopped.code == 2 and stopped.err.startswith("UndecodableEvent: ")
    with EventSaver.open(place, config={"on_undecodable": "quarantine"}):
        assert run("projector", "status", place, "--json").json["checkpoints"]["views"][0]["quarantined"] == 1
    assert str(end) in run("projector", "status", place).out
    assert run("eventstore", "prune", place, "--keep", 1).code == 0
    assert run("projector", "verify", place).code == 0
