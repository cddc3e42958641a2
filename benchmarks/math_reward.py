r"""The math reward beside Math-Verify 0.9.0: agreement, throughput, latency, hostile rows.

    python benchmarks/math_reward.py [--data ../shared/data] [--rounds 3] [--peer-rows 96] [--short]

Both run in one process that is pinned to one core, in interleaved rounds; the best round of each
counts, the caches of this project's scorer are emptied before every round, and the ratio is of rows
per second. Math-Verify runs as its documentation says, with `parse` and `verify` and their own
time limits; for the agreement it gets what suits it best: bare answers in dollar signs, and its
string configuration for multiple choice. Needs the data files of the labelled and hostile cases, of
GSM8K and of MATH-500; a section whose file is absent says so.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import re
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.reward import MathOptions, score_batch
from flowzoo.reward.math.answer import _read_cached
from flowzoo.reward.math.judge import _known

Rows = list[tuple[str, str]]
"""(prediction, gold) pairs."""


class Case(NamedTuple):
    """One labelled pair."""

    id: str
    category: str
    kind: str
    pred: str
    gold: str
    expected: bool


def forget() -> None:
    """Empty the caches of the scorer."""
    _read_cached.cache_clear()
    _known.clear()


def ours(rows: Rows, options: MathOptions | None = None) -> list[bool]:
    """Verdicts of this project."""
    return [
        s == 1.0 for s in score_batch([p for p, _ in rows], [g for _, g in rows], options).scores
    ]


def peer(rows: Rows) -> list[bool]:
    """Verdicts of Math-Verify."""
    from math_verify import parse, verify

    verdicts = []
    for pred, gold in rows:
        try:
            verdicts.append(bool(verify(parse(typeset(gold)), parse(pred))))
        except Exception:
            verdicts.append(False)
    return verdicts


def peer_at_best(case: Case) -> bool:
    """Verdict of Math-Verify on a labelled case in the configuration that suits its kind."""
    from math_verify import StringExtractionConfig, parse, verify

    try:
        if case.category == "choice":
            config = [StringExtractionConfig()]
            return bool(verify(parse(case.gold, config), parse(case.pred, config)))
        pred = typeset(case.pred) if case.kind == "plain" else case.pred
        return bool(verify(parse(typeset(case.gold)), parse(pred)))
    except Exception:
        return False


def typeset(text: str) -> str:
    """The text in dollar signs if it has no formula marks of its own."""
    marks = ("$", "\\boxed", "\\(", "\\[")
    return text if any(mark in text for mark in marks) else f"${text}$"


def seconds(work: Callable[[], Any]) -> float:
    """Wall time of `work`."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON Lines file; empty, with a message, if it is absent."""
    if not path.exists():
        print(f"({path} is not here: skipped)")
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def agreement(cases: Sequence[Case]) -> None:
    """Share of right verdicts by category, side by side, and this project's disagreements."""
    rows = [(case.pred, case.gold) for case in cases]
    found, other = ours(rows), [peer_at_best(case) for case in cases]
    table: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for case, a, b in zip(cases, found, other, strict=True):
        for name in (case.category, "all"):
            table[name][0] += 1
            table[name][1] += a == case.expected
            table[name][2] += b == case.expected
    print(f"\n{'agreement':20s} {'rows':>5s} {'flowzoo':>9s} {'Math-Verify':>12s}")
    for name, (count, a, b) in sorted(table.items(), key=lambda item: item[0] == "all"):
        print(f"{name:20s} {count:5d} {a / count:8.1%} {b / count:11.1%}")
    for name, verdicts in (("flowzoo", found), ("Math-Verify", other)):
        wrong = Counter(v for case, v in zip(cases, verdicts, strict=True) if v != case.expected)
        print(f"{name}: {wrong[True]} false positives, {wrong[False]} false negatives")
    for case, verdict in zip(cases, found, strict=True):
        if verdict != case.expected:
            kind = "false positive" if verdict else "false negative"
            print(f"  {case.id} {kind}: gold {case.gold[:60]!r}, answer {case.pred[-60:]!r}")


def gsm_step(data: Path, rng: random.Random, prompts: int = 128, samples: int = 16) -> Rows:
    """A training step on GSM8K: replies of about 2,850 characters that end in a box."""
    problems = lines(data / "gsm8k" / "test.jsonl")[:prompts]
    prose = " ".join(row["answer"].partition("####")[0] for row in problems)
    rows: Rows = []
    for row in problems:
        gold = row["answer"].rpartition("####")[2].strip()
        for _ in range(samples):
            start = rng.randrange(len(prose) - 2_900)
            answer = gold if rng.random() < 0.5 else str(rng.randrange(2_000))
            rows.append(
                (f"{prose[start : start + 2_820]}\nSo the answer is \\boxed{{{answer}}}.", gold)
            )
    return rows


def respelled(gold: str, rng: random.Random) -> str:
    """The answer in another spelling, or, half the time, another answer."""
    text = gold
    if rng.random() < 0.5:
        text = re.sub(r"\d+", lambda m: str(int(m[0]) + rng.randrange(3)), text)
    changes: list[Callable[[str], str]] = [
        lambda s: s.replace("\\frac", rng.choice(("\\dfrac", "\\tfrac", "\\frac"))),
        lambda s: s.replace("(", "\\left(").replace(")", "\\right)") if "\\left" not in s else s,
        lambda s: s.replace(",", ", ") if "\\" not in s else s,
        lambda s: s.replace(" ", ""),
        lambda s: re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", s),
        lambda s: f" {s} ",
        lambda s: f"x = {s}" if "=" not in s else s,
    ]
    return rng.choice(changes)(text)


