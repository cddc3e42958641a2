"""Moves and shortest paths on a grid, compiled: a whole batch of plans in one pass.

Plans arrive as their canonical text, joined into one byte buffer; the kernel takes the letters
U, D, L, R and skips the rest, so that no plan is turned into Python objects. Numba is imported and
the kernels compiled, or loaded from the cache beside this file, at the first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from flowzoo.envs.tasks.compiled import compile_in

UNREACHED = -1
_WALL, _START, _GOAL, _BOTH = ord("#"), ord("P"), ord("G"), ord("+")


class PlanPathResult(NamedTuple):
    """What a plan comes to."""

    end: int
    """Final cell, row * side + column."""
    moves: int
    """Moves made, those into a wall included; at most the cap."""
    invalid: int
    """Moves into a wall or off the grid: they change nothing."""
    start_distance: int
    """Moves from the start to the goal on a shortest path."""
    end_distance: int
    """Moves from the final cell to the goal on a shortest path."""


def cells(board: str) -> bytes:
    """The cells of a board (rows ended by newlines), row after row."""
    return board.replace("\n", "").encode("ascii")


def distances(board: str, side: int, source: int) -> np.ndarray:
    """Length of a shortest path from every cell to `source`, (side * side,) int16; -1 where none.

    Args:
        board: `#` is a wall, anything else is free.
        side: cells in a row and rows.
        source: a cell, row * side + column.
    """
    grid = np.frombuffer(cells(board), dtype=np.uint8)
    out = np.empty(side * side, dtype=np.int16)
    _compile()
    _spread(grid, side, source, out, np.empty(side * side, dtype=np.int16))
    return out


def walk_batch(
    boards: Sequence[str], side: int, plans: Sequence[str], cap: int
) -> list[PlanPathResult]:
    """Play `plans[i]` on `boards[i]`; at most `cap` moves of each are made.

    Args:
        boards: boards of one side with a `P` and a `G`, or a `+` for both.
        side: cells in a row and rows.
        plans: canonical lists of moves.
        cap: moves after this many are not made.
    """
    if not plans:
        return []
    grids = np.frombuffer(b"".join(map(cells, boards)), dtype=np.uint8)
    buffer = np.frombuffer("".join(plans).encode("ascii"), dtype=np.uint8)
    ends = np.cumsum(np.fromiter(map(len, plans), np.int64, len(plans)))
    out = np.empty((len(plans), len(PlanPathResult._fields)), dtype=np.int64)
    _compile()
    _walk(grids.reshape(len(plans), side * side), side, buffer, ends, cap, out)
    return [PlanPathResult(*row) for row in out.tolist()]


@cache
def _compile() -> None:
    compile_in(globals(), ("_spread", "_walk"))


def _spread(grid: np.ndarray, side: int, source: int, out: np.ndarray, queue: np.ndarray) -> None:
    """Breadth-first search from `source`; `queue` is scratch of the size of `grid`."""
    out[:] = UNREACHED
    out[source] = 0
    queue[0] = source
    head, tail = 0, 1
    while head < tail:
        cell = queue[head]
        head += 1
        row, column = cell // side, cell % side
        for move in range(4):
            down = (move == 1) - (move == 0)
            right = (move == 3) - (move == 2)
            r, c = row + down, column + right
            if 0 <= r < side and 0 <= c < side:
                there = r * side + c
                if grid[there] != _WALL and out[there] < 0:
                    out[there] = out[cell] + 1
                    queue[tail] = there
                    tail += 1


def _walk(
    grids: np.ndarray, side: int, buffer: np.ndarray, ends: np.ndarray, cap: int, out: np.ndarray
) -> None:
    size = side * side
    distance, queue = np.empty(size, np.int16), np.empty(size, np.int16)
    at = 0
    for plan in range(len(ends)):
        grid = grids[plan]
        row, column, goal = 0, 0, 0
        for cell in range(size):
            if grid[cell] == _START or grid[cell] == _BOTH:
                row, column = cell // side, cell % side
            if grid[cell] == _GOAL or grid[cell] == _BOTH:
                goal = cell
        start = row * side + column
        moves, invalid = 0, 0
        while at < ends[plan]:
            letter = buffer[at]
            at += 1
            down = (letter == 68) - (letter == 85)  # D, U
            right = (letter == 82) - (letter == 76)  # R, L
            if (down == 0 and right == 0) or moves >= cap:
                continue
            moves += 1
            r, c = row + down, column + right
            if 0 <= r < side and 0 <= c < side and grid[r * side + c] != _WALL:
                row, column = r, c
            else:
                invalid += 1
        _spread(grid, side, goal, distance, queue)
        out[plan, 0] = row * side + column
        out[plan, 1] = moves
        out[plan, 2] = invalid
        out[plan, 3] = distance[start]
        out[plan, 4] = distance[row * side + column]
