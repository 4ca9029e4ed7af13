"""How much work each operation is: what gets slower by doing more is seen here, whatever the machine does.

The figures are those of a store whose rows are in memory tables: a user ``u`` of 40 memories, a user
``v`` of 400. One that changes is not wrong by itself, but it is a decision.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from langgraph.store.base import GetOp, PutOp, SearchOp

from eventstore import EventStore
from tests.costs.counting import Counted

U, V = ("u", "m"), ("v", "m")
SYNCED = {"log appends": 1, "syncs": 1, "view commits": 1}
EMBEDDED = {"model calls": 1, "texts embedded": 1}


def put_op(namespace: tuple[str, ...], number: int) -> PutOp:
    return PutOp(namespace, f"k{number}", {"text": f"text {number}", "tag": f"t{number % 100}", "n": number})


@pytest.fixture
def filled(counted: Counted) -> Counted:
    counted.store.batch([put_op(U, number) for number in range(40)])
    counted.store.batch([put_op(V, number) for number in range(400)])
    return counted


def test_a_put_is_one_sync_one_commit_and_one_call_of_the_model(filled: Counted) -> None:
    store = filled.store
    store.put(U, "first", {"text": "counts of its namespaces are at hand from now on"})
    done = filled.of(lambda: store.put(U, "new", {"text": "x" * 300}))
    written = done.pop("bytes appended")
    # Is it there, and was it ever; item, history, vectors, three lists, three counts, position, writer.
    assert done == {**SYNCED, **EMBEDDED, "reads": 2, "rows written": 11}
    assert 300 + 8 * 4 < written < 300 + 8 * 4 + 300


def test_a_put_that_is_not_indexed_calls_no_model(filled: Counted) -> None:
    done = filled.of(lambda: filled.store.put(U, "new", {"text": "x"}, index=False))
    assert done.pop("bytes appended") < 300
    assert done == {**SYNCED, "reads": 2, "rows written": 10}


def test_an_update_and_a_delete_read_the_memory_once(filled: Counted) -> None:
    done = filled.of(lambda: filled.store.put(U, "k1", {"text": "other"}))
    assert done.pop("bytes appended") < 500
    # Three lists are left and entered; no count changes.
    assert done == {**SYNCED, **EMBEDDED, "reads": 1, "rows written": 11}
    done = filled.of(lambda: filled.store.delete(U, "k1"))
    assert done.pop("bytes appended") < 300
    assert done == {**SYNCED, "reads": 1, "rows written": 12}


def test_a_batch_is_one_sync_one_commit_and_one_call_of_the_model(filled: Counted) -> None:
    ops = [put_op(("u", "more"), number) for number in range(100)]
    done = filled.of(lambda: filled.store.batch(ops))
    assert done.pop("bytes appended") < 100 * 300
    assert done.pop("reads") <= 2 * 100 + 3
    assert done.pop("rows written") <= 6 * 100 + 10
    assert done == {**SYNCED, "model calls": 1, "texts embedded": 100}


def test_reading_a_key_is_one_read(filled: Counted) -> None:
    assert filled.of(lambda: filled.store.get(U, "k1")) == {"reads": 1}
    assert filled.of(lambda: filled.store.get(U, "not there")) == {"reads": 1}


def test_a_listing_walks_as_far_as_its_page(filled: Counted) -> None:
    store = filled.store
    assert filled.of(lambda: store.search(V, limit=10)) == {"seeks": 1, "steps": 9, "reads": 10}
    assert filled.of(lambda: store.search((), limit=10)) == {"seeks": 1, "steps": 9, "reads": 10}
    later = filled.of(lambda: store.search(V, limit=10, offset=90))
    assert later == {"seeks": 1, "steps": 99, "reads": 10}


def test_a_filter_scans_its_prefix_once_and_reads_nothing_by_key(filled: Counted) -> None:
    done = filled.of(lambda: filled.store.search(V, filter={"tag": "t1"}, limit=10))
    assert done == {"seeks": 2, "steps": 400}  # one of the seeks asks how many there are


def test_a_search_by_meaning_looks_at_each_vector_once_and_reads_its_page(filled: Counted) -> None:
    store = filled.store
    small = filled.of(lambda: store.search(U, query="q", limit=10))
    assert small == {**EMBEDDED, "prefixes found": 1, "rows scored": 40, "reads": 10}
    large = filled.of(lambda: store.search(V, query="q", limit=10))
    assert large.pop("prefixes found") == 1
    assert large == {**EMBEDDED, "FAISS scans": 1, "rows scanned": 400, "rows scored": 26, "reads": 10}


def test_a_search_by_meaning_with_a_rare_filter_scans_once_and_ranks_what_passes(filled: Counted) -> None:
    done = filled.of(lambda: filled.store.search(V, query="q", filter={"tag": "t1"}, limit=10))
    assert done.pop("reads") <= 64 + 10
    assert done.pop("rows scored") <= 100
    assert done.pop("prefixes found") <= 3
    assert done == {**EMBEDDED, "seeks": 2, "steps": 400, "FAISS scans": 1, "rows scanned": 400}


def test_listing_namespaces_steps_over_what_it_gives(filled: Counted) -> None:
    store = filled.store
    store.batch([PutOp(("deep", f"n{number}", "m"), "k", {"n": 1}, False) for number in range(200)])
    assert filled.of(lambda: store.list_namespaces(prefix=("u",))) == {"seeks": 1, "steps": 2}
    page = filled.of(lambda: store.list_namespaces(prefix=("deep",), limit=5))
    assert page["steps"] <= 2 * 5 + 2
    # What lies deeper than asked is jumped over, however much it is.
    tops = filled.of(lambda: store.list_namespaces(max_depth=1))
    assert tops["seeks"] <= 2 * 3 + 1 and tops["steps"] <= 2 * 3 + 1


def test_history_reads_its_page(filled: Counted) -> None:
    for number in range(30):
        filled.store.put(U, "k1", {"n": number}, index=False)
    done = filled.of(lambda: filled.store.history(U, "k1", limit=5))
    assert done == {"seeks": 1, "steps": 5}


def test_a_batch_of_reads_is_answered_from_one_moment(filled: Counted) -> None:
    ops = [GetOp(U, "k1"), GetOp(V, "k2"), SearchOp(U, query="q"), SearchOp(V, query="q")]
    done = filled.of(lambda: filled.store.batch(ops))
    assert done["model calls"] == done["texts embedded"] == 1  # both ask the same
    assert done["reads"] == 2 + 10 + 10


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.get(U, "k1"),
        lambda store: store.search(U, limit=10),
        lambda store: store.search(U, query="q"),
        lambda store: store.search(U, filter={"n": 1}),
        lambda store: store.list_namespaces(),
        lambda store: store.history(U, "k1"),
    ],
)
def test_reading_writes_nothing(filled: Counted, act: Callable[[EventStore], object]) -> None:
    done = filled.of(lambda: act(filled.store))
    assert not done.keys() & {"log appends", "syncs", "bytes appended", "view commits", "rows written"}
