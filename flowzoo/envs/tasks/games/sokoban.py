"""The task `sokoban`: moves that push every box onto a goal.

| | |
|---|---|
| Creation | `make_task("sokoban")`, `make_task("sokoban", side=5, boxes=1, longest=8)` |
| Problems | the rows of a file (`data=`, see `game_files`), or endless: inner walls and goals at random, then a start drawn from all states that reverse play reaches from the solution, with no box on a goal |
| Prompt | the board in the usual symbols (`-` for floor), how to answer |
| Answer | a JSON list of `"U"`, `"D"`, `"L"`, `"R"`, the last one of the reply; lenient: letters or words of either case, with or without quotes |
| Moves | a move against a wall, or a box that cannot be pushed, changes nothing; at most 2 · side² moves are made |
| Score | `sparse`: 1 if all boxes stand on goals *at the end*, else 0; `shaped`: see below |

The split is that of walls and goals: no level of one split is met in another, whatever the start.
Reverse play is exhaustive (`sokoban_kernel.Level`): every instance has a solution, the length of the
shortest one is stored (`meta["optimal"]`), and deadlocks are recognised exactly. A deadlock ends an
episode of several turns and is reported as a fact; it earns and costs nothing.

The shaped return is +1 for every box on a goal at the end less those at the start, −0.01 a move,
−0.05 more for a move that changes nothing, +10 if all stand on goals at the end. (A box that leaves a
goal costs what it had earned: were it cheaper, pushing it off and on again would pay.) The score is
this return divided by that of a shortest solution, but not below 0.

Version history: v0, first release.
"""  # noqa: E501 - rows of tables

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flowzoo.envs.settings import check_number, check_whole
from flowzoo.envs.tasks.games.actions import (
    MOVES,
    written,
)
from flowzoo.envs.tasks.games.game import START, GameInstance, GameResult
from flowzoo.envs.tasks.games.moves import MoveGame, Tile
from flowzoo.envs.tasks.games.sokoban_kernel import (
    SokobanLevel,
    SokobanResult,
    SokobanState,
    bare,
    level_of,
    run_batch,
)
from flowzoo.envs.tasks.task import Problem, Scene, is_in
from flowzoo.errors import UsageError

STEP, INVALID, ON_GOAL, WIN = -0.01, -0.05, 1.0, 10.0
"""Parts of the shaped return."""


def solution(level: SokobanLevel, state: SokobanState, rng: random.Random) -> str | None:
    """A shortest solution from `state`, drawn among the moves that come nearer, or None."""
    left = level.moves_left(state)
    if left < 0:
        return None
    moves = ""
    while left > 0:
        nearer = [
            (move, after)
            for number, move in enumerate(MOVES)
            if (after := level.after(state, number)) is not None
            and level.moves_left(after) == left - 1
        ]
        move, state = rng.choice(nearer)
        moves, left = moves + move, left - 1
    return moves


def shaped_return(run: SokobanResult) -> float:
    """The shaped return of a list of moves; see the module's page."""
    total = ON_GOAL * (run.on_at_end - run.on_at_start)
    total += STEP * run.moves + INVALID * run.invalid
    return total + (0.0 if "$" in run.board else WIN)


def best_return(optimal: int, boxes: int) -> float:
    """The shaped return of a shortest solution of `optimal` moves, `boxes` being off goals."""
    return ON_GOAL * boxes + STEP * optimal + WIN


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
    """Cells in a row, and rows, the surrounding wall included."""
    boxes: int = 1
    """Boxes, and goals."""
    density: float = 0.12
    """Share of the inner cells that are walls."""
    longest: int | None = None
    """Most moves of the shortest solution; default: any number."""

    def __post_init__(self) -> None:
        """Check the options."""
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

    def settings(self) -> tuple[int | str, ...]:
        """Side, boxes, density and longest."""
        longest = "any" if self.longest is None else self.longest
        return self.side, self.boxes, str(self.density), longest

    @classmethod
    def instance(cls, rows: list[str], side: int) -> GameInstance:
        """A walled board with one player, as many goals as boxes, and a solution."""
        rows = [row.replace(" ", "-") for row in rows]
        cls.check_board(rows, side)
        board = "\n".join(rows)
        edge = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
        boxes, goals = (sum(map(board.count, symbols)) for symbols in ("$*", ".*+"))
        if edge.strip("#") or board.count("@") + board.count("+") != 1:
            raise UsageError("expected walls all round the board and one player")
        if boxes != goals or not 1 <= boxes <= 3 or "$" not in board:
            raise UsageError(
                f"expected 1 to 3 boxes, as many goals, and a box off them; got {boxes} and {goals}"
            )
        level = level_of(bare(board))
        moves = solution(level, level.state(board), random.Random(0))
        if moves is None:
            raise UsageError("the board has no solution")
        return GameInstance(bare(board), board, written([*moves]), {"optimal": len(moves)})

    def draw(self, rng: random.Random, split: str) -> GameInstance | None:
        """Walls and goals, then one of the states from which they can be reached."""
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
        moves = solution(level, state, rng) or ""
        return GameInstance(walls_and_goals, board, written([*moves]), {"optimal": len(moves)})

    def state(self, problem: Problem, actions: str = START) -> str:
        """The board after `actions`."""
        return problem.meta["board"] if actions == START else self._run(problem, actions).board

    def scene(self, problem: Problem, answer: str | None = None) -> Scene:
        """The board."""
        rows = self.state(problem, answer or START).split("\n")
        return [[self.tiles[symbol][1:] for symbol in row] for row in rows]

    def describe(self, problem: Problem, board: str, actions: str) -> str:
        """The board with its legend."""
        return f"Sokoban ({self.legend()}):\n{board}"

    def play_batch(self, problems: Sequence[Problem], actions: Sequence[str]) -> list[GameResult]:
        """Make all moves in one compiled pass."""
        runs = run_batch([p.meta["board"] for p in problems], self.side, actions, self.cap)
        return [
            GameResult(
                "$" not in run.board,
                shaped_return(run),
                best_return(problem.meta["optimal"], problem.meta["board"].count("$")),
                run.invalid,
            )
            for problem, run in zip(problems, runs, strict=True)
        ]

    def _run(self, problem: Problem, actions: str) -> SokobanResult:
        return run_batch([problem.meta["board"]], self.side, [actions], self.cap)[0]

    def ended(self, problem: Problem, actions: str = START) -> str:
        """`solved`, `deadlock` if no moves lead to the solution any more, `cap` if none is left."""
        run = self._run(problem, actions)
        if "$" not in run.board:
            return "solved"
        level = level_of(bare(run.board))
        if level.moves_left(level.state(run.board)) < 0:
            return "deadlock"
        return "cap" if run.moves >= self.cap else ""

    def best_moves(self, board: str, rng: random.Random) -> str:
        """A shortest solution of the board as it is."""
        level = level_of(bare(board))
        return solution(level, level.state(board), rng) or ""
