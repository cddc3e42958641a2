"""The task `sudoku`: fill blanks until every row, column and box has every digit once.

| | |
|---|---|
| Creation | `make_task("sudoku")`, `make_task("sudoku", side=9, blanks=40)`, `make_task("sudoku", blanks=3)` |
| Problems | the rows of a file (`data=`), or endless: a random complete grid, then cells emptied in random order while the solution stays unique |
| Prompt | the puzzle, 0 for a blank; a separate list of earlier entries; the answer format |
| Answer | the last JSON list of the reply: entries `[row, column, value]` counted from 0, or a whole grid, a list of rows; lenient: also a grid in lines of digits, or entries as `(row, column) = value` |
| Entries | a later entry replaces an earlier one, and value 0 removes it; an entry that changes a clue or is off the grid is rejected, as is a whole grid with such a cell; numbers have one digit |
| Score | `sparse`: 1 if the grid is complete and right at the end, else 0; `shaped`: see below |

Every puzzle has exactly one solution. The *complete* grid determines the split: there are only 288
for 4 × 4, and the splits share no solutions.

The shaped return is the fraction of blanks that are right at the end, −0.1 per rejected entry or
grid, and +1 if the puzzle is solved. The score is half of it, at least 0.

Version history: v0, first release.
"""  # noqa: E501 - rows of tables

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar, Literal

import numpy as np

from flowzoo.envs.settings import check_whole, whole
from flowzoo.envs.tasks.games.game import (
    LONGEST_LIST,
    START,
    Game,
    GameInstance,
    GameResult,
    check_square,
    compile_in,
    json_list,
    written,
)
from flowzoo.envs.tasks.task import Problem, Scene, split_of
from flowzoo.envs.text import visible
from flowzoo.errors import UsageError


def search(clues: np.ndarray, side: int, most: int, seed: int = 0) -> tuple[int, np.ndarray]:
    """Number of completions of a grid, counted up to `most`, and the last one (zeros for none)."""
    _compile()
    grid = np.zeros_like(clues)
    return _count(clues, side, most, np.array([seed], dtype=np.uint64), grid), grid


def complete_grid(side: int, seed: int) -> np.ndarray:
    """A random complete grid."""
    return search(np.zeros(side * side, dtype=np.uint8), side, 1, seed)[1]


def dig(grid: np.ndarray, side: int, blanks: int, seed: int) -> np.ndarray | None:
    """Empty `blanks` random cells of `grid` with a unique solution; None if stuck."""
    _compile()
    puzzle = grid.copy()
    left = _dig(puzzle, side, blanks, np.array([seed], dtype=np.uint64))
    return None if left else puzzle


def count_solutions(puzzle: str, side: int, most: int = 2) -> int:
    """Number of solutions of a puzzle (digits row after row), counted up to `most`."""
    return search(_array(puzzle), side, most)[0]


@lru_cache(maxsize=4096)
def solution_of(puzzle: str, side: int) -> str:
    """The first solution of a puzzle (digits row after row); zeros if there is none."""
    return digits(search(_array(puzzle), side, 1)[1])


def digits(grid: np.ndarray) -> str:
    """A grid as text, digits row after row."""
    return (grid + np.uint8(48)).tobytes().decode("ascii")


def fill(puzzle: str, side: int, entries: str) -> tuple[str, int]:
    """Write entries into a puzzle, in their order: the digits, and the number of rejected ones."""
    grid, rejected, rows = list(puzzle), 0, list[int]()
    for item in json.loads(entries):
        if len(item) == side:
            rows += item
            if len(rows) < side * side:
                continue
            values, rows = dict(enumerate(rows)), []
        else:
            row, column, value = item
            # A cell that the grid does not have rejects any value.
            values = {row * side + column if max(row, column) < side else -1: value}
        if all(
            cell >= 0 and value <= side and puzzle[cell] in ("0", str(value))
            for cell, value in values.items()
        ):
            for cell, value in values.items():
                grid[cell] = str(value)
        else:
            rejected += 1
    return "".join(grid), rejected


def _array(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("ascii"), dtype=np.uint8) - np.uint8(48)


