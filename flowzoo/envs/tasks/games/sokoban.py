"""The task `sokoban`: moves that push every box onto a goal.

| | |
|---|---|
| Creation | `make_task("sokoban")`, `make_task("sokoban", side=5, boxes=1, longest=8)` |
| Problems | the rows of a file (`data=`), or endless: random inner walls and goals, then a start drawn from all states that reverse play reaches from the solution, without a box on a goal |
| Prompt | the board in the usual symbols (`-` for floor), the answer format |
| Answer | a JSON list of `"U"`, `"D"`, `"L"`, `"R"`, the last one of the reply; lenient: letters or words of either case, with or without quotes |
| Moves | a move against a wall, or a box that cannot be pushed, changes nothing; at most 2 · side² moves are made |
| Score | `sparse`: 1 if all boxes are on goals *at the end*, else 0; `shaped`: see below |

Walls and goals determine the split: splits share no level, for any start. Reverse play is
exhaustive (`SokobanLevel`): every instance has a solution, the length of the shortest one is stored
(`meta["optimal"]`), and deadlocks are detected exactly. A deadlock ends an episode of several turns
and is reported as a fact, without a reward or penalty.

The shaped return is the number of boxes on goals at the end minus that at the start, −0.01 per
move, another −0.05 for a move that changes nothing, and +10 if all boxes are on goals at the end.
(A box that leaves a goal loses its full reward, so pushing it off and on again gains nothing.) The
score is this return divided by that of a shortest solution, at least 0.

Version history: v0, first release.
"""  # noqa: E501 - rows of tables

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
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
    most_moves,
    moves_of,
    written,
)
from flowzoo.envs.tasks.task import Problem, Scene, is_in
from flowzoo.errors import UsageError

UNSOLVABLE = -1
_OPPOSITE = (1, 0, 3, 2)


class SokobanResult(NamedTuple):
    """Result of a list of moves."""

    board: str  # the board after it
    moves: int  # number of moves, ineffective ones included; at most the cap
    invalid: int  # moves against a wall or a box that cannot be pushed, without effect


class SokobanState(NamedTuple):
    """Positions of the player and the boxes: numbers of floor cells."""

    player: int
    boxes: tuple[int, ...]


