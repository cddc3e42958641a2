"""Speed of the search task's BM25 on one core: indexing and queries per second.

    python benchmarks/search_speed.py [--passages 20000] [--queries 2000] [--rounds 3]

The knowledge base is the generated one; the queries are the ones its oracle asks (the missing fact)
and whole questions. The peer in the same run is `rank_bm25.BM25Okapi` where it is installed; the
best of interleaved rounds counts. Also printed: how often the gold passage is among the first 3.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

from flowzoo.envs.tasks.search.index import Bm25, words
from flowzoo.envs.tasks.search.world import RELATIONS, World, draw_question, world

TOP = 3


def make_queries(made: World, count: int) -> list[tuple[str, str]]:
    """(query, id of the passage that answers it): oracle queries and questions, alternately."""
    rng = random.Random(0)
    rows: list[tuple[str, str]] = []
    while len(rows) < count:
        asked = draw_question(made, 1 + len(rows) % 3, rng)
        step = rng.randrange(len(asked.relations))
        phrase = RELATIONS[asked.relations[step]].phrase.format(s=asked.path[step])
        rows.append((phrase, made.ids[asked.path[step]]))
        rows.append((asked.text, made.ids[asked.start]))
    return rows[:count]


def peer(passages: Sequence[tuple[str, str]]) -> Callable[[Sequence[str]], object] | None:
    """`rank_bm25` over the same tokens, or None if it is absent."""
    if find_spec("rank_bm25") is None:
        return None
    index = import_module("rank_bm25").BM25Okapi([words(text) for _, text in passages])
    ids = [name for name, _ in passages]
    return lambda queries: [index.get_top_n(words(query), ids, n=TOP) for query in queries]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    made = world(0, "train", args.passages)
    started = time.perf_counter()
    index = Bm25(made.passages)
    print(f"index of {len(made.passages)} passages: {time.perf_counter() - started:.2f} s")
    rows = make_queries(made, args.queries)
    queries = [query for query, _ in rows]
    contenders: dict[str, Callable[[Sequence[str]], object]] = {
        "flowzoo": lambda batch: index.retrieve(batch, TOP)
    }
    other = peer(made.passages)
    if other is not None:
        contenders["rank_bm25"] = other
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for name, search in contenders.items():
            batch = queries if name == "flowzoo" else queries[:100]
            started = time.perf_counter()
            search(batch)
            times[name].append(len(batch) / (time.perf_counter() - started))
    for name, rates in times.items():
        print(f"{name:12} {max(rates):9,.0f} queries/s (best of {args.rounds})")
    found = index.retrieve(queries, TOP)
    hits = [
        any(passage.id == gold for passage in result.passages)
        for result, (_, gold) in zip(found, rows, strict=True)
    ]
    print(f"gold passage among the first {TOP}: {sum(hits) / len(hits):.4f}")


if __name__ == "__main__":
    main()
