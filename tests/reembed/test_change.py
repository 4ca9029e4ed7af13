"""S20: another model, or other fields, put in the place of the old while it serves."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from eventstore.codec import encode
from eventstore.errors import EmbeddingFailed, IndexMismatch, InvalidConfig, InvalidType
from eventstore.events import Embedded, Event, Kind, new_id
from eventstore.keys import MODEL_KEY, encode_item
from eventstore.log.kafka.stamps import partition_of
from projector import reembed as changing
from projector.digests import digest
from projector.integrity import verify, verify_at
from projector.rebuild import rebuild
from projector.reembed import reembed
from projector.transfer import export, import_
from tests.conftest import OpenStore
from tests.past.replay import records_of
from tests.reembed.kit import Model, fill, found, oracle
from tests.scenarios.kit import python

A = ("users", "u0")


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changing, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(changing, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(changing, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.mark.parametrize("dims", [6, 9], ids=["same dims", "other dims"])
def test_the_old_model_serves_until_the_new_one_is_of_record(
    open_store: OpenStore, tmp_path: Path, dims: int
) -> None:
    old, new = Model("old"), Model("new", dims)
    store = open_store(index=old.index())
    fill(store)
    other = open_store(index=old.index(), views=tmp_path / "another process")
    before, then = found(store), store.position
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        assert found(store) == found(other) == before
        with pytest.raises(IndexMismatch, match="projector reembed") as caught:
            open_store(index=new.index())
        assert "old/6" in str(caught.value)
        assert f"new/{dims}" in str(caught.value)

    new.before = look
    done = reembed(store, index=new.index(), batch=10)
    assert looks >= 4
    assert (done.outcome, done.model, done.replaced) == ("switched", f"new/{dims}", "old/6")
    assert (done.memories, done.texts, done.present) == (40, 40, 1)
    assert len(new.texts) == len(set(new.texts)) == 40
    new.before = lambda: None

    for refused in (store, other):
        for act in (lambda at: at.search((), query="tea"), lambda at: at.put(A, "late", {"t": "late"})):
            with pytest.raises(IndexMismatch) as caught:
                act(refused)
            assert "old/6" in str(caught.value)
            assert f"new/{dims}" in str(caught.value)
        assert refused.get(A, "k0") is not None
        refused.put(A, "plain", {"n": 1}, index=False)
        refused.delete(A, "plain")
    with pytest.raises(IndexMismatch):
        open_store(index=old.index())

    changed = open_store(index=new.index())
    expected = oracle(changed, new.index())
    assert found(changed) == expected
    assert found(open_store(index=new.index(), views=tmp_path / "another process")) == expected
    assert found(store.as_of(then)) == before, "a store of the old model no longer sees the past by it"
    assert found(changed.as_of(then, index=old.index())) == before
    assert found(changed.as_of(done.position)) == expected
    assert changed.as_of(0).search((), query="tea") == []
    with pytest.raises(IndexMismatch, match="old/6"):
        changed.as_of(then).search((), query="tea")
    assert changed.as_of(then).get(A, "k0") is not None

    versions = changed.history(A, "k0")
    assert [version.version for version in versions] == [1], "a change of model is no version"
    changed.put(A, "k0", {"t": "tea"})
    assert changed.search((), query="tea", limit=1)[0].key == "k0"
    changed.delete(A, "k0")
    assert "k0" not in {hit.key for hit in changed.search((), query="tea", limit=100)}
    assert verify(changed).first is None


def test_replaying_gives_the_same_and_calls_no_model(open_store: OpenStore, tmp_path: Path) -> None:
    old, new = Model("old"), Model("new", 9)
    store = open_store(index=old.index())
    fill(store)
    reembed(store, index=new.index())
    changed = open_store(index=new.index())
    changed.put(A, "after", {"t": "after"})
    asked, expected, before = len(new.texts), found(changed), digest(changed)
    assert rebuild(changed).outcome == "exchanged"
    assert digest(changed) == before
    assert found(changed) == expected
    fresh = open_store(index=new.index(), views=tmp_path / "fresh")
    assert digest(fresh) == before
    assert found(fresh) == expected
    assert [report.exit_code for report in verify_at(tmp_path / "store")] == [0]
    for each in (changed, fresh, store):
        each.close()
    assert [report.exit_code for report in verify_at(tmp_path / "store")] == [0]
    again = open_store(index=new.index())
    assert found(again) == expected
    assert (len(old.texts), len(new.texts)) == (41, asked)
    assert rebuild(again).outcome == "exchanged"


def test_a_store_of_the_old_model_stays_open_through_a_rebuild(open_store: OpenStore) -> None:
    store = open_store(index=Model("old").index())
    fill(store, 5)
    reembed(store, index=Model("new").index())
    assert rebuild(store).outcome == "exchanged"
    assert store.get(A, "k0") is not None
    with pytest.raises(IndexMismatch, match="new/6"):
        store.search((), query="tea")
    new = Model("new").index()
    changed = open_store(index=new)
    assert found(changed) == oracle(changed, new)


def test_writers_go_on_and_nothing_is_left_behind(open_store: OpenStore, tmp_path: Path) -> None:
    old, new = Model("old"), Model("new", 9)
    store = open_store(index=old.index())
    fill(store, 30)
    writer = open_store(index=old.index(), views=tmp_path / "writer")
    chance = random.Random(5)
    refused = threading.Event()
    wrong: list[BaseException] = []

    def write() -> None:
        at = 0
        try:
            while True:
                at += 1
                namespace, key = ("users", f"u{at % 3}"), f"k{chance.randrange(60)}"
                if chance.random() < 0.2:
                    writer.delete(namespace, key)
                else:
                    writer.put(namespace, key, {"t": f"written {at}", "n": at})
        except IndexMismatch:
            refused.set()
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        done = reembed(store, index=new.index(), batch=8)
    finally:
        thread.join(20)
    assert not wrong
    assert refused.is_set(), "the writer was not told that its model is no longer of record"
    assert done.outcome == "switched"
    changed = open_store(index=new.index())
    reembed(changed, index=new.index())
    assert found(changed) == oracle(changed, new.index())
    assert verify(changed).first is None
    before = digest(changed)
    assert digest(open_store(index=new.index(), views=tmp_path / "fresh")) == before


KILLED = """
import os, signal, sys
from pathlib import Path
from eventstore import EventStore
from projector.reembed import reembed
from tests.reembed.kit import Model
new = Model("new", 9)
batches = 0
def before():
    global batches
    batches += 1
    if batches > 3:
        with open(sys.argv[2], "w") as out:
            out.write("\\n".join(new.texts))
        os.kill(os.getpid(), signal.SIGKILL)
