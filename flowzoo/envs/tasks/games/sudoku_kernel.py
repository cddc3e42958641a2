"""Sudoku, compiled: complete grids, digging with a uniqueness check, and a batch of answers.

Grids are (side * side,) uint8, 0 for a blank, side 4 or 9. Numba is imported and the kernels
compiled, or loaded from the cache beside this file, at the first use. Randomness is SplitMix64 from
a given seed, so that a grid is the same in every process and on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from flowzoo.envs.tasks.compiled import compile_in

_OPEN, _CLOSE = ord("["), ord("]")


class SudokuResult(NamedTuple):
    """What a list of entries comes to."""

    grid: str
    """Digits of clues and entries, row after row, 0 for a blank."""
    solved: bool
    """Every row, column and box has every digit."""
    invalid: int
    """Entries that edit a clue or lie outside; they change nothing."""


def complete_grid(side: int, seed: int) -> np.ndarray:
    """A random complete grid."""
    _compile()
    empty, grid = np.zeros((2, side * side), dtype=np.uint8)
    _count(empty, side, 1, np.array([seed], dtype=np.uint64), grid)
    return grid


def dig(grid: np.ndarray, side: int, blanks: int, seed: int) -> np.ndarray | None:
    """`grid` with `blanks` cells emptied at random and one solution left; None if stuck."""
    _compile()
    puzzle = grid.copy()
    left = _dig(puzzle, side, blanks, np.array([seed], dtype=np.uint64))
    return None if left else puzzle


def count_solutions(puzzle: str, side: int, most: int = 2) -> int:
    """Solutions of a puzzle (digits row after row), counted up to `most`."""
    _compile()
    grid = _array(puzzle)
    return _count(grid, side, most, np.zeros(1, np.uint64), np.zeros_like(grid))


def solution_of(puzzle: str, side: int) -> str:
    """The first solution of a puzzle (digits row after row); zeros if there is none."""
    _compile()
    grid = _array(puzzle)
    found = np.zeros_like(grid)
    _count(grid, side, 1, np.zeros(1, np.uint64), found)
    return digits(found)


def digits(grid: np.ndarray) -> str:
    """A grid as text, digits row after row."""
    return (grid + np.uint8(48)).tobytes().decode("ascii")


def fill_batch(puzzles: Sequence[str], side: int, lists: Sequence[str]) -> list[SudokuResult]:
    """Write the entries of `lists[i]` into `puzzles[i]`, in their order.

    Args:
        puzzles: digits row after row, 0 for a blank.
        side: 4 or 9.
        lists: canonical lists of `[row, column, value]` and of rows of whole grids.
    """
    if not lists:
        return []
    _compile()
    size = side * side
    puzzle = _array("".join(puzzles)).reshape(len(lists), size)
    buffer = np.frombuffer("".join(lists).encode("ascii"), dtype=np.uint8)
    ends = np.cumsum(np.fromiter(map(len, lists), np.int64, len(lists)))
    grids = puzzle.copy()
    out = np.zeros((len(lists), 2), dtype=np.int64)
    _enter(puzzle, grids, side, buffer, ends, out)
    text = digits(grids)
    return [
        SudokuResult(text[row * size : (row + 1) * size], bool(solved), invalid)
        for row, (solved, invalid) in enumerate(out.tolist())
    ]


def _array(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("ascii"), dtype=np.uint8) - np.uint8(48)


@cache
def _compile() -> None:
    search = ("_below", "_flip", "_free", "_size", "_pick", "_fits", "_count", "_dig")
    compile_in(globals(), (*search, "_write_grid", "_write_cell", "_enter"))


def _below(stream: np.ndarray, limit: int) -> np.int64:
    """The next number of a SplitMix64 stream, (1,) uint64, reduced to 0..limit-1."""
    stream[0] += np.uint64(0x9E3779B97F4A7C15)
    state = stream[0]
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    state = state ^ (state >> np.uint64(31))
    return np.int64(state % np.uint64(limit))


def _flip(masks: np.ndarray, side: int, cell: int, bit: int) -> None:
    """Toggle a digit's bit in the masks of its row, column and box, (3, side) int64."""
    box = 2 if side == 4 else 3
    row, column = cell // side, cell % side
    masks[0, row] ^= bit
    masks[1, column] ^= bit
    masks[2, row // box * box + column // box] ^= bit


def _free(masks: np.ndarray, side: int, cell: int) -> int:
    """Bits of the digits that fit into a cell."""
    box = 2 if side == 4 else 3
    row, column = cell // side, cell % side
    used = masks[0, row] | masks[1, column] | masks[2, row // box * box + column // box]
    return ((1 << side) - 1) & ~used


def _size(bits: int) -> int:
    """Number of bits set."""
    number = 0
    while bits:
        bits &= bits - 1
        number += 1
    return number


def _pick(grid: np.ndarray, side: int, masks: np.ndarray) -> tuple[int, int]:
    """The blank with the fewest choices, and their bits; -1 if there is no blank."""
    best, fewest, choices = -1, side + 1, 0
    for cell in range(side * side):
        if grid[cell] == 0:
            free = _free(masks, side, cell)
            number = _size(free)
            if number < fewest:
                best, fewest, choices = cell, number, free
    return best, choices


def _fits(clues: np.ndarray, side: int, grid: np.ndarray, masks: np.ndarray) -> bool:
    """Copy the clues to an empty grid with its masks; False if two of them clash."""
    for cell in range(side * side):
        grid[cell] = clues[cell]
        if grid[cell] > 0:
            bit = 1 << (grid[cell] - 1)
            if not _free(masks, side, cell) & bit:
                return False
            _flip(masks, side, cell, bit)
    return True


def _count(clues: np.ndarray, side: int, most: int, stream: np.ndarray, found: np.ndarray) -> int:
    """Count completions of a grid up to `most`; 0 if clues clash.

    Depth-first search, the digits of a cell in random order; `found` gets the last completion.
    """
    size = side * side
    grid, masks = np.zeros(size, np.int64), np.zeros((3, side), np.int64)
    if not _fits(clues, side, grid, masks):
        return 0
    cells, choices = np.zeros(size + 1, np.int64), np.zeros(size + 1, np.int64)
    taken = np.zeros(size + 1, np.int64)
    cells[0], choices[0] = _pick(grid, side, masks)
    depth, total = 0, 0
    while depth >= 0 and total < most:
        cell = cells[depth]
        if cell < 0:
            for place in range(size):
                found[place] = grid[place]
            total += 1
            depth -= 1
            continue
        if grid[cell] > 0:
            _flip(masks, side, cell, taken[depth])
            grid[cell] = 0
        bits = choices[depth]
        if bits == 0:
            depth -= 1
            continue
        for _ in range(_below(stream, _size(bits))):
            bits &= bits - 1
        bit = bits & -bits
        choices[depth] ^= bit
        taken[depth] = bit
        grid[cell] = _size(bit - 1) + 1
        _flip(masks, side, cell, bit)
        depth += 1
        cells[depth], choices[depth] = _pick(grid, side, masks)
    return total


def _dig(grid: np.ndarray, side: int, blanks: int, stream: np.ndarray) -> int:
    """Empty cells in random order while one solution is left; how many blanks are missing."""
    size = side * side
    order = np.arange(size)
    found = np.empty(size, np.uint8)
    for place in range(size):
        if blanks == 0:
            break
        other = place + _below(stream, size - place)
        order[place], order[other] = order[other], order[place]
        cell = order[place]
        digit = grid[cell]
        grid[cell] = 0
        if _count(grid, side, 2, stream, found) == 1:
            blanks -= 1
        else:
            grid[cell] = digit
    return blanks


def _write_grid(puzzle: np.ndarray, grid: np.ndarray, side: int, values: np.ndarray) -> bool:
    """Write a whole grid; False, and nothing written, if it edits a clue or has a false digit."""
    for cell in range(side * side):
        if values[cell] > side or (puzzle[cell] > 0 and values[cell] != puzzle[cell]):
            return False
    for cell in range(side * side):
        grid[cell] = values[cell]
    return True


def _write_cell(puzzle: np.ndarray, grid: np.ndarray, side: int, entry: np.ndarray) -> bool:
    """Write an entry; False, and nothing written, if it edits a clue or lies outside."""
    row, column, value = entry[0], entry[1], entry[2]
    cell = row * side + column
    if row >= side or column >= side or value > side:
        return False
    if puzzle[cell] > 0 and puzzle[cell] != value:
        return False
    grid[cell] = value
    return True


def _enter(
    puzzles: np.ndarray,
    grids: np.ndarray,
    side: int,
    buffer: np.ndarray,
    ends: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the entries of every list; `out` gets, per list, whether it is solved and `invalid`."""
    size = side * side
    item, whole = np.zeros(side, np.uint8), np.zeros(size, np.uint8)
    found, stream = np.empty(size, np.uint8), np.zeros(1, np.uint64)
    at = 0
    for number in range(len(ends)):
        puzzle, grid = puzzles[number], grids[number]
        length, rows = 0, 0
        while at < ends[number]:
            symbol = buffer[at]
            at += 1
            if symbol == _OPEN:
                length = 0
            elif 48 <= symbol <= 57 and length < side:
                item[length] = symbol - 48
                length += 1
            elif symbol == _CLOSE and length == side:
                for column in range(side):
                    whole[rows * side + column] = item[column]
                rows, length = rows + 1, 0
                if rows == side:
                    rows = 0
                    if not _write_grid(puzzle, grid, side, whole):
                        out[number, 1] += 1
            elif symbol == _CLOSE and length == 3:
                length = 0
                if not _write_cell(puzzle, grid, side, item):
                    out[number, 1] += 1
        complete = True
        for cell in range(size):
            complete = complete and grid[cell] > 0
        if complete and _count(grid, side, 1, stream, found) == 1:
            out[number, 0] = 1
