"""The task `sudoku`: fill the blanks so that every row, column and box has every digit once.

| | |
|---|---|
| Creation | `make_task("sudoku")`, `make_task("sudoku", side=9, blanks=40)`, `make_task("sudoku", blanks=3)` |
| Problems | the rows of a file (`data=`, see `game_files`), or endless: a random complete grid, then cells emptied in random order as long as one solution is left |
| Prompt | the puzzle, 0 for a blank; own entries so far are listed apart from it; how to answer |
| Answer | the last JSON list of the reply: entries `[row, column, value]` counted from 0, or a whole grid, a list of rows; lenient: also a grid in lines of digits, or entries as `(row, column) = value` |
| Entries | a later entry replaces an earlier one, value 0 takes it back; an entry that edits a clue or lies outside is rejected, and so is every whole grid with such a cell; numbers have one digit |
| Score | `sparse`: 1 if the grid is complete and right at the end, else 0; `shaped`: see below |

Every puzzle has exactly one solution. The split is that of the *complete* grid: there are only 288 for
4 × 4, and no grid of one split is the solution of a puzzle of another.

The shaped return is the share of the blanks that are right at the end, −0.1 for every rejected entry
or grid, +1 if the puzzle is solved. The score is half of it, but not below 0.

Version history: v0, first release.
"""  # noqa: E501 - rows of tables

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar, Literal

from flowzoo.envs.settings import check_whole
from flowzoo.envs.tasks.games.actions import LONGEST_LIST, json_list, written
from flowzoo.envs.tasks.games.files import check_square
from flowzoo.envs.tasks.games.game import START, Game, GameInstance, GameResult
from flowzoo.envs.tasks.games.sudoku_kernel import (
    SudokuResult,
    complete_grid,
    count_solutions,
    dig,
    digits,
    fill_batch,
    solution_of,
)
from flowzoo.envs.tasks.task import Problem, Scene, split_of
from flowzoo.envs.text import visible
from flowzoo.errors import UsageError

INVALID, SOLVED = -0.1, 1.0
"""Parts of the shaped return."""
MOST_BLANKS = {4: 10, 9: 52}
"""By side: blanks that digging reaches with a few draws."""
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


def read_entries(value: object, side: int) -> str | None:
    """Canonical text of a list of entries or of a whole grid; None for anything else."""
    if not isinstance(value, list):
        return None
    lengths = {len(item) if isinstance(item, list) else -1 for item in value}
    is_grid = lengths == {side} and len(value) == side
    if not (is_grid or lengths <= {3}):
        return None
    numbers = [number for item in value for number in item]
    if not all(type(number) is int and 0 <= number <= 9 for number in numbers):
        return None
    return written(value)


def read_lines(text: str, side: int) -> list[list[int]] | None:
    """The last `side` lines with `side` digits each and nothing but separators, or None."""
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


def spaced(cells: str, side: int) -> str:
    """A board from its digits: rows on lines, digits apart."""
    return "\n".join(" ".join(cells[r : r + side]) for r in range(0, side * side, side))


