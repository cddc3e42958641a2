"""Hostile replies: right, fast and harmless from the main thread, a thread and a coroutine."""

import asyncio
import threading
from pathlib import Path

import pytest

from flowzoo.reward import equivalence_classes, score_batch
from tests.tables import shared_rows

pytestmark = pytest.mark.usefixtures("little_work")

CANARY = Path("/tmp/flowzoo_canary")
TOUCH = f"__import__('pathlib').Path('{CANARY}').touch()"

ROWS = [
    ("\\boxed{9**9**9**9}", "42"),
    ("\\boxed{(10^{100})^{(10^{100})}}", "42"),
    ("\\boxed{2^{10^{10}}}", "2^{10^{11}}"),
    ("\\boxed{\\frac{(10^9)!}{(10^9-1)!}}", "42"),
    ("\\boxed{\\sum_{n=1}^{10000000} \\frac{1}{n^n}}", "1"),
    ("\\boxed{\\prod_{k=1}^{10^{9}} k}", "42"),
    ("\\boxed{\\lim_{n \\to \\infty} \\frac{n!}{n^{n}}}", "42"),
    ("\\boxed{" * 1_000 + "43" + "}" * 1_000, "42"),
    ("\\boxed{" + "9" * 1_000_000 + "}", "42"),
    ("\\boxed{" + "-" * 50_000 + "43}", "42"),
    ("\\boxed{" + "(" * 60 + "43" + ")" * 60 + "}", "42"),
    ("\\boxed{" + "|" * 1_500 + "}", "42"),
    ("\\boxed{" + "x^" * 700 + "2}", "42"),
    ("\\boxed{" + "\\sqrt" * 390 + "2}", "42"),
    ("\\boxed{" + "\\frac1" * 330 + "2}", "42"),
    ("\\boxed{" + "\\sin" * 490 + "x}", "42"),
    ("\\boxed{" + "1<" * 900 + "2}", "42"),
    ("\\boxed{" + "[0,1)\\cup" * 190 + "[0,1)}", "[0,1)"),
    ("\\boxed{" + "\\{" * 60 + "1" + "\\}" * 60 + "}", "42"),
    ("\\boxed{" + "x=" * 900 + "1}", "42"),
    ("\\boxed{" + "\\begin{pmatrix}" * 100 + "1" + "\\end{pmatrix}" * 100 + "}", "1"),
    ("\\boxed{" + "1&2\\\\" * 300 + "}", "1"),
    ("\\boxed{0.5^{0.5^{-9999999999}}}", "0.5"),
    ("\\boxed{1e400}", "42"),
    ("\\boxed{\\gcd(10^{300}, 10^{299}+1)}", "42"),
    ("$" * 100_000, "42"),
    ("word " * 400_000, "42"),
    ("\\text{" * 20_000, "42"),
    ("\ud800\x00\u202e\\boxed{\ud800}", "42"),
    (f"\\boxed{{{TOUCH}}}", "0"),
    (f"The answer is ${TOUCH}$", "0"),
    (f"\\boxed{{x^2+{TOUCH}<0}}", "x<0"),
    (f"\\input{{/etc/passwd}}\\write18{{touch {CANARY}}}", "0"),
    ("\\boxed{42}", "9**9**9**9"),
    ("\\boxed{42}", "\\boxed{100000000!}"),
    ("\\boxed{\\frac{1}{2006!}}", "\\frac{1}{2004!}"),
]


def check(rows: list[tuple[object, str, bool]]) -> list[str]:
    """Failures, a line each, with pairs that the judge, patient as it is here, gave up on."""
    faults = []
    for pred, gold, expected in rows:
        result = score_batch([pred], [gold])  # type: ignore[list-item]
        gave_up = result.statuses[0] in ("timeout", "crashed")
        if bool(result.scores[0]) != expected or gave_up:
            faults.append(f"{str(pred)[:60]!r} for {gold!r}: {result.statuses}")
    return faults


def test_hostile_replies() -> None:
    CANARY.unlink(missing_ok=True)
    assert check([(pred, gold, False) for pred, gold in ROWS]) == []
    for pred, gold in ROWS:
        equivalence_classes([pred, gold, pred + "1"])
    assert not CANARY.exists()


def test_shared_hostile_file_from_everywhere() -> None:
    rows = [
        (row.get("pred", "".join(part * n for part, n in row.get("pred_parts", []))), row["gold"],
         row["expected"])
        for row in shared_rows("math_hostile.jsonl")
    ]  # fmt: skip
    faults: list[str] = []
    thread = threading.Thread(target=lambda: faults.extend(check(rows)), daemon=True)
    thread.start()
    thread.join()

    async def inside() -> None:
        faults.extend(check(rows))

    asyncio.run(inside())
    assert faults + check(rows) == []