@cache
def _compile() -> None:
    names = ("_draw_number", "_flip", "_free", "_size", "_pick", "_fits", "_count", "_dig")
    compile_in(globals(), names)


def _draw_number(stream: np.ndarray, limit: int) -> np.int64:
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
    number = 0
    while bits:
        bits &= bits - 1
        number += 1
    return number


def _pick(grid: np.ndarray, side: int, masks: np.ndarray) -> tuple[int, int]:
    """The blank with the fewest candidates, and their bits; -1 without a blank."""
    best, fewest, choices = -1, side + 1, 0
    for cell in range(side * side):
        if grid[cell] == 0:
            free = _free(masks, side, cell)
            number = _size(free)
            if number < fewest:
                best, fewest, choices = cell, number, free
    return best, choices


def _fits(clues: np.ndarray, side: int, grid: np.ndarray, masks: np.ndarray) -> bool:
    """Copy the clues to an empty grid with its masks; False if two clues conflict."""
    for cell in range(side * side):
        grid[cell] = clues[cell]
        if grid[cell] > 0:
            bit = 1 << (grid[cell] - 1)
            if not _free(masks, side, cell) & bit:
                return False
            _flip(masks, side, cell, bit)
    return True


def _count(
    clues: np.ndarray, side: int, most: int, stream: np.ndarray, solution: np.ndarray
) -> int:
    """Count completions of a grid up to `most`; 0 if clues conflict.

    Depth-first search, the digits of a cell in random order; `solution` gets the last completion.
    """
    size = side * side
    grid, masks = np.zeros(size, np.int64), np.zeros((3, side), np.int64)
    if not _fits(clues, side, grid, masks):
        return 0
    cells, choices = np.zeros(size + 1, np.int64), np.zeros(size + 1, np.int64)
    used = np.zeros(size + 1, np.int64)
    cells[0], choices[0] = _pick(grid, side, masks)
    depth, total = 0, 0
    while depth >= 0 and total < most:
        cell = cells[depth]
        if cell < 0:
            for cell_index in range(size):
                solution[cell_index] = grid[cell_index]
            total += 1
            depth -= 1
            continue
        if grid[cell] > 0:
            _flip(masks, side, cell, used[depth])
            grid[cell] = 0
        bits = choices[depth]
        if bits == 0:
            depth -= 1
            continue
        for _ in range(_draw_number(stream, _size(bits))):
            bits &= bits - 1
        bit = bits & -bits
        choices[depth] ^= bit
        used[depth] = bit
        grid[cell] = _size(bit - 1) + 1
        _flip(masks, side, cell, bit)
        depth += 1
        cells[depth], choices[depth] = _pick(grid, side, masks)
    return total


def _dig(grid: np.ndarray, side: int, blanks: int, stream: np.ndarray) -> int:
    """Empty random cells while the solution is unique; return the number of missing blanks."""
    size = side * side
    order = np.arange(size)
    solution = np.empty(size, np.uint8)
    for position in range(size):
        if blanks == 0:
            break
        other = position + _draw_number(stream, size - position)
        order[position], order[other] = order[other], order[position]
        cell = order[position]
        digit = grid[cell]
        grid[cell] = 0
        if _count(grid, side, 2, stream, solution) == 1:
            blanks -= 1
        else:
            grid[cell] = digit
    return blanks


INVALID, SOLVED = -0.1, 1.0  # parts of the shaped return
MOST_BLANKS = {4: 10, 9: 52}  # number of blanks by side that digging reaches with a few draws
DEFAULT_BLANKS = {4: 7, 9: 36}
_DIGITS = {4: "01234", 9: "0123456789"}

_ENTRY = re.compile(
    r"(?<![0-9,.])([0-9])\s*,\s*([0-9])\s*\)?\s*[=:,]\s*([0-9])(?![0-9]|\s*[,.]\s*[0-9])"
)


@cache
def _canonical(side: int) -> re.Pattern[str]:
    row = rf"\[[0-9](?:,[0-9]){{{side - 1}}}\]"
    item = rf"(?:\[[0-9],[0-9],[0-9]\]|{row}(?:,{row}){{{side - 1}}})"
    return re.compile(rf"\[(?:{item}(?:,{item})*)?\]")


