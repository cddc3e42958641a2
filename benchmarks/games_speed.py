"""Worlds on one core: candidates read and graded, instances generated, kernels beside plain Python.

    python benchmarks/games_speed.py [--rounds 3] [--seconds 0.5]

Every figure is per second of processor time, the best of the rounds; compiled and plain run in
turns in one process, on the same inputs, after the kernels were compiled once. The plain forms are
what one would write without numba: strings, sets and deques, not array code. Bars: 10,000 plans of
plan_path or sudoku a second from the reply to the score, 200 instances of sokoban 6 x 6 a second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from flowzoo.envs.tasks import Problem, make_task
from flowzoo.envs.tasks.games.actions import MOVES, moves_of
from flowzoo.envs.tasks.games.plan_path import neighbour
from flowzoo.envs.tasks.games.plan_path_kernel import walk_batch
from flowzoo.envs.tasks.games.sokoban_kernel import SokobanLevel, bare
from flowzoo.envs.tasks.games.sudoku_kernel import fill_batch

BATCH = 512
"""Candidates graded in one call, as an engine's batch would be."""


def plain_distance(board: str, side: int, source: int, goal: int) -> int:
    """Length of a shortest path by breadth-first search."""
    found, queue = {source: 0}, deque([source])
    while queue:
        cell = queue.popleft()
        if cell == goal:
            return found[cell]
        for move in MOVES:
            there = neighbour(cell, move, side)
            if there is not None and board[there] != "#" and there not in found:
                found[there] = found[cell] + 1
                queue.append(there)
    return -1


def plain_walk(board: str, side: int, plan: str) -> tuple[int, int, int]:
    """Final cell, invalid moves, and distance left."""
    board = board.replace("\n", "")
    cell, goal, invalid = board.index("P"), board.index("G"), 0
    for move in moves_of(plan)[: 2 * side * side]:
        there = neighbour(cell, move, side)
        if there is None or board[there] == "#":
            invalid += 1
        else:
            cell = there
    return cell, invalid, plain_distance(board, side, cell, goal)


def plain_fill(puzzle: str, side: int, entries: str) -> bool:
    """Whether the entries complete the puzzle rightly."""
    grid, box = list(puzzle), 2 if side == 4 else 3
    for row, column, value in json.loads(entries):
        cell = row * side + column
        if puzzle[cell] in ("0", str(value)):
            grid[cell] = str(value)
    lines = [grid[row * side : (row + 1) * side] for row in range(side)]
    squares = [
        [lines[r + a][c + b] for a in range(box) for b in range(box)]
        for r in range(0, side, box)
        for c in range(0, side, box)
    ]
    every = {str(digit) for digit in range(1, side + 1)}
    return all(set(part) == every for part in (*lines, *zip(*lines, strict=True), *squares))


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


def rate(work: Callable[[], int], seconds: float) -> float:
    """Units of `work` a second of processor time; it returns how many units it did."""
    units, start = 0, time.process_time()
    while (spent := time.process_time() - start) < seconds:
        units += work()
    return units / spent


def candidates(task: Any, count: int) -> tuple[list[Problem], list[str]]:
    """Problems, and replies to them of which half are right, as a model would write them."""
    problems = [task.problem(index) for index in range(count)]
    rng = random.Random(0)
    lists = [task.solve(p, rng, index % 2 == 0) for index, p in enumerate(problems)]
    return problems, [f"I go round the wall.\n```json\n{text}\n```" for text in lists]


def grading(name: str, options: dict[str, Any]) -> Callable[[], int]:
    """From the reply to the score."""
    task = make_task(name, **options)
    problems, replies = candidates(task, BATCH)

    def work() -> int:
        task.grade_batch(problems, [task.answer(reply) for reply in replies])
        return BATCH

    return work


def generating(name: str, options: dict[str, Any]) -> Callable[[], int]:
    """Training problems, each a new one."""
    task, numbers = make_task(name, **options), iter(range(10**9))

    def work() -> int:
        for _ in range(20):
            task.problem(next(numbers))
        return 20

    return work


def beside(rows: Sequence[Any], compiled: Callable[..., Any], plain: Callable[..., Any]) -> Any:
    """Two works on the same rows: all in one compiled call, and one by one in plain Python."""

    def fast() -> int:
        compiled()
        return len(rows)

    def slow() -> int:
        for row in rows:
            plain(*row)
        return len(rows)

    return fast, slow


def pairs() -> dict[str, tuple[Callable[[], int], Callable[[], int]]]:
    """Kernels and their plain forms by name."""
    found = {}
    task = make_task("plan_path")
    problems, replies = candidates(task, BATCH)
    boards, plans = [p.meta["board"] for p in problems], [task.answer(r) or "[]" for r in replies]
    found["plan_path walk and distance, 10x10"] = beside(
        [(board, 10, plan) for board, plan in zip(boards, plans, strict=True)],
        lambda: walk_batch(boards, 10, plans, 200),
        plain_walk,
    )
    for side in (4, 9):
        task = make_task("sudoku", side=side)
        problems, replies = candidates(task, BATCH)
        puzzles = ["".join(p.meta["board"].split()) for p in problems]
        entries = [task.answer(reply) or "[]" for reply in replies]
        found[f"sudoku entries and check, {side}x{side}"] = beside(
            [(puzzle, side, text) for puzzle, text in zip(puzzles, entries, strict=True)],
            lambda puzzles=puzzles, side=side, entries=entries: fill_batch(puzzles, side, entries),
            plain_fill,
        )
    for boxes in (1, 3):
        task = make_task("sokoban", boxes=boxes)
        levels = [bare(task.problem(index).meta["board"]) for index in range(4)]
        found[f"sokoban level search, 6x6, {boxes} boxes"] = beside(
            [(level,) for level in levels],
            lambda levels=levels: [SokobanLevel(level) for level in levels],
            plain_level,
        )
    return found


def main() -> None:
    """Print the three tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5)
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sizes: list[tuple[str, dict[str, Any]]] = [
        ("plan_path", {}), ("plan_path", {"reward": "shaped"}), ("plan_path", {"side": 4}),
        ("sokoban", {}), ("sokoban", {"boxes": 3}), ("sudoku", {}),
        ("sudoku", {"reward": "shaped"}), ("sudoku", {"side": 9}),
    ]  # fmt: skip
    for title, make in (("candidates, reply to score", grading), ("instances", generating)):
        print(f"{title}, a second")
        for name, options in sizes:
            work = make(name, options)
            work()
            best = max(rate(work, arguments.seconds) for _ in range(arguments.rounds))
            print(f"  {name:<10} {options!s:<22} {best:>12,.0f}")
    print("compiled beside plain Python, a second")
    for name, (fast, slow) in pairs().items():
        fast()
        rounds = [
            (rate(fast, arguments.seconds), rate(slow, arguments.seconds))
            for _ in range(arguments.rounds)
        ]
        best, plain = (max(column) for column in zip(*rounds, strict=True))
        print(f"  {name:<40} {best:>12,.0f} {plain:>12,.0f} {best / plain:>7.1f}x")


if __name__ == "__main__":
    main()
