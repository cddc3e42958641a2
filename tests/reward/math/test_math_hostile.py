"""Hostile replies: right, fast and harmless from the main thread, a thread and a coroutine."""

import asyncio
import threading
from pathlib import Path

import pytest

from flowzoo.reward import equivalence_classes, score_batch
from tests.tables import read_tables, shared_rows

pytestmark = pytest.mark.usefixtures("little_work")

CANARY = Path("/tmp/flowzoo_canary")
TOUCH = f"__import__('pathlib').Path('{CANARY}').touch()"

TABLES = read_tables(__file__)
ROWS = [
    *TABLES["plain"],
    *(("".join(part * count for part, count in parts), gold) for parts, gold in TABLES["repeated"]),
    ("\ud800\x00\u202e\\boxed{\ud800}", "42"),
    (f"\\boxed{{{TOUCH}}}", "0"),
    (f"The answer is ${TOUCH}$", "0"),
    (f"\\boxed{{x^2+{TOUCH}<0}}", "x<0"),
    (f"\\input{{/etc/passwd}}\\write18{{touch {CANARY}}}", "0"),
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


def test_hostile_replies():
    CANARY.unlink(missing_ok=True)
    assert check([(pred, gold, False) for pred, gold in ROWS]) == []
    for pred, gold in ROWS:
        equivalence_classes([pred, gold, pred + "1"])
    assert not CANARY.exists()


def test_shared_hostile_file_from_everywhere():
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