def read_lines(text: str, side: int) -> list[list[int]] | None:
    """The last `side` lines with `side` digits and separators only, or None."""
    rows = []
    for line in reversed(text.splitlines()):
        digit_text = re.sub(r"[\s|,.\[\]]", "", line)
        if len(digit_text) == side and digit_text.isascii() and digit_text.isdigit():
            rows.append([int(digit) for digit in digit_text])
            if len(rows) == side:
                return rows[::-1]
        elif digit_text.strip("-+"):
            rows = []
    return None


def format_board(cells: str, side: int) -> str:
    """Format digits as a board, a row per line."""
    return "\n".join(" ".join(cells[r : r + side]) for r in range(0, side * side, side))


def entries_between(now: str, target: str, side: int) -> str:
    """Canonical entries that turn the digits `now` into `target`."""
    cells = [
        [cell // side, cell % side, int(digit)]
        for cell, digit in enumerate(target)
        if now[cell] != digit
    ]
    return written(cells)


@dataclass(frozen=True)
class SudokuTask(Game):
    """Sudoku puzzles with one solution."""

    name: ClassVar[str] = "sudoku"
    instruction: ClassVar[str] = (
        "Give your entries as a JSON list of [row, column, value], counted from 0, "
        "or the whole grid as a JSON list of rows."
    )

    drawn_by: ClassVar[tuple[str, ...]] = ("blanks",)

    side: Literal[4, 9] = 4
    """Number of rows and columns: 4 or 9."""
    blanks: int | None = None
    """Number of blank cells; default 7 of 16 or 36 of 81."""

    def __post_init__(self) -> None:
        if whole(self.side) not in MOST_BLANKS:
            raise UsageError(f"side: expected 4 or 9, got {self.side!r}.")
        super().__post_init__()
        if self.data is not None:
            return
        if self.blanks is None:
            object.__setattr__(self, "blanks", DEFAULT_BLANKS[self.side])
        check_whole("blanks", self.blanks, 1, MOST_BLANKS[self.side])

    def _draw_key(self, index: int) -> tuple[int | str, ...]:
        return self.side, self.blanks or 0

    def draw(self, rng: random.Random, split: str) -> GameInstance | None:
        """Draw a complete grid, which determines the split, and a puzzle from it."""
        side = self.side
        grid = complete_grid(side, rng.getrandbits(63))
        key = digits(grid)
        if split not in ("all", split_of(key)):
            return None
        puzzle = dig(grid, side, self.blanks or 0, rng.getrandbits(63))
        if puzzle is None:
            return None
        clues = digits(puzzle)
        return GameInstance(key, format_board(clues, side), entries_between(clues, key, side), {})

    @classmethod
    def instance(cls, rows: list[str], side: int) -> GameInstance:
        """A grid (0 or . for a blank; its rows may be on one line) with one solution."""
        clues = re.sub(r"[\s|]", "", "".join(rows)).replace(".", "0")
        check_square([clues[r : r + side] for r in range(0, len(clues), side)], side, _DIGITS[side])
        if "0" not in clues or count_solutions(clues, side) != 1:
            raise UsageError("expected a puzzle with a blank and exactly one solution")
        key = solution_of(clues, side)
        return GameInstance(key, format_board(clues, side), entries_between(clues, key, side), {})

    def state(self, problem: Problem, actions: str = START) -> str:
        return format_board(self._fill(problem, actions), self.side)

    def scene(self, problem: Problem, answer: str | None = None) -> Scene:
        side, box = self.side, 2 if self.side == 4 else 3
        puzzle = _digits_of(problem.meta["board"])
        grid, solution = self._fill(problem, answer or START), solution_of(puzzle, side)
        rows: list[list[tuple[str, str]]] = []
        for row in range(side):
            if row and row % box == 0:
                rows.append([("┼─".join(["──" * box] * (side // box)), "dim")])
            tiles: list[tuple[str, str]] = []
            for cell in range(row * side, (row + 1) * side):
                if cell % side and cell % side % box == 0:
                    tiles.append(("│ ", "dim"))
                style = "bold" if puzzle[cell] != "0" else "green"
                style = style if grid[cell] in (puzzle[cell], solution[cell]) else "red"
                tiles.append(("· ", "dim") if grid[cell] == "0" else (f"{grid[cell]} ", style))
            rows.append(tiles)
        return rows

    def describe(self, problem: Problem, board: str, actions: str) -> str:
        puzzle = problem.meta["board"]
        box = 2 if self.side == 4 else 3
        text = f"Sudoku {self.side}x{self.side}, boxes {box}x{box}, 0 is blank:\n{puzzle}"
        entries = entries_between(_digits_of(puzzle), _digits_of(board), self.side)
        return text if entries == START else f"{text}\nYour entries so far: {entries}"

    def board_in(self, problem: Problem, prompt: str) -> str:
        stands = re.search(r"(?m)^Your entries so far: (\[.*\])$", prompt.partition("\n\n")[0])
        return self.state(problem, stands[1] if stands else START)

    def solves(self, problem: Problem, board: str, actions: Sequence[str]) -> list[bool]:
        before = entries_between(_digits_of(problem.meta["board"]), _digits_of(board), self.side)
        lists = [self.join(before, new) for new in actions]
        return [self.play(problem, entries).solved for entries in lists]

    def play(self, problem: Problem, actions: str) -> GameResult:
        puzzle = _digits_of(problem.meta["board"])
        grid, rejected = fill(puzzle, self.side, actions)
        solution = solution_of(puzzle, self.side)
        cells = zip(puzzle, grid, solution, strict=True)
        blanks = [have == want for clue, have, want in cells if clue == "0"]
        solved = grid == solution
        gained = sum(blanks) / len(blanks) + INVALID * rejected + SOLVED * solved
        return GameResult(solved, gained, 1.0 + SOLVED, rejected)

    def _fill(self, problem: Problem, actions: str) -> str:
        return fill(_digits_of(problem.meta["board"]), self.side, actions)[0]

    def is_canonical(self, answer: str) -> bool:
        return _canonical(self.side).fullmatch(answer) is not None

    def answer(self, text: str) -> str | None:
        items = json_list(text)
        if items is None:
            return None
        lengths = {len(item) if isinstance(item, list) else -1 for item in items}
        if lengths - {3} and (lengths != {self.side} or len(items) != self.side):
            return None
        numbers = [number for item in items if isinstance(item, list) for number in item]
        fit = all(type(number) is int and 0 <= number <= 9 for number in numbers)
        return written(items) if fit else None

    def answer_lenient(self, text: str) -> str | None:
        """The strict reading, else a grid in lines of digits, else `(row, column) = value`."""
        strict = self.answer(text)
        if strict is not None:
            return strict
        reply = visible(text)[-LONGEST_LIST:]
        grid = read_lines(reply, self.side)
        if grid is not None:
            return written(grid)
        entries = [[int(number) for number in entry] for entry in _ENTRY.findall(reply)]
        return written(entries[-self.side * self.side :]) if entries else None

    def ended(self, problem: Problem, actions: str = START) -> str:
        """`solved` once the grid is complete and right."""
        return "solved" if self.play(problem, actions).solved else ""

    def plan(self, problem: Problem, board: str, rng: random.Random, right: bool) -> str:
        """The missing entries and corrections; wrong: one of them with another digit."""
        solution = solution_of(_digits_of(problem.meta["board"]), self.side)
        entries = entries_between(_digits_of(board), solution, self.side)
        if right or entries == START:
            return entries
        cells = json.loads(entries)
        cell = rng.choice(cells)
        cell[2] = rng.choice([digit for digit in range(1, self.side + 1) if digit != cell[2]])
        return written(cells)

    def samples(self) -> tuple[str, ...]:
        whole = range(self.side)
        grid = [[(row + column) % self.side + 1 for column in whole] for row in whole]
        return (
            "[[0,0,1]]",
            "So [[0,1,2],[1,0,3]]",
            written(grid),
            "(0,0)=1",
            "I am not sure.",
            "[",
        )


def _digits_of(board: str) -> str:
    return board.replace(" ", "").replace("\n", "")
