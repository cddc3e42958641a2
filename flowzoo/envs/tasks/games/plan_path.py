"""The task `plan_path`: moves through a grid with walls.

| | |
|---|---|
| Creation | `make_task("plan_path")`, `make_task("plan_path", side=4, density=0.2)` |
| Problems | the rows of a file (`data=`), or endless: start and goal uniform and not adjacent, then walls on exactly `density` of the cells, redrawn until a path exists |
| Prompt | the grid (`#` wall, `.` free, `P` you, `G` goal), both positions, the answer format |
| Answer | a JSON list of `"U"`, `"D"`, `"L"`, `"R"`, the last one of the reply; lenient: letters or words of either case, with or without quotes |
| Moves | a move into a wall or off the grid changes nothing; at most 2 · side² moves are made |
| Score | `sparse`: 1 if the moves *end* on the goal, else 0; `shaped`: see below |

With 10 × 10 cells and density 0.22 the mean shortest path is 7.84 ± 0.02 moves (published: about
7.9).

The shaped return is the gain of the potential −distance / (2 · side) from start to end
(undiscounted, so loops gain nothing), −0.01 per move, another −0.1 for a move that changes nothing,
+1 on the goal at the end, and another +0.5 if no plan is shorter. The score is this return divided
by that of a shortest plan, at least 0; only shortest plans score 1.

Version history: v0, first release.
"""  # noqa: E501 - rows of tables

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple

import numpy as np

from flowzoo.envs.settings import check_number, check_whole
from flowzoo.envs.tasks.games.game import (
    MOVES,
    START,
    GameInstance,
    GameResult,
    MoveGame,
    Tile,
    compile_in,
    moves_of,
    pack_lists,
    written,
)
from flowzoo.envs.tasks.task import Problem, Scene
from flowzoo.errors import UsageError

UNREACHED = -1
_WALL, _START, _GOAL, _BOTH = ord("#"), ord("P"), ord("G"), ord("+")


class PlanPathResult(NamedTuple):
    """Result of a plan."""

    end: int  # final cell, row * side + column
    moves: int  # moves made, those into a wall included; at most the cap
    invalid: int  # moves into a wall or off the grid, without effect
    start_distance: int  # moves from the start to the goal on a shortest path
    end_distance: int  # moves from the final cell to the goal on a shortest path


def cells(board: str) -> bytes:
    """The cells of a board (rows ended by newlines), row after row."""
    return board.replace("\n", "").encode("ascii")


def distances(board: str, side: int, source: int) -> np.ndarray:
    """Shortest path lengths from every cell to `source`, (side * side,) int16; -1 for none."""
    grid = np.frombuffer(cells(board), dtype=np.uint8)
    out = np.empty(side * side, dtype=np.int16)
    _compile()
    _spread(grid, side, source, out, np.empty(side * side, dtype=np.int16))
    return out


def walk_batch(
    boards: Sequence[str], side: int, plans: Sequence[str], cap: int
) -> list[PlanPathResult]:
    """Play `plans[i]` on `boards[i]`; at most `cap` moves of each are made."""
    if not plans:
        return []
    grids = np.frombuffer(b"".join(map(cells, boards)), dtype=np.uint8)
    buffer, ends = pack_lists(plans)
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


STEP, INVALID, GOAL, SHORTEST = -0.01, -0.1, 1.0, 0.5  # parts of the shaped return
TRAIL = ("• ", "yellow")  # symbol of a visited cell
_WALL_DRAWS = 50


def neighbor(cell: int, move: str, side: int) -> int | None:
    """The cell that `move` leads to on an empty grid, or None off it."""
    row = cell // side + {"U": -1, "D": 1}.get(move, 0)
    column = cell % side + {"L": -1, "R": 1}.get(move, 0)
    return row * side + column if 0 <= row < side and 0 <= column < side else None


def board_of(marks: Sequence[str], side: int) -> str:
    """A board from its cells: rows ended by newlines."""
    return "\n".join("".join(marks[row : row + side]) for row in range(0, side * side, side))


def shortest(board: str, side: int, start: int, goal: int, rng: random.Random) -> str | None:
    """A shortest plan from `start` to `goal`, a random one of them, or None."""
    distance = distances(board, side, goal)
    if distance[start] < 0:
        return None
    moves = ""
    while start != goal:
        nearer = [
            (move, there)
            for move in MOVES
            if (there := neighbor(start, move, side)) is not None
            and distance[there] == distance[start] - 1
        ]
        move, start = rng.choice(nearer)
        moves += move
    return moves


def shaped_return(walk: PlanPathResult, side: int) -> float:
    """The shaped return of a plan; see the module's page."""
    total = (walk.start_distance - walk.end_distance) / (2 * side)
    total += STEP * walk.moves + INVALID * walk.invalid
    if walk.end_distance == 0:
        total += GOAL + (SHORTEST if walk.moves == walk.start_distance else 0.0)
    return total


def best_return(distance: int, side: int) -> float:
    """The shaped return of a shortest plan of `distance` moves."""
    return distance / (2 * side) + STEP * distance + GOAL + SHORTEST


