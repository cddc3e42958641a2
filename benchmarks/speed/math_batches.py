"""The math reward by size of the batch: in Python, by the compiled pass, and what loading costs.

Replies are whole and end in a box, 24 for each problem, half of them right; answers are what
training grades, which were read in the episode. The caches of the scorer are emptied before every
batch. The compiled pass is loaded in processes of their own: with its code on the disk, from an
earlier process, and with an empty folder, for which it is compiled.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Lap, Workload, in_turns, race, summary
from benchmarks.speed.math_reward import forget
from flowzoo.envs.tasks.math import MathTask
from flowzoo.reward import MathOptions, score_batch
from flowzoo.reward.math import score
from flowzoo.reward.math.kernel import judge_plain

SIZES = (64, 128, 256, 512, 1_024, 1_536, 4_096)
ROWS = 16_384
"""Rows of a lap, in batches of one size."""
OF_PROBLEM = 24
_LOADING = """
import time
import numpy
from flowzoo.reward.math.kernel import judge_plain
cpu, wall = time.process_time(), time.perf_counter()
judge_plain([chr(92) + "boxed{1}"], [(1, 0)])
print(time.process_time() - cpu, time.perf_counter() - wall)
"""


def load_lap(folder: str) -> Lap:
    """Time the first call of the compiled pass in a new process; "" is a new folder."""
    with tempfile.TemporaryDirectory() as fresh:
        done = subprocess.run(
            [sys.executable, "-c", _LOADING],
            env=os.environ | {"NUMBA_CACHE_DIR": folder or fresh},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    cpu, wall = map(float, done.stdout.split())
    return Lap(1, cpu, wall)


def loading(rounds: int) -> Row:
    """Time to load the compiled pass."""
    with tempfile.TemporaryDirectory() as folder:
        load_lap(folder)  # compiles for the next ones
        laps = in_turns({"from the disk": folder, "compiled": ""}, rounds, load_lap)
    return {"case": "first call of a process", "unit": "call", "contenders": summary(laps)}


def batches(size: int, rows: int, rounds: int) -> Row:
    """Time of a row in batches of `size`."""
    task, rng = MathTask(level=2), random.Random(0)
    problems = [task.problem(number // OF_PROBLEM, "train") for number in range(size)]
    replies = [task.solve(problem, rng, rng.random() < 0.5) for problem in problems]
    golds, answers = [problem.gold for problem in problems], [*map(task.answer, replies)]
    strict = MathOptions(read="strict")

    def scored(compiled: bool) -> Sequence[str]:
        usual, score.pays_to_load = score.pays_to_load, lambda rows: compiled
        try:
            return score_batch(replies, golds, strict).statuses
        finally:
            score.pays_to_load = usual

    def lap(work: Callable[[], object]) -> Callable[[], int]:
        def repeated() -> int:
            for _ in range(max(1, rows // size)):
                forget()
                work()
            return size * max(1, rows // size)

        return repeated

    if scored(True) != scored(False):
        raise AssertionError("the compiled pass has other verdicts")
    contenders = [
        Contender("replies in Python", lap(lambda: scored(False))),
        Contender("replies, compiled", lap(lambda: scored(True))),
        Contender("answers, as in training", lap(lambda: task.grade_batch(problems, answers))),
    ]
    return {"case": f"{size:,} rows", "unit": "row", **race(contenders, rounds)}


def measure(workload: Workload) -> Iterator[Row]:
    """Every size, then loading."""
    judge_plain(["\\boxed{1}"], [(1, 0)])
    for size in SIZES:
        yield batches(size, workload.scaled(ROWS), workload.rounds)
    yield loading(workload.rounds)