def math_mix(data: Path, rng: random.Random, samples: int = 4) -> Rows:
    """Replies to MATH-500 problems, 42 % of them with golds that are no plain number."""
    problems = lines(data / "math500" / "test.jsonl")
    plain = [row for row in problems if re.fullmatch(r"-?\d+", row["answer"])]
    rest = [row for row in problems if not re.fullmatch(r"-?\d+", row["answer"])]
    count = min(len(plain), round(len(rest) * 58 / 42))
    chosen = [*rest[: round(count * 42 / 58)], *plain[:count]]
    rows: Rows = []
    for row in chosen:
        for _ in range(samples):
            work = row["solution"].replace("\\boxed", "")
            rows.append(
                (
                    f"{work}\nThe answer is $\\boxed{{{respelled(row['answer'], rng)}}}$.",
                    row["answer"],
                )
            )
    rng.shuffle(rows)
    return rows


def throughput(name: str, rows: Rows, rounds: int, peer_rows: int, bar: float) -> None:
    """Rows per second of both in interleaved rounds, and the ratio."""
    if not rows:
        return
    sample = random.Random(0).sample(rows, min(peer_rows, len(rows)))
    ours(rows)  # the pool, the kernel and the peer's parser start here
    peer(sample[:4])
    fast, slow = [], []
    for _ in range(rounds):
        forget()
        fast.append(len(rows) / seconds(lambda: ours(rows)))
        slow.append(len(sample) / seconds(lambda: peer(sample)))
    ratio = max(fast) / max(slow)
    print(
        f"{name:24s} {max(fast):10,.0f} rows/s (worst round {min(fast):,.0f})   Math-Verify "
        f"{max(slow):6,.1f}   ratio {ratio:8,.0f}   bar {bar:.0f}"
    )


def latency(cases: Sequence[Case]) -> None:
    """Time of one case scored alone, with empty caches, time-outs excluded."""
    taken = []
    for case in cases:
        forget()
        start = time.perf_counter()
        statuses = score_batch([case.pred], [case.gold]).statuses
        if statuses[0] != "timeout":
            taken.append(time.perf_counter() - start)
    taken.sort()
    p99 = taken[int(0.99 * len(taken))]
    print(
        f"one case alone: median {1e3 * statistics.median(taken):.2f} ms, "
        f"p99 {1e3 * p99:.1f} ms, most {1e3 * taken[-1]:.1f} ms"
    )


def growth(rows: Rows, most: int) -> None:
    """Microseconds a row as the batch grows; every answer distinct, so that no memo helps."""
    print("\nrows      us/row")
    count = 1_000
    while rows and count <= most:
        many = [
            (pred.replace("}$.", f"+{idx}}}$."), gold)
            for idx, (pred, gold) in zip(
                range(count), rows * (count // len(rows) + 1), strict=False
            )
        ]
        forget()
        print(f"{count:7,d}  {1e6 * seconds(lambda many=many: ours(many)) / count:7.2f}")
        count *= 10


def resident() -> float:
    """Resident memory of this process, in MB (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def hostile(rows: Sequence[dict[str, Any]]) -> None:
    """Slowest hostile row, wrong ones, and growth of this process."""
    if not rows:
        return
    before, slowest, wrong = resident(), (0.0, ""), []
    for row in rows:
        pred = row.get("pred", "".join(part * n for part, n in row.get("pred_parts", [])))
        forget()
        start = time.perf_counter()
        score = score_batch([pred], [row["gold"]]).scores[0]
        slowest = max(slowest, (time.perf_counter() - start, row["id"]))
        if bool(score) != row["expected"]:
            wrong.append(row["id"])
    print(
        f"\nhostile: {len(rows)} rows, wrong {wrong or 'none'}, slowest {slowest[0]:.2f} s "
        f"({slowest[1]}), this process grew {resident() - before:.1f} MB"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peer-rows", type=int, default=96, help="rows that Math-Verify gets a round"
    )
    parser.add_argument("--short", action="store_true", help="no growth beyond 10,000 rows")
    args = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the workers inherit it
    rng = random.Random(7)
    cases = [
        Case(*(row[key] for key in ("id", "category", "kind", "pred", "gold", "expected")))
        for row in lines(args.data / "math_cases.jsonl")
    ]
    print(f"Python {sys.version.split()[0]}, one core, best of {args.rounds} interleaved rounds\n")
    step, mix = gsm_step(args.data, rng), math_mix(args.data, rng)
    labelled = [(case.pred, case.gold) for case in cases]
    throughput("GSM8K-like step", step, args.rounds, args.peer_rows, 20)
    throughput("MATH-like mix", mix, args.rounds, args.peer_rows, 8)
    throughput("labelled set", labelled, args.rounds, len(labelled), 3)
    if cases:
        latency(cases)
        agreement(cases)
    growth(mix, 10_000 if args.short else 100_000)
    hostile(lines(args.data / "math_hostile.jsonl"))


if __name__ == "__main__":
    main()
