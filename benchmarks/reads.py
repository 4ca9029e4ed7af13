"""Cells that only read: by key, listings, filters, semantic search, namespaces.

Each checks what it got. A fast wrong answer is shown as one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from langgraph.store.base import Item, SearchItem
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.measure import Slice, timed, timed_async
from benchmarks.questions import LIMIT, Question
from benchmarks.workload import CHUNKS, TAGS, Namespace

Place = tuple[Namespace, str, int]


def _places(bench: Bench, name: str) -> list[Place]:
    work = bench.work
    chosen = bench.rng(name).integers(0, work.spec.items, size=5_000)
    return [(work.namespace(int(number)), work.key(int(number)), int(number)) for number in chosen]


def _share(right: list[bool]) -> float:
    return sum(right) / len(right) if right else 0.0


def _right_values(bench: Bench, got: list[tuple[Place, Item | None]]) -> float:
    return _share([item is not None and item.value == bench.work.value(place[2]) for place, item in got])


def get_hit(bench: Bench, seconds: float) -> Slice:
    get = bench.store.get
    done, got = timed(lambda place: get(place[0], place[1]), _places(bench, "get"), seconds)
    done.right = _right_values(bench, got)
    return done


def async_get(bench: Bench, seconds: float) -> Slice:
    assert bench.store is not None

    async def run() -> Slice:
        async with bench.contender.open_async() as store:
            get = store.aget
            done, got = await timed_async(lambda at: get(at[0], at[1]), _places(bench, "async get"), seconds)
        done.right = _right_values(bench, got)
        return done

    return asyncio.run(run())


def newest(bench: Bench, seconds: float) -> Slice:
    """The ten memories of a user that were written last."""
    work, search = bench.work, bench.store.search
    users = work.busy_users(bench.rng("newest"), 2_000)
    done, got = timed(lambda user: search(work.memories_of(user), limit=LIMIT), users, seconds)
    wrote = _batch_numbers(bench)
    # Memories of one batch were written at one moment: any order among them is right.
    done.right = _share(
        [
            [wrote[_number(hit)] for hit in hits]
            == [wrote[int(each)] for each in work.members(user)[: -LIMIT - 1 : -1]]
            and len({hit.key for hit in hits if hit.namespace == work.memories_of(user)}) == len(hits)
            for user, hits in got
        ]
    )
    return done


def _batch_numbers(bench: Bench) -> NDArray[np.int64]:
    batches = [batch for turn in range(CHUNKS) for batch in bench.work.batches(turn, CHUNKS)]
    return np.repeat(np.arange(len(batches)), [len(batch) for batch in batches])


def _number(hit: SearchItem) -> int:
    """Which memory of the workload an answer is."""
    text: str = hit.value["text"]
    return int(text[1 : text.index(" ")])


def filter_user(bench: Bench, seconds: float) -> Slice:
    """One tag in the user with most memories."""
    work = bench.work
    user = work.users_of_size(10**9, 1)[0]
    members = work.members(user)
    return _filtered(bench, seconds, work.memories_of(user), work.tag[members])


def filter_all(bench: Bench, seconds: float) -> Slice:
    """One tag in everything."""
    return _filtered(bench, seconds, (), bench.work.tag)


def _filtered(bench: Bench, seconds: float, prefix: Namespace, tags: np.ndarray[Any, Any]) -> Slice:
    search = bench.store.search
    there = Counter(int(tag) for tag in tags)
    asked = [int(tag) for tag in bench.rng("filter").permutation(TAGS)]
    done, got = timed(lambda tag: search(prefix, filter={"tag": f"t{tag}"}, limit=LIMIT), asked, seconds)
    done.right = _share([_passes(hits, prefix, f"t{tag}", min(LIMIT, there[tag])) for tag, hits in got])
    done.candidates = len(tags)
    return done


def _passes(hits: list[SearchItem], prefix: Namespace, tag: str, count: int) -> bool:
    return len({(hit.namespace, hit.key) for hit in hits}) == count and all(
        hit.namespace[: len(prefix)] == prefix and hit.value["tag"] == tag for hit in hits
    )


def semantic(group: str) -> Callable[[Bench, float], Slice]:
    """A cell that asks one group of questions."""

    def measure(bench: Bench, seconds: float) -> Slice:
        asked, search = bench.questions.groups[group], bench.store.search
        turned = np.roll(np.arange(len(asked.questions)), 16 * bench.turn)

        def ask(question: Question) -> list[SearchItem]:
            return search(question.prefix, query=question.text, filter=question.filter, limit=LIMIT)

        done, got = timed(ask, [asked.questions[int(number)] for number in turned], seconds)
        recalls = [question.recall([hit.key for hit in hits]) for question, hits in got]
        done.recall = float(np.mean(recalls))
        done.right = _share(
            [len(hits) == question.count and _descending(hits) for question, hits in got],
        )
        done.candidates = asked.candidates
        return done

    return measure


def _descending(hits: list[SearchItem]) -> bool:
    scores = [hit.score for hit in hits if hit.score is not None]
    return len(scores) == len(hits) and scores == sorted(scores, reverse=True)


def namespaces_user(bench: Bench, seconds: float) -> Slice:
    work, names = bench.work, bench.store.list_namespaces
    users = work.busy_users(bench.rng("namespaces"), 2_000)
    done, got = timed(lambda user: names(prefix=(work.user(user),)), users, seconds)
    done.right = _share([set(found) == _of_user(bench, user) for user, found in got])
    return done


def _of_user(bench: Bench, user: int) -> set[Namespace]:
    name, has_profile = bench.work.user(user), bench.work.has_profile(user)
    return {(name, "memories"), (name, "profile")} if has_profile else {(name, "memories")}


def namespaces_depth(bench: Bench, seconds: float) -> Slice:
    """The first hundred first labels."""
    names = bench.store.list_namespaces
    want = min(100, bench.work.spec.users + 1)
    done, got = timed(lambda _: names(max_depth=1, limit=100), [0], seconds)
    done.right = _share(
        [len(set(found)) == want and all(len(each) == 1 for each in found) for _, found in got]
    )
    return done