new.before = before
with EventStore.open(sys.argv[1]) as store:
    reembed(store, index=new.index(), batch=7)
"""


def test_killed_in_the_middle_and_continued(open_store: OpenStore, tmp_path: Path) -> None:
    old, new = Model("old"), Model("new", 9)
    store = open_store(index=old.index())
    fill(store)
    before = found(store)
    ended = python(KILLED, tmp_path / "store", tmp_path / "texts")
    assert ended.returncode == -9, ended.stderr
    first = (tmp_path / "texts").read_text().splitlines()
    assert len(first) == 21
    assert found(store) == before, "vectors of the new model are ranked by the old one"
    done = reembed(store, index=new.index(), batch=7)
    assert (done.outcome, done.memories, done.present) == ("switched", 19, 22)
    assert sorted(first + new.texts) == sorted(set(first + new.texts)), "a text was embedded twice"
    assert found(open_store(index=new.index())) == oracle(store, new.index())
    again = reembed(store, index=new.index())
    assert (again.outcome, again.memories, again.texts) == ("current", 0, 0)


def test_stopped_and_continued(open_store: OpenStore) -> None:
    old, new = Model("old"), Model("new")
    store = open_store(index=old.index())
    fill(store)
    stop = threading.Event()
    new.before = lambda: stop.set() if len(new.texts) > 10 else None
    assert reembed(store, index=new.index(), batch=5, stop=stop).outcome == "stopped"
    assert 10 < len(new.texts) < 30
    assert found(store)
    new.before = lambda: None
    assert reembed(store, index=new.index(), batch=5).outcome == "switched"
    assert len(new.texts) == len(set(new.texts)) == 40


def test_other_fields_of_the_same_model(open_store: OpenStore, tmp_path: Path) -> None:
    model = Model("same")
    store = open_store(index=model.index("t"))
    fill(store)
    before, then = found(store), store.position
    model.before = lambda: (_ for _ in ()).throw(AssertionError) if found(store) != before else None  # type: ignore[assignment]
    done = reembed(store, index=model.index("u", "t"), batch=9)
    model.before = lambda: None
    assert (done.outcome, done.fields, done.replaced) == ("switched", ("t", "u"), "same/6")
    assert done.memories == 39
    with pytest.raises(IndexMismatch, match=r"\['t', 'u'\].*\['t'\]"):
        store.search((), query="tea")
    with pytest.raises(IndexMismatch, match="projector reembed"):
        open_store(index=model.index("t"))
    changed = open_store(index=model.index("t", "u"))
    assert found(changed) == oracle(changed, model.index("t", "u"))
    assert found(changed.as_of(then)) == before, "the past is ranked by the vectors of a later change"
    assert changed.search((), query="more 7", limit=1)[0].key == "k7"
    assert verify(changed).first is None
    # Fewer fields: what had text has none, and is not ranked any more.
    changed.put(A, "only u", {"u": "alone"})
    reembed(changed, index=model.index("t"))
    narrow = open_store(index=model.index("t"))
    assert found(narrow) == oracle(narrow, model.index("t"))
    assert "only u" not in {hit.key for hit in narrow.search((), query="alone", limit=100) if hit.score}
    assert verify(narrow).first is None


def test_one_change_of_fields_after_another(open_store: OpenStore) -> None:
    model = Model("new")
    store = open_store()
    fill(store, 10)
    for fields in (("t",), ("t", "u"), ("u",)):
        assert reembed(store, index=model.index(*fields)).outcome == "switched"
        changed = open_store(index=model.index(*fields))
        assert found(changed) == oracle(changed, model.index(*fields))


def test_there_and_back_again_embeds_only_what_was_written_meanwhile(open_store: OpenStore) -> None:
    old, new = Model("old"), Model("new")
    store = open_store(index=old.index())
    fill(store, 10)
    idle = open_store(index=old.index())
    before = found(idle)
    reembed(store, index=new.index())
    middle = open_store(index=new.index())
    assert found(middle) == oracle(middle, new.index())
    middle.put(A, "k0", {"t": "rewritten"})
    old.texts.clear()
    done = reembed(store, index=old.index())
    assert (done.outcome, done.memories, old.texts) == ("switched", 1, ["rewritten"])
    with pytest.raises(IndexMismatch, match="old/6"):
        middle.search((), query="tea")
    assert found(idle) == oracle(idle, old.index())
    assert found(idle) != before
    assert reembed(store, index=new.index()).memories == 0
    with pytest.raises(IndexMismatch, match="new/6"):
        idle.search((), query="tea")
    assert found(middle) == oracle(middle, new.index())


def test_a_query_embedded_with_the_old_model_never_meets_the_new_vectors(open_store: OpenStore) -> None:
    """The model is changed, and the new index opened, between the two halves of a search."""
    old, new = Model("old"), Model("new")
    store = open_store(index=old.index())
    fill(store, 10)
    vector = old.vector

    def slow(text: str) -> list[float]:
        old.embed_query = vector  # type: ignore[method-assign]
        reembed(store, index=new.index())
        assert open_store(index=new.index()).search((), query=text)
        return vector(text)

    old.embed_query = slow  # type: ignore[method-assign]
    with pytest.raises(IndexMismatch, match="new/6"):
        store.search((), query="tea")


def test_a_store_that_had_no_vectors_gets_an_index(open_store: OpenStore) -> None:
    new = Model("new")
    store = open_store()
    fill(store, 10)
    done = reembed(store, index=new.index())
    assert (done.outcome, done.replaced, done.memories) == ("switched", None, 10)
    assert found(open_store(index=new.index())) == oracle(store, new.index())


def test_a_model_that_fails_is_asked_again_some_times(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = Model("old"), Model("new")
    store = open_store(index=old.index())
    fill(store, 20)
    calls = 0

    def fail() -> None:
        nonlocal calls
        calls += 1
        if calls % 3:
            raise TimeoutError("the provider is away, and says: text 3")

    new.before = fail
    assert reembed(store, index=new.index(), batch=6).outcome == "switched"
    assert "attempt 2 of 8" in caplog.text
    assert "text 3" not in caplog.text
    assert len(new.texts) == len(set(new.texts)) == 20

    monkeypatch.setattr(changing, "ATTEMPTS", 3)
    down = Model("down")
    down.before = lambda: (_ for _ in ()).throw(TimeoutError("away"))
    with pytest.raises(EmbeddingFailed):
        reembed(store, index=down.index())
    assert found(open_store(index=new.index())) == oracle(store, new.index())


def test_what_is_restored_has_the_vectors_of_the_model_of_record(open_store: OpenStore) -> None:
    old, new = Model("old"), Model("new", 9)
    store = open_store(index=old.index())
    fill(store, 6)
    reembed(store, index=new.index())
    changed = open_store(index=new.index(), actor="poisoned")
    changed.put(A, "k0", {"t": "poison"})
    changed.delete(A, "k3")
    asked = len(new.texts)
    assert len(changed.revert(actor="poisoned", dry_run=False).restored) == 2
    assert len(new.texts) == asked
    assert found(changed) == oracle(changed, new.index())
    changed.delete(A, "k3")
    changed.restore(A, "k3", 1)
    assert found(changed) == oracle(changed, new.index())
    assert verify(changed).first is None


@pytest.mark.parametrize("history", [False, True])
def test_an_export_carries_the_vectors_of_record(
    open_store: OpenStore, tmp_path: Path, history: bool
) -> None:
    old, new = Model("old"), Model("new", 9)
    store = open_store(index=old.index())
    fill(store, 8)
    stop = threading.Event()
    new.before = lambda: stop.set() if new.texts else None
    assert reembed(store, index=new.index(), batch=3, stop=stop).outcome == "stopped"
    for source, model in ((store, old), (None, new)):
        if source is None:
            new.before = lambda: None
            reembed(store, index=new.index())
            source = open_store(index=new.index())
        export(source, tmp_path / "out.jsonl", history=history)
        fresh = Model(model.name, model.dims)
        other = open_store(index=fresh.index(), sub=f"to {model.name}")
        import_(other, tmp_path / "out.jsonl")
        # The memory that was deleted before the change has no vectors of the new model.
        assert fresh.texts == (["text 1"] if history and model is new else [])
        assert found(other) == found(source)


def test_an_attached_store_follows_the_change(open_store: OpenStore) -> None:
    old, new = Model("old"), Model("new", 9)
    store = open_store(index=old.index(), config={"follow_interval": 0.002})
    fill(store, 10)
    attached = open_store(index=old.index(), config={"attach": True, "follow_interval": 0.002})
    before = found(attached)
    new.before = lambda: None if found(attached) == before else pytest.fail("not the old results")
    done = reembed(store, index=new.index(), batch=4)
    attached.wait_for(done.position)
    with pytest.raises(IndexMismatch, match="new/9"):
        attached.search((), query="tea")
    changed = open_store(index=new.index(), config={"attach": True, "follow_interval": 0.002})
    assert found(changed) == oracle(store, new.index())
    with pytest.raises(InvalidType):
        reembed(changed, index=old.index())


def test_models_that_cannot_be_told_apart_are_refused(open_store: OpenStore) -> None:
    def one(texts: list[str]) -> list[list[float]]:
        return [[1.0, 2.0]] * len(texts)

    def two(texts: list[str]) -> list[list[float]]:
        return [[2.0, 1.0]] * len(texts)

    store = open_store(index={"embed": one, "dims": 2})
    store.put(A, "k", {"t": "tea"})
    with pytest.raises(InvalidConfig, match="neither names its model"):
        reembed(store, index={"embed": two, "dims": 2})
    assert reembed(store, index={"embed": two, "dims": 2, "model": "two"}).outcome == "switched"
    with pytest.raises(IndexMismatch, match="two/2"):
        store.search((), query="tea")


def test_the_log_says_who_changed_what(open_store: OpenStore) -> None:
    store = open_store(index=Model("old").index())
    fill(store, 3)
    feed = store.changes(follow=False)
    before = [change.key for change in feed]
    reembed(store, index=Model("new").index())
    assert [change.key for change in store.changes(follow=False)] == before
    assert store.events(actor="reembed") == []
    kinds = [dict(record.headers)["type"].decode() for record in records_of(store)]
    assert kinds[-1] == "model/1"
    assert kinds.count("embed/1") == 3


def test_records_go_to_the_partition_of_their_memory() -> None:
    key = encode_item(("users", "u0"), "k")
    made = Embedded("new/1", 1, ("t",), bytes(4))
    more = encode(Event(Kind.EMBED, key, new_id(), embedded=made, seen_version=1, fields=("t",)))
    change = encode(Event(Kind.MODEL, MODEL_KEY, new_id(), embedded=made._replace(paths=()), fields=("t",)))
    for partitions in (1, 6, 7):
        assert partition_of(more.key, partitions) == partition_of(key, partitions)
        assert partition_of(change.key, partitions) == 0
