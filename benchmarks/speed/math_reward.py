"""The math reward beside Math-Verify: throughput, agreement, latency, growth, hostile replies.

All of it in one process pinned to one core, the caches of this project's scorer emptied before
every round. Math-Verify runs as its documentation says, with `parse` and `verify` and their own
time limits; for the agreement it gets what suits it best: bare answers in dollar signs, and its
string configuration for multiple choice. A case whose file is not in the folder of `--data` says
so.
"""

from __future__ import annotations

import logging
import os
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

from benchmarks.harness.memory import resident_mib
from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, digits, race, spread
from benchmarks.speed.data import (
    LabeledCase,
    Pairs,
    gsm_step,
    json_rows,
    labeled_cases,
    math_mix,
)
from flowzoo.reward import score_batch
from flowzoo.reward.math.answer import _read_cached
from flowzoo.reward.math.judge import _verdicts

PEER_ROWS = 96
"""Rows that Math-Verify gets in a round; it is the slower one."""


def forget() -> None:
    """Empty the caches of the scorer."""
    _read_cached.cache_clear()
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


def peer_at_best(case: LabeledCase) -> bool:
    """Verdict of Math-Verify on a labeled case in the configuration that suits its kind."""
    from math_verify import StringExtractionConfig, parse, verify

    try:
        if case.category == "choice":
            config = [StringExtractionConfig()]
            return bool(verify(parse(case.gold, config), parse(case.pred, config)))
        pred = typeset(case.pred) if case.kind == "plain" else case.pred
        return bool(verify(parse(typeset(case.gold)), parse(pred)))
    except Exception:
        return False


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


def agreement(cases: Sequence[LabeledCase]) -> Row:
    """Right verdicts by category of both."""
    rows = [(case.pred, case.gold) for case in cases]
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    wrong = {"flowzoo": Counter[bool](), "Math-Verify": Counter[bool]()}
    for case, a in zip(cases, ours(rows), strict=True):
        b = peer_at_best(case)
        for name in (case.category, "all"):
            for place, value in enumerate((1, a == case.expected, b == case.expected)):
                table[name][place] += value
        for name, verdict in (("flowzoo", a), ("Math-Verify", b)):
            wrong[name][verdict] += verdict != case.expected
    facts = {
        name: {"cases": count, "flowzoo": a, "Math-Verify": b}
        for name, (count, a, b) in sorted(table.items(), key=lambda item: item[0] == "all")
    }
    errors = {
        name: {"false positives": found[True], "false negatives": found[False]}
        for name, found in wrong.items()
    }
    return {"case": "agreement with labels", "right": facts, "wrong": errors}


def latency(cases: Sequence[LabeledCase]) -> Row:
    """Milliseconds of one case scored alone, with empty caches, time-outs left out."""
    taken = []
    for case in cases:
        forget()
        start = time.perf_counter()
        statuses = score_batch([case.pred], [case.gold]).statuses
        if statuses[0] != "timeout":
            taken.append(1e3 * (time.perf_counter() - start))
    taken.sort()
    return {
        "case": "latency of one reply", "replies": len(taken),
        "ms": {
            "median": digits(statistics.median(taken)),
            "p99": digits(taken[int(0.99 * len(taken))]), "most": digits(taken[-1]),
        },
    }  # fmt: skip


def growth(rows: Pairs, workload: Workload) -> Row:
    """Microseconds a row as the batch grows; every answer distinct, so that no memo helps."""
    found = {}
    for size in (1_000, 10_000):
        count = workload.scaled(size)
        many = [
            (pred.replace("}$.", f"+{number}}}$."), gold)
            for number, (pred, gold) in zip(range(count), cycle(rows), strict=False)
        ]
        each = []
        for _ in range(min(3, workload.rounds)):
            start = time.process_time()
            ours(many)
            each.append(1e6 * (time.process_time() - start) / count)
        found[f"{count:,}"] = spread(each)
    return {"case": "growth", "unit": "reply", "cpu_us": found}


def hostile(rows: Sequence[Row]) -> Row:
    """Slowest hostile row, wrong ones, and growth of this process in MiB."""
    before, slowest, wrong = resident_mib(), 0.0, 0
    for row in rows:
        pred = row.get("pred", "".join(part * n for part, n in row.get("pred_parts", [])))
        forget()
        start = time.perf_counter()
        score = score_batch([pred], [row["gold"]]).scores[0]
        slowest = max(slowest, time.perf_counter() - start)
        wrong += bool(score) != row["expected"]
    return {
        "case": "hostile replies", "replies": len(rows), "wrong": wrong,
        "slowest_s": digits(slowest), "grew_mib": digits(max(0.0, resident_mib() - before)),
    }  # fmt: skip


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
    """Three races, then the rest."""
    data = Path(workload.data or "../shared/data")
    cases = labeled_cases(data)
    mix = math_mix(data)
    with one_core():
        yield throughput("GSM8K-like step", gsm_step(data), workload)
        yield throughput("MATH-like mix", mix, workload)
        yield throughput("labeled cases", [(case.pred, case.gold) for case in cases], workload)
        if mix:
            yield growth(mix, workload)
        if cases:
            some = cases[: workload.scaled(len(cases), 10)]
            yield latency(some)
            yield agreement(some)
        rows = json_rows(data / "math_hostile.jsonl")
        if rows:
            yield hostile(rows[: workload.scaled(len(rows), 4)])
