"""Queries of the search task's BM25 index, beside `rank_bm25` over the same tokens.

The knowledge base is the generated one; the queries are those its oracle asks (the missing fact)
and whole questions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib import import_module

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, race
from flowzoo.envs.tasks.search import RELATIONS, Bm25, World, draw_question, words, world
from flowzoo.extras import is_installed

TOP = 3
PASSAGES = 20_000
QUERIES = 2_000


def make_queries(made: World, count: int) -> list[str]:
    """Oracle queries and questions, alternately."""
    rng, rows = random.Random(0), list[str]()
    while len(rows) < count:
        asked = draw_question(made, 1 + len(rows) % 3, rng)
        step = rng.randrange(len(asked.relations))
        rows.append(RELATIONS[asked.relations[step]].phrase.format(s=asked.path[step]))
        rows.append(asked.text)
    return rows[:count]


def measure(workload: Workload) -> Iterator[Row]:
    """Indexing, and queries."""
    made = world(0, "train", workload.scaled(PASSAGES, 100))
    passages = made.passages
    queries = make_queries(made, workload.scaled(QUERIES, 20))
    index = Bm25(passages)

    def build() -> int:
        Bm25(passages)
        return len(passages)

    def retrieve() -> int:
        index.retrieve(queries, TOP)
        return len(queries)

    built, asked = [Contender("flowzoo", build)], [Contender("flowzoo", retrieve)]
    absent: dict[str, str] = {}
    if not is_installed("rank_bm25"):
        absent["rank_bm25"] = "not installed"
    else:
        other = import_module("rank_bm25").BM25Okapi([words(text) for _, text in passages])
        ids = [name for name, _ in passages]

        def theirs() -> int:
            for query in queries[:100]:
                other.get_top_n(words(query), ids, n=TOP)
            return len(queries[:100])

        asked.append(Contender("rank_bm25", theirs))
    size = f"{len(passages):,} passages"
    yield {"case": f"index of {size}", "unit": "passage", **race(built, min(3, workload.rounds))}
    yield {
        "case": f"queries in {size}", "unit": "query", "absent": absent,
        **race(asked, workload.rounds),
    }  # fmt: skip
