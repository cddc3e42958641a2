"""Boards of the games: candidates from reply to score, new instances, and beside plain Python.

The plain form is what one would write without numba: dicts, sets and deques, not array code.
Compiled and plain take turns on the same inputs, after the kernel was compiled once.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Contender, Workload, race
from flowzoo.envs.tasks import Problem, make_task
from flowzoo.envs.tasks.games.sokoban import SokobanLevel, bare

BATCH = 512
"""Candidates graded in one call, as an engine's batch would be."""
SIZES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("plan_path", {}), ("plan_path", {"side": 4}), ("sokoban", {}), ("sudoku", {}),
    ("sudoku", {"side": 9}),
)  # fmt: skip


def plain_level(board: str) -> int:
    """States from which the level can be solved, by search backwards with dicts and sets."""
    rows = bare(board).split("\n")
    floor = {(r, c) for r, row in enumerate(rows) for c, mark in enumerate(row) if mark != "#"}
    goals = frozenset(cell for cell in floor if rows[cell[0]][cell[1]] == ".")
    seen = {(player, goals) for player in floor - goals}
    queue = deque(seen)
    while queue:
        (r, c), boxes = queue.popleft()
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            before, ahead = (r - down, c - right), (r + down, c + right)
            if before not in floor or before in boxes:
                continue
            earlier = [(before, boxes)]
            if ahead in boxes:
                earlier.append((before, boxes - {ahead} | {(r, c)}))
            for state in earlier:
                if state not in seen:
                    seen.add(state)
                    queue.append(state)
    return len(seen)


def candidates(task: Any, number: int) -> tuple[list[Problem], list[str]]:
    """Problems, and replies to them of which half are right, as a model would write them."""
    problems = [task.problem(index) for index in range(number)]
    rng = random.Random(0)
    lists = [task.solve(p, rng, index % 2 == 0) for index, p in enumerate(problems)]
    return problems, [f"I go round the wall.\n```json\n{text}\n```" for text in lists]


def grading(task: Any, number: int) -> Callable[[], int]:
    """From the reply to the score."""
    problems, replies = candidates(task, number)

    def work() -> int:
        task.grade_batch(problems, [task.answer(reply) for reply in replies])
        return number

    return work


def generating(task: Any, number: int) -> Callable[[], int]:
    """Training problems, each a new one."""
    numbers = count()

    def work() -> int:
        for _ in range(number):
            task.problem(next(numbers))
        return number

    return work


def beside(
    rows: Sequence[Any], compiled: Callable[[], Any], plain: Callable[..., Any]
) -> list[Contender]:
    """All rows in one compiled call, and one by one in plain Python."""

    def fast() -> int:
        compiled()
        return len(rows)

    def slow() -> int:
        for row in rows:
            plain(*row)
        return len(rows)

    fast()
    return [Contender("compiled", fast), Contender("plain Python", slow)]


def pairs(number: int) -> Iterator[tuple[str, list[Contender]]]:
    """The compiled search beside its plain form."""
    for boxes in (1, 3) if number == BATCH else (1,):  # three take plain Python seconds
        task = make_task("sokoban", boxes=boxes)
        levels = [bare(task.problem(index).meta["board"]) for index in range(4)]
        yield (
            f"sokoban 6×6, {boxes} boxes, search",
            beside(
                [(level,) for level in levels],
                lambda levels=levels: [SokobanLevel(level) for level in levels],
                plain_level,
            ),
        )


def measure(workload: Workload) -> Iterator[Row]:
    """A row a task for grading and for making, then the kernel."""
    number = workload.scaled(BATCH, 8)
    for name, options in SIZES:
        task, said = make_task(name, **options), " ".join(f"{k}={v}" for k, v in options.items())
        works = {"from reply to score": grading(task, number), "a new board": generating(task, 20)}
        for what, work in works.items():
            work()
            case = " ".join(filter(None, (name, said))) + f": {what}"
            found = race([Contender("flowzoo", work)], workload.rounds)
            yield {"case": case, "unit": "board", **found}
    for name, contenders in pairs(number):
        yield {"case": name, "unit": "board", **race(contenders, workload.rounds)}
