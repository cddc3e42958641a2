"""The math reward beside Math-Verify: time of a reply.

All of it in one process pinned to one core, the caches of this project's scorer emptied before
every round. Math-Verify runs as its documentation says, with `parse` and `verify` and their own
time limits. A case whose file is not in the folder of `--data` says so.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, race
from benchmarks.speed.data import Pairs, gsm_step, json_rows, math_mix
from flowzoo.reward import score_batch
from flowzoo.reward.math.answer import _read_cached
from flowzoo.reward.math.clean import clean
from flowzoo.reward.math.judge import _verdicts

PEER_ROWS = 96
"""Rows that Math-Verify gets in a round; it is the slower one."""


def forget() -> None:
    """Empty the caches of the scorer."""
    _read_cached.cache_clear()
    clean.cache_clear()
    _verdicts.clear()


def ours(rows: Pairs) -> list[bool]:
    """Verdicts of this project."""
    forget()
    return [s == 1.0 for s in score_batch([p for p, _ in rows], [g for _, g in rows]).scores]


def typeset(text: str) -> str:
    """The text in dollar signs if it has no formula marks of its own."""
    marks = ("$", "\\boxed", "\\(", "\\[")
    return text if any(mark in text for mark in marks) else f"${text}$"


def peer(rows: Pairs) -> list[bool]:
    """Verdicts of Math-Verify; what it fails on is no match."""
    from math_verify import parse, verify

    verdicts = []
    for pred, gold in rows:
        try:
            verdicts.append(bool(verify(parse(typeset(gold)), parse(pred))))
        except Exception:
            verdicts.append(False)
    return verdicts


def throughput(name: str, rows: Pairs, workload: Workload) -> Row:
    """Both on the same kind of rows; the peer on some of them."""
    if not rows:
        return {"case": name, "absent": {name: "no such file in the folder of --data"}}
    count = workload.scaled(PEER_ROWS, 4)
    sample = random.Random(0).sample(rows, min(count, len(rows)))
    rows = rows[: workload.scaled(len(rows), count)]
    ours(rows)  # the pool, the kernel and the peer's parser start here
    peer(sample[:4])

    def counted(verdicts: Callable[[Pairs], list[bool]], of: Pairs) -> Callable[[], int]:
        return lambda: len(verdicts(of))

    contenders = [
        Contender("flowzoo", counted(ours, rows)), Contender("Math-Verify", counted(peer, sample))
    ]  # fmt: skip
    return {"case": name, "unit": "reply", **race(contenders, workload.rounds, tree=True)}


@contextmanager
def one_core() -> Iterator[None]:
    """Everything in here, and what is started in here, on one core and without log lines."""
    logging.disable(logging.CRITICAL)
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if before is not None:
        os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        if before is not None:
            os.sched_setaffinity(0, before)


def measure(workload: Workload) -> Iterator[Row]:
    """Three races."""
    data = Path(workload.data or "../shared/data")
    labeled = [(row["pred"], row["gold"]) for row in json_rows(data / "math_cases.jsonl")]
    with one_core():
        yield throughput("GSM8K-like step", gsm_step(data), workload)
        yield throughput("MATH-like mix", math_mix(data), workload)
        yield throughput("labeled cases", labeled, workload)