def entries_between(now: str, wanted: str, side: int) -> str:
    """Canonical entries that turn the digits `now` into `wanted`."""
    cells = [
        [cell // side, cell % side, int(digit)]
        for cell, digit in enumerate(wanted)
        if now[cell] != digit
    ]
    return written(cells)


@lru_cache(maxsize=4096)
def _solution(puzzle: str, side: int) -> str:
    return solution_of(puzzle, side)


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
    """Cells in a row: 4 or 9."""
    blanks: int | None = None
    """Cells to fill; default 7 of 16 or 36 of 81."""

    def __post_init__(self) -> None:
        """Check the options."""
        if isinstance(self.side, bool) or self.side not in MOST_BLANKS:
            raise UsageError(f"side: expected 4 or 9, got {self.side!r}.")
        super().__post_init__()
        if self.data is not None:
            return
        if self.blanks is None:
            object.__setattr__(self, "blanks", DEFAULT_BLANKS[self.side])
        check_whole("blanks", self.blanks, 1, MOST_BLANKS[self.side])

    def settings(self) -> tuple[int | str, ...]:
        """Side and blanks."""
        return self.side, self.blanks or 0

    def draw(self, rng: random.Random, split: str) -> GameInstance | None:
        """A complete grid, which decides the split, and a puzzle dug out of it."""
        side = self.side
        grid = complete_grid(side, rng.getrandbits(63))
        key = digits(grid)
        if split not in ("all", split_of(key)):
            return None
        puzzle = dig(grid, side, self.blanks or 0, rng.getrandbits(63))
        if puzzle is None:
            return None
        clues = digits(puzzle)
        return GameInstance(key, spaced(clues, side), entries_between(clues, key, side), {})

    @classmethod
    def instance(cls, rows: list[str], side: int) -> GameInstance:
        """A grid (0 or . for a blank; its rows may stand on one line) with one solution."""
        clues = re.sub(r"[\s|]", "", "".join(rows)).replace(".", "0")
        check_square([clues[r : r + side] for r in range(0, len(clues), side)], side, _DIGITS[side])
        if "0" not in clues or count_solutions(clues, side) != 1:
            raise UsageError("expected a puzzle with a blank and exactly one solution")
        key = solution_of(clues, side)
        return GameInstance(key, spaced(clues, side), entries_between(clues, key, side), {})

    def state(self, problem: Problem, actions: str = START) -> str:
        """The puzzle with the entries in it."""
        return spaced(self._fill(problem, actions).grid, self.side)

    def scene(self, problem: Problem, answer: str | None = None) -> Scene:
        """The grid with its boxes; entries stand out, green where they are right, else red."""
        side, box = self.side, 2 if self.side == 4 else 3
        puzzle = _digits_of(problem.meta["board"])
        grid, wanted = self._fill(problem, answer or START).grid, _solution(puzzle, side)
        rows: list[list[tuple[str, str]]] = []
        for row in range(side):
            if row and row % box == 0:
                rows.append([("┼─".join(["──" * box] * (side // box)), "dim")])
            tiles: list[tuple[str, str]] = []
            for cell in range(row * side, (row + 1) * side):
                if cell % side and cell % side % box == 0:
                    tiles.append(("│ ", "dim"))
                style = "bold" if puzzle[cell] != "0" else "green"
                style = style if grid[cell] in (puzzle[cell], wanted[cell]) else "red"
                tiles.append(("· ", "dim") if grid[cell] == "0" else (f"{grid[cell]} ", style))
            rows.append(tiles)
        return rows

    def describe(self, problem: Problem, board: str, actions: str) -> str:
        """The puzzle, and the entries that stand."""
        puzzle = problem.meta["board"]
        box = 2 if self.side == 4 else 3
        text = f"Sudoku {self.side}x{self.side}, boxes {box}x{box}, 0 is blank:\n{puzzle}"
        entries = entries_between(_digits_of(puzzle), _digits_of(board), self.side)
        return text if entries == START else f"{text}\nYour entries so far: {entries}"

    def board_in(self, problem: Problem, prompt: str) -> str:
        """The puzzle with the entries that stand."""
        stands = re.search(r"(?m)^Your entries so far: (\[.*\])$", prompt.partition("\n\n")[0])
        return self.state(problem, stands[1] if stands else START)

    def solves(self, problem: Problem, board: str, actions: Sequence[str]) -> list[bool]:
        """Whether each list completes `board` rightly; its entries stay entries."""
        before = entries_between(_digits_of(problem.meta["board"]), _digits_of(board), self.side)
        lists = [self.join(before, new) for new in actions]
        return [end.solved for end in self.play_batch([problem] * len(lists), lists)]

    def play_batch(self, problems: Sequence[Problem], actions: Sequence[str]) -> list[GameResult]:
        """Write all entries in one compiled pass; the solution is found from the clues alone."""
        side, puzzles = self.side, [_digits_of(p.meta["board"]) for p in problems]
        rows = []
        for puzzle, end in zip(puzzles, fill_batch(puzzles, side, actions), strict=True):
            share = 1.0
            if not end.solved:
                cells = zip(puzzle, end.grid, _solution(puzzle, side), strict=True)
                blanks = [have == want for clue, have, want in cells if clue == "0"]
                share = sum(blanks) / max(1, len(blanks))
            gained = share + INVALID * end.invalid + (SOLVED if end.solved else 0.0)
            rows.append(GameResult(end.solved, gained, 1.0 + SOLVED, end.invalid))
        return rows

    def _fill(self, problem: Problem, actions: str) -> SudokuResult:
        return fill_batch([_digits_of(problem.meta["board"])], self.side, [actions])[0]

    def is_canonical(self, answer: str) -> bool:
        """Whether `answer` is a canonical list of entries and whole grids."""
        return _canonical(self.side).fullmatch(answer) is not None

    def answer(self, text: str) -> str | None:
        """The JSON list of entries or rows that the reply ends on, canonical, or None."""
        return read_entries(json_list(text), self.side)

    def answer_lenient(self, text: str) -> str | None:
        """The strict reading, else a grid in lines of digits, else `(row, column) = value`."""
        strict = self.answer(text)
        if strict is not None:
            return strict
        shown = visible(text)[-LONGEST_LIST:]
        grid = read_lines(shown, self.side)
        if grid is not None:
            return written(grid)
        entries = [[int(number) for number in found] for found in _ENTRY.findall(shown)]
        return written(entries[-self.side * self.side :]) if entries else None

    def ended(self, problem: Problem, actions: str = START) -> str:
        """`solved` once the grid is complete and right."""
        return "solved" if self._fill(problem, actions).solved else ""

    def plan(self, problem: Problem, board: str, rng: random.Random, right: bool) -> str:
        """The entries that are missing or wrong; wrong: one of them with another digit."""
        wanted = _solution(_digits_of(problem.meta["board"]), self.side)
        entries = entries_between(_digits_of(board), wanted, self.side)
        if right or entries == START:
            return entries
        cells = json.loads(entries)
        cell = rng.choice(cells)
        cell[2] = rng.choice([digit for digit in range(1, self.side + 1) if digit != cell[2]])
        return written(cells)

    def samples(self) -> tuple[str, ...]:
        """Short replies: entries, a grid, unreadable ones, one for the lenient reader alone."""
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