class SokobanLevel:
    """Walls and goals, with the fewest moves to the solution for every state."""

    def __init__(self, board: str) -> None:
        rows = board.split("\n")
        floor = [
            (r, c) for r, row in enumerate(rows) for c, symbol in enumerate(row) if symbol != "#"
        ]
        self.cells = floor
        self.number = {cell: n for n, cell in enumerate(floor)}
        around = [((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)) for r, c in floor]
        beside = [[self.number.get(cell, -1) for cell in cells] for cells in around]
        # Floor cell above, below, left and right of every floor cell, -1 for a wall.
        self.next = np.array(beside, dtype=np.int64).reshape(len(floor), 4)
        self.goals = tuple(n for n, (r, c) in enumerate(floor) if rows[r][c] in ".*+")
        self.combos = _combos(len(floor), len(self.goals))
        # Least moves to the solution by state number, -1 without a solution.
        self.left = np.full(len(self.combos) * len(floor), UNSOLVABLE, dtype=np.int16)
        _compile()
        _backwards(self.next, self.combos, _rank(self.goals), self.left)

    def state(self, board: str) -> SokobanState:
        rows = board.split("\n")
        symbols = [rows[r][c] for r, c in self.cells]
        player = next(n for n, symbol in enumerate(symbols) if symbol in "@+")
        return SokobanState(player, tuple(n for n, symbol in enumerate(symbols) if symbol in "$*"))

    def moves_left(self, state: SokobanState) -> int:
        """Least number of moves to the solution; -1 if there is none (a deadlock)."""
        return int(self.left[_rank(state.boxes) * len(self.cells) + state.player])

    def states(self, least: int, most: int) -> np.ndarray:
        """Numbers of the states `least` to `most` moves from the solution, no box on a goal."""
        near = np.flatnonzero((self.left >= least) & (self.left <= most))
        off = np.logical_not(np.isin(self.combos, self.goals).any(axis=1))
        return near[off[near // len(self.cells)]]

    def numbered(self, number: int) -> SokobanState:
        """The state with that number."""
        rank, player = divmod(number, len(self.cells))
        return SokobanState(player, tuple(int(box) for box in self.combos[rank]))

    def draw(self, state: SokobanState, side: int) -> str:
        """The board of a state, `side` cells wide and high."""
        rows = [["#"] * side for _ in range(side)]
        for n, (r, c) in enumerate(self.cells):
            on = n in self.goals
            symbol = "." if on else "-"
            if n in state.boxes:
                symbol = "*" if on else "$"
            elif n == state.player:
                symbol = "+" if on else "@"
            rows[r][c] = symbol
        return "\n".join("".join(row) for row in rows)


def bare(board: str) -> str:
    """A board without player and boxes: walls, floor and goals."""
    return board.translate(str.maketrans("$@*+", "--.."))


@lru_cache(maxsize=32)  # 5 MB each at most: 10 x 10 with 3 boxes
def level_of(walls_and_goals: str) -> SokobanLevel:
    """The searched level of a bare board; recent ones are cached."""
    return SokobanLevel(walls_and_goals)


# What a cell becomes when the player comes, a box comes, or the player goes.
_ENTERED = {"-": "@", ".": "+", "$": "@", "*": "+"}
_PUSHED = {"-": "$", ".": "*"}
_LEFT = {"@": "-", "+": "."}


def run(board: str, plan: str, cap: int) -> SokobanResult:
    """Play `plan` on `board`; at most `cap` of its moves are made."""
    grid, width, moves, invalid = list(board), board.index("\n") + 1, moves_of(plan)[:cap], 0
    steps = {"U": -width, "D": width, "L": -1, "R": 1}
    player = next(cell for cell, symbol in enumerate(grid) if symbol in _LEFT)
    for move in moves:
        there, beyond = player + steps[move], player + 2 * steps[move]
        is_box = grid[there] in "$*"
        if grid[there] not in _ENTERED or (is_box and grid[beyond] not in _PUSHED):
            invalid += 1
            continue
        if is_box:
            grid[beyond] = _PUSHED[grid[beyond]]
        grid[there], grid[player] = _ENTERED[grid[there]], _LEFT[grid[player]]
        player = there
    return SokobanResult("".join(grid), len(moves), invalid)


def _rank(boxes: Sequence[int]) -> int:
    """Number of an ascending combination of one to three cells, in colexicographic order."""
    rank = boxes[0]
    if len(boxes) > 1:
        rank += boxes[1] * (boxes[1] - 1) // 2
    if len(boxes) > 2:
        rank += boxes[2] * (boxes[2] - 1) * (boxes[2] - 2) // 6
    return rank


@lru_cache(maxsize=16)
def _combos(cells: int, boxes: int) -> np.ndarray:
    """All ascending combinations by `_rank`, (count, boxes) int64."""
    grids = np.meshgrid(*[np.arange(cells)] * boxes, indexing="ij")
    every = np.stack([grid.ravel() for grid in grids], axis=1)
    # The last cell varies slowest in colexicographic order.
    every = every[np.lexsort(every.T)]
    return np.ascontiguousarray(every[(np.diff(every, axis=1) > 0).all(axis=1)])


@cache
def _compile() -> None:
    compile_in(globals(), ("_replaced_rank", "_backwards"))


def _replaced_rank(boxes: np.ndarray, old: int, new: int) -> int:
    """`_rank` of `boxes` with cell `old` replaced by `new`."""
    a, b, c = -1, -1, -1  # ascending, c the greatest
    for box in boxes:
        cell = new if box == old else box
        if cell > c:
            a, b, c = b, c, cell
        elif cell > b:
            a, b = b, cell
        else:
            a = cell
    if len(boxes) == 1:
        return c
    if len(boxes) == 2:
        return b + c * (c - 1) // 2
    return a + b * (b - 1) // 2 + c * (c - 1) * (c - 2) // 6


def _backwards(next_cell: np.ndarray, combos: np.ndarray, solved: int, left: np.ndarray) -> None:
    """Fill `left` by breadth-first search from the solved states, by steps and pulls."""
    count = len(next_cell)
    queue = np.empty(len(left), dtype=np.int32)
    head, tail = 0, 0
    for player in range(count):
        if not (combos[solved] == player).any():
            left[solved * count + player] = 0
            queue[tail] = solved * count + player
            tail += 1
    while head < tail:
        state = queue[head]
        head += 1
        rank, player = state // count, state % count
        boxes = combos[rank]
        for move in range(4):
            before = next_cell[player, _OPPOSITE[move]]
            if before < 0 or (boxes == before).any():
                continue
            for pulled in range(2):
                earlier = rank
                if pulled == 1:
                    box = next_cell[player, move]
                    if box < 0 or not (boxes == box).any():
                        continue
                    earlier = _replaced_rank(boxes, box, player)
                there = earlier * count + before
                if left[there] < 0:
                    left[there] = left[state] + 1
                    queue[tail] = there
                    tail += 1


STEP, INVALID, ON_GOAL, WIN = -0.01, -0.05, 1.0, 10.0  # parts of the shaped return


def solution(level: SokobanLevel, board: str, rng: random.Random) -> str | None:
    """A shortest solution of `board`, a random one of them, or None."""
    left = level.moves_left(level.state(board))
    if left < 0:
        return None
    moves = ""
    while left > 0:
        steps = [(move, run(board, written([move]), 1).board) for move in MOVES]
        nearer = [step for step in steps if level.moves_left(level.state(step[1])) == left - 1]
        move, board = rng.choice(nearer)
        moves, left = moves + move, left - 1
    return moves


@dataclass(frozen=True)
class SokobanTask(MoveGame):
    """Boxes to be pushed onto goals."""

    name: ClassVar[str] = "sokoban"
    instruction: ClassVar[str] = (
        'Push every box onto a goal. Give the moves as a JSON list of "U", "D", "L", "R" '
        "(up, down, left, right)."
    )

    drawn_by: ClassVar[tuple[str, ...]] = ("boxes", "density", "longest")
    tiles: ClassVar[Mapping[str, Tile]] = {
        "#": Tile("wall", "██", "grey37"),
        "-": Tile("floor", "· ", "dim"),
        ".": Tile("goal", "○ ", "bold green"),
        "$": Tile("box", "■ ", "yellow"),
        "*": Tile("box on goal", "■ ", "bold green"),
        "@": Tile("you", "@ ", "bold cyan"),
        "+": Tile("you on goal", "@ ", "bold cyan"),
    }

    side: int = 6
    """Number of rows and columns, with the surrounding wall."""
    boxes: int = 1
    """Number of boxes and of goals."""
    density: float = 0.12
    """Share of the inner cells that are walls."""
    longest: int | None = None
    """Most moves of the shortest solution; default: no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("side", self.side, 5, 10)
        check_whole("boxes", self.boxes, 1, 3)
        check_number("density", self.density, 0.0, 0.5)
        if self.longest is not None:
            check_whole("longest", self.longest, 1, self.cap)
        if (self.side - 2) ** 2 - self.walls < 2 * self.boxes + 1:
            raise UsageError(
                f"{self.boxes} boxes do not fit: {self.side} x {self.side} cells with density "
                f"{self.density} have {(self.side - 2) ** 2 - self.walls} floor cells."
            )

    @property
    def walls(self) -> int:
        """Inner walls."""
        return round(self.density * (self.side - 2) ** 2)

    def _draw_key(self, index: int) -> tuple[int | str, ...]:
        longest = "any" if self.longest is None else self.longest
        return self.side, self.boxes, str(self.density), longest

    @classmethod
    def instance(cls, rows: list[str], side: int) -> GameInstance:
        """A walled board with one player, as many goals as boxes, and a solution in time."""
        rows = [row.replace(" ", "-") for row in rows]
        cls.check_board(rows, side)
        board = "\n".join(rows)
        edge = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
        boxes, goals = (sum(map(board.count, symbols)) for symbols in ("$*", ".*+"))
        if edge.strip("#") or board.count("@") + board.count("+") != 1:
            raise UsageError("expected a wall around the board and one player")
        if boxes != goals or not 1 <= boxes <= 3 or "$" not in board:
            raise UsageError(
                f"expected 1 to 3 boxes, as many goals, and a box off them; got {boxes} and {goals}"
            )
        level = level_of(bare(board))
        moves = solution(level, board, random.Random(0))
        if moves is None:
            raise UsageError("the board has no solution")
        if len(moves) > most_moves(side):
            raise UsageError(
                f"the shortest solution has {len(moves)} moves, but at most {most_moves(side)} are "
                "made"
            )
        return GameInstance(bare(board), board, written([*moves]), {"optimal": len(moves)})

    def draw(self, rng: random.Random, split: str) -> GameInstance | None:
        """Draw walls and goals, then a state from which the goals can be reached."""
        side, inner = self.side, range(1, self.side - 1)
        cells = rng.sample([(r, c) for r in inner for c in inner], self.walls + self.boxes)
        rows = [
            ["-" if r in inner and c in inner else "#" for c in range(side)] for r in range(side)
        ]
        for number, (r, c) in enumerate(cells):
            rows[r][c] = "#" if number < self.walls else "."
        walls_and_goals = "\n".join("".join(row) for row in rows)
        if not is_in(split, walls_and_goals):
            return None
        level = SokobanLevel(walls_and_goals)
        states = level.states(1, min(self.longest or self.cap, self.cap))
        if not len(states):
            return None
        state = level.numbered(int(states[rng.randrange(len(states))]))
        board = level.draw(state, side)
        moves = solution(level, board, rng) or ""
        return GameInstance(walls_and_goals, board, written([*moves]), {"optimal": len(moves)})

    def state(self, problem: Problem, actions: str = START) -> str:
        return self._run(problem, actions).board

    def scene(self, problem: Problem, answer: str | None = None) -> Scene:
        rows = self.state(problem, answer or START).split("\n")
        return [[self.tiles[symbol][1:] for symbol in row] for row in rows]

    def describe(self, problem: Problem, board: str, actions: str) -> str:
        return f"Sokoban ({self.legend()}):\n{board}"

    def play(self, problem: Problem, actions: str) -> GameResult:
        """The moves as far as they are made, with the shaped return of the module's page."""
        board, moves, invalid = self._run(problem, actions)
        start = problem.meta["board"]
        solved = "$" not in board
        gained = ON_GOAL * (board.count("*") - start.count("*"))
        gained += STEP * moves + INVALID * invalid
        gained += WIN if solved else 0.0
        best = ON_GOAL * start.count("$") + STEP * problem.meta["optimal"] + WIN
        return GameResult(solved, gained, best, invalid)

    def _run(self, problem: Problem, actions: str) -> SokobanResult:
        return run(problem.meta["board"], actions, self.cap)

    def ended(self, problem: Problem, actions: str = START) -> str:
        """`solved`, `deadlock` if the solution is out of reach, `cap` if no move is left."""
        result = self._run(problem, actions)
        if "$" not in result.board:
            return "solved"
        level = level_of(bare(result.board))
        if level.moves_left(level.state(result.board)) < 0:
            return "deadlock"
        return "cap" if result.moves >= self.cap else ""

    def best_moves(self, board: str, rng: random.Random) -> str:
        return solution(level_of(bare(board)), board, rng) or ""