@dataclass(frozen=True)
class PlanPathTask(MoveGame):
    """Grids with a start, a goal and walls."""

    name: ClassVar[str] = "plan_path"
    instruction: ClassVar[str] = (
        'Give the moves from P to G as a JSON list of "U", "D", "L", "R" (up, down, left, right).'
    )

    drawn_by: ClassVar[tuple[str, ...]] = ("density",)
    tiles: ClassVar[Mapping[str, Tile]] = {
        "#": Tile("wall", "██", "grey37"),
        ".": Tile("free", "· ", "dim"),
        "P": Tile("you", "@ ", "bold cyan"),
        "G": Tile("goal", "G ", "bold green"),
        "+": Tile("", "@ ", "bold green"),
    }

    side: int = 10
    """Number of rows and columns."""
    density: float = 0.22
    """Share of the cells that are walls."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("side", self.side, 3, 30)
        check_number("density", self.density, 0.0, 0.5)

    def settings(self) -> tuple[int | str, ...]:
        return self.side, str(self.density)

    @classmethod
    def instance(cls, rows: list[str], side: int) -> GameInstance:
        """A grid with one P and one G, and a path between them."""
        cls.check_board(rows, side)
        board, marks = "\n".join(rows), "".join(rows)
        if marks.count("P") != 1 or marks.count("G") != 1:
            raise UsageError("expected exactly one P and one G on the board")
        start, goal = marks.index("P"), marks.index("G")
        moves = shortest(board, side, start, goal, random.Random(0))
        if moves is None:
            raise UsageError("no path leads from P to G")
        return GameInstance(board, board, written([*moves]), {"optimal": len(moves)})

    def draw(self, rng: random.Random, split: str) -> GameInstance | None:
        """Draw start and goal, then walls that keep a path, so walls do not favor close pairs."""
        side, size = self.side, self.side * self.side
        start, goal = rng.sample(range(size), 2)
        rows, columns = abs(start // side - goal // side), abs(start % side - goal % side)
        if rows + columns < 2:
            return None
        others = [cell for cell in range(size) if cell not in (start, goal)]
        for _ in range(_WALL_DRAWS):
            marks = ["."] * size
            marks[start], marks[goal] = "P", "G"
            for cell in rng.sample(others, min(round(self.density * size), size - 2)):
                marks[cell] = "#"
            board = board_of(marks, side)
            moves = shortest(board, side, start, goal, rng)
            if moves is not None:
                return GameInstance(board, board, written([*moves]), {"optimal": len(moves)})
        return None

    def state(self, problem: Problem, actions: str = START) -> str:
        board = problem.meta["board"]
        if actions == START:
            return board
        side = self.side
        marks = list(board.replace("\n", "").replace("P", "."))
        end = self._walk(problem, actions).end
        marks[end] = "+" if marks[end] == "G" else "P"
        return board_of(marks, side)

    def scene(self, problem: Problem, answer: str | None = None) -> Scene:
        side, cell = self.side, problem.meta["board"].replace("\n", "").index("P")
        moves, trail = moves_of(answer or START)[: self.cap], set()
        marks = self.state(problem, answer or START).replace("\n", "")
        for move in moves:
            trail.add(cell)
            there = neighbor(cell, move, side)
            cell = cell if there is None or marks[there] == "#" else there
        tiles = [
            TRAIL if mark == "." and cell in trail else self.tiles[mark][1:]
            for cell, mark in enumerate(marks)
        ]
        return [tiles[row : row + side] for row in range(0, side * side, side)]

    def describe(self, problem: Problem, board: str, actions: str) -> str:
        width = self.side + 1
        here, goal = board.index("+" if "+" in board else "P"), problem.meta["board"].index("G")
        return (
            f"Grid ({self.legend()}):\n{board}\n"
            f"You are at row {here // width}, column {here % width}; "
            f"the goal is at row {goal // width}, column {goal % width}."
        )

    def play_batch(self, problems: Sequence[Problem], actions: Sequence[str]) -> list[GameResult]:
        boards = [problem.meta["board"] for problem in problems]
        side = self.side
        return [
            GameResult(
                walk.end_distance == 0,
                shaped_return(walk, side),
                best_return(walk.start_distance, side),
                walk.invalid,
            )
            for walk in walk_batch(boards, side, actions, self.cap)
        ]

    def _walk(self, problem: Problem, actions: str) -> PlanPathResult:
        return walk_batch([problem.meta["board"]], self.side, [actions], self.cap)[0]

    def ended(self, problem: Problem, actions: str = START) -> str:
        """`solved` on the goal, `cap` if no move is left."""
        walk = self._walk(problem, actions)
        return "solved" if walk.end_distance == 0 else "cap" if walk.moves >= self.cap else ""

    def best_moves(self, board: str, rng: random.Random) -> str:
        marks = board.replace("\n", "")
        if "+" in marks:
            return ""
        return shortest(board, self.side, marks.index("P"), marks.index("G"), rng) or ""
