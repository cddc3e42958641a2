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

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar, NamedTuple

from flowzoo.envs.settings import check_number, check_whole
from flowzoo.envs.tasks.games.game import (
    MOVES,
    START,
    GameInstance,
    GameResult,
    MoveGame,
    Tile,
    moves_of,
    written,
)
from flowzoo.envs.tasks.task import Problem, Scene
from flowzoo.errors import UsageError

STEP, INVALID, GOAL, SHORTEST = -0.01, -0.1, 1.0, 0.5  # parts of the shaped return
TRAIL = ("• ", "yellow")  # symbol of a visited cell
_WALL_DRAWS = 50


class Walk(NamedTuple):
    """Result of a plan."""

    path: list[int]  # the cell (row * side + column) before every move made, then the last cell
    invalid: int  # moves into a wall or off the grid, without effect
    start_distance: int  # moves from the start to the goal on a shortest path
    end_distance: int  # moves from the last cell to the goal on a shortest path


@cache
def neighbors(side: int) -> list[dict[str, int]]:
    """The cells around every cell of an empty grid, by move."""
    steps = dict(zip(MOVES, ((-1, 0), (1, 0), (0, -1), (0, 1)), strict=True))
    return [
        {
            move: (row + down) * side + column + right
            for move, (down, right) in steps.items()
            if 0 <= row + down < side and 0 <= column + right < side
        }
        for row in range(side)
        for column in range(side)
    ]


@lru_cache(4096)
def distances(board: str, side: int, source: int) -> tuple[int, ...]:
    """Shortest path lengths from every cell to `source`; -1 for none."""
    marks, around = board.replace("\n", ""), neighbors(side)
    lengths = [-1] * len(marks)
    lengths[source] = 0
    queue = [source]
    for cell in queue:  # which grows in the loop
        for there in around[cell].values():
            if lengths[there] < 0 and marks[there] != "#":
                lengths[there] = lengths[cell] + 1
                queue.append(there)
    return tuple(lengths)


def walk(board: str, side: int, plan: str, cap: int) -> Walk:
    """Play `plan` on `board`; at most `cap` of its moves are made."""
    marks, around = board.replace("\n", ""), neighbors(side)
    start, goal = (
        marks.index("+" if "+" in marks else "P"),
        marks.index("+" if "+" in marks else "G"),
    )
    path, invalid = [start], 0
    for move in moves_of(plan)[:cap]:
        there = around[path[-1]].get(move)
        if there is None or marks[there] == "#":
            there, invalid = path[-1], invalid + 1
        path.append(there)
    lengths = distances(board, side, goal)
    return Walk(path, invalid, lengths[start], lengths[path[-1]])


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
        around = neighbors(side)[start].items()
        nearer = [step for step in around if distance[step[1]] == distance[start] - 1]
        move, start = rng.choice(nearer)
        moves += move
    return moves


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

    def _draw_key(self, index: int) -> tuple[int | str, ...]:
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
        marks = list(problem.meta["board"].replace("\n", "").replace("P", "."))
        end = self._walk(problem, actions).path[-1]
        marks[end] = "+" if marks[end] in "G+" else "P"
        return board_of(marks, self.side)

    def scene(self, problem: Problem, answer: str | None = None) -> Scene:
        marks = self.state(problem, answer or START).replace("\n", "")
        trail = set(self._walk(problem, answer or START).path[:-1])
        tiles = [
            TRAIL if mark == "." and cell in trail else self.tiles[mark][1:]
            for cell, mark in enumerate(marks)
        ]
        return [tiles[row : row + self.side] for row in range(0, len(tiles), self.side)]

    def describe(self, problem: Problem, board: str, actions: str) -> str:
        width = self.side + 1
        here, goal = board.index("+" if "+" in board else "P"), problem.meta["board"].index("G")
        return (
            f"Grid ({self.legend()}):\n{board}\n"
            f"You are at row {here // width}, column {here % width}; "
            f"the goal is at row {goal // width}, column {goal % width}."
        )

    def play(self, problem: Problem, actions: str) -> GameResult:
        """The moves as far as they are made, with the shaped return of the module's page."""
        walked, side = self._walk(problem, actions), self.side
        moves, least = len(walked.path) - 1, walked.start_distance
        gained = (least - walked.end_distance) / (2 * side)
        gained += STEP * moves + INVALID * walked.invalid
        solved = walked.end_distance == 0
        if solved:
            gained += GOAL + (SHORTEST if moves == least else 0.0)
        best = least / (2 * side) + STEP * least + GOAL + SHORTEST
        return GameResult(solved, gained, best, walked.invalid)

    def _walk(self, problem: Problem, actions: str) -> Walk:
        return walk(problem.meta["board"], self.side, actions, self.cap)

    def ended(self, problem: Problem, actions: str = START) -> str:
        """`solved` on the goal, `cap` if no move is left."""
        walked = self._walk(problem, actions)
        return (
            "solved" if walked.end_distance == 0 else "cap" if len(walked.path) > self.cap else ""
        )

    def best_moves(self, board: str, rng: random.Random) -> str:
        marks = board.replace("\n", "")
        if "+" in marks:
            return ""
        return shortest(board, self.side, marks.index("P"), marks.index("G"), rng) or ""
