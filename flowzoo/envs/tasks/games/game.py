"""Base classes of the tasks with actions on a board: plan_path, sokoban, sudoku.

Lists of actions are read from replies strictly as JSON, or leniently.
"""

import json
import random
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, ClassVar, Literal, NamedTuple, cast

from flowzoo.envs.script import GradeResult
from flowzoo.envs.tasks.rows import (
    Columns,
    DataSource,
    DataTask,
    Records,
    RowPlace,
    check_layout,
    data_source,
    objects,
)
from flowzoo.envs.tasks.task import Problem, is_in
from flowzoo.envs.text import visible
from flowzoo.errors import DataError, UsageError, check_choice
from flowzoo.sandbox.tier import SandboxName

MOVES = "UDLR"  # up, down, left, right, in the kernels' order
LONGEST_LIST = 20_000  # characters of a list that is read; a longer one is unreadable
MOST_ACTIONS = 1_000  # actions of a list that is read; a longer one is unreadable

_CANONICAL_MOVES = re.compile(r'\[(?:"[UDLR]"(?:,"[UDLR]")*)?\]')
_WORD = re.compile(r"\w+")
_WORDS = {"UP": "U", "DOWN": "D", "LEFT": "L", "RIGHT": "R"}


def last_bracketed(text: str) -> str | None:
    """The last complete `[...]` of `text`, brackets balanced; None if a later `[` stays open."""
    end = text.rfind("]")
    if end < 0 or "[" in text[end:]:
        return None
    depth = 0
    for at in range(end, max(-1, end - LONGEST_LIST), -1):
        if text[at] == "]":
            depth += 1
        elif text[at] == "[":
            depth -= 1
            if depth == 0:
                return text[at : end + 1]
    return None


def shown_list(text: str) -> str | None:
    """The list at the end of a reply, as text: in its last fenced block, else its last list."""
    reply = visible(text)
    end = reply.rfind("```")
    start = reply.rfind("```", 0, max(end, 0))
    if start >= 0:
        items = last_bracketed(reply[start:end])
        if items is not None:
            return items
    return last_bracketed(reply)


def json_list(text: str) -> list[object] | None:
    """The list at the end of a reply if it is JSON with at most `MOST_ACTIONS` items, else None."""
    # Untrusted text: parse only a bounded part, and only with `json.loads`.
    items = shown_list(text)
    if items is None:
        return None
    try:
        value = json.loads(items)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) and len(value) <= MOST_ACTIONS else None


def written(actions: Sequence[object]) -> str:
    """A list of actions in canonical form: JSON without spaces."""
    return json.dumps(actions, separators=(",", ":"))


def moves_of(answer: str) -> str:
    """The letters of a canonical list of moves."""
    return answer[2:-2].replace('","', "")


def check_square(rows: list[str], side: int, symbols: str) -> None:
    """Raise `UsageError` unless `rows` are `side` rows of `side` of the `symbols`."""
    if len(rows) != side or {len(row) for row in rows} != {side}:
        widths = sorted({len(row) for row in rows})
        raise UsageError(
            f"expected a board of {side} x {side} cells, got {len(rows)} rows of "
            f"{' or '.join(map(str, widths))}; set the size of boards with `side`."
        )
    for symbol in sorted(set("".join(rows)) - set(symbols)):
        raise UsageError(f"symbol {symbol!r} on the board; expected one of {' '.join(symbols)}")


GameReward = Literal["sparse", "shaped"]
START = "[]"  # the empty list of actions


class GameInstance(NamedTuple):
    """A generated world."""

    key: str  # key of the split: equal keys are in one split
    board: str  # the initial world, rows ended by newlines
    gold: str  # an optimal list of actions, canonical
    facts: Mapping[str, object]  # plain values for `Problem.meta`


class BoardRow(NamedTuple):
    """One world of a file."""

    line: int
    instance: GameInstance

    @property
    def text(self) -> str:
        """Key that decides the split."""
        return self.instance.key


class GameResult(NamedTuple):
    """Result of a list of actions."""

    solved: bool
    gained: float  # return under the shaped reward
    best: float  # the best possible return in this world, greater than 0
    invalid: int  # invalid actions; they change nothing


@dataclass(frozen=True)
class Game(DataTask[BoardRow]):
    """A task whose answers are lists of actions.

    A problem's `meta` has `board`, `solution` and the facts of the game. The state of a world is a
    function of the problem and one canonical list of actions; success depends only on the final
    state.

    Raises:
        UsageError: an option out of range.
    """

    kind: ClassVar[str] = "actions"
    home: ClassVar[str] = "tool_planner_v0"
    most_draws: ClassVar[int] = 4_000
    instruction: ClassVar[str]
    """Instruction for the form of the answer."""
    reward: GameReward = "sparse"
    """`sparse`: 1 if the final state is the goal, else 0. `shaped`: the return on the task's page
    as a fraction of the best possible one, at least 0. The return itself is the part `return` of
    the grade."""
    sandbox: SandboxName = "auto"  # pyrefly: ignore[bad-override]
    columns: Mapping[str, str] | Columns = ()
    """Name of the column of `data` that has the board, under the key `board`."""

    def __post_init__(self) -> None:
        check_choice("reward", self.reward, GameReward)
        super().__post_init__()
        if self.data is not None:
            object.__setattr__(self, "digest", self._source().digest)

    def _source(self) -> DataSource[BoardRow]:
        side, columns = str(self._draw_key(0)[0]), cast(Columns, self.columns)
        return data_source(str(self.data), type(self).board_rows, side, columns, self.digest)

    @classmethod
    def board_rows(
        cls, data: str, records: Records, layout: str, columns: dict[str, str]
    ) -> Iterator[BoardRow]:
        """The worlds of a file; `layout` is the side of its boards."""
        check_layout(layout, (layout,), columns, ("board",))
        column = columns.get("board", "board")
        for line, where, record in objects(data, records):
            value = record.get(column)
            rows = value if isinstance(value, list) else str(value or "").strip("\n").split("\n")
            if not all(isinstance(row, str) for row in rows) or not any(rows):
                raise DataError(
                    f"{where}: column {column!r}: expected a board as text or as a list of rows, "
                    f"got {value!r:.100}; name another column with --options columns=board:COLUMN."
                )
            try:
                instance = cls.instance([row.rstrip("\r") for row in rows], int(layout))
            except UsageError as error:
                raise DataError(f"{where}: {error}") from error
            yield BoardRow(line, instance)

    @classmethod
    @abstractmethod
    def instance(cls, rows: list[str], side: int) -> GameInstance:
        """Make the world of a board, with its best actions.

        Raises:
            UsageError: the board is invalid or has no solution.
        """

    @abstractmethod
    def draw(self, rng: random.Random, split: str) -> GameInstance | None:
        """Draw a world; None if the draw failed or is not in `split`."""

    @abstractmethod
    def state(self, problem: Problem, actions: str = START) -> str:
        """The board after `actions`, in the symbols of the task's page."""

    @abstractmethod
    def describe(self, problem: Problem, board: str, actions: str) -> str:
        """Description of the world on `board` for a player, without the instruction."""

    @abstractmethod
    def play(self, problem: Problem, actions: str) -> GameResult:
        """Result of a canonical list of actions."""

    @abstractmethod
    def is_canonical(self, answer: str) -> bool:
        """True if `answer` is a canonical list of actions of this game."""

    @abstractmethod
    def plan(self, problem: Problem, board: str, rng: random.Random, right: bool) -> str:
        """A canonical list that solves the world on `board`, or plausibly fails.

        A world that can no longer be solved gets no actions.
        """

    @abstractmethod
    def ended(self, problem: Problem, actions: str = START) -> str:
        """Reason of the world's end (`solved`, `deadlock`, `cap`), or an empty string."""

    def _of_row(self, row: BoardRow, index: int, split: str, where: RowPlace) -> Problem:
        return self._problem(row.instance, index, split, where)

    def _draw(self, rng: random.Random, index: int, split: str, number: int) -> Problem | None:
        instance = self.draw(rng, split)
        if instance is None or not is_in(split, instance.key):
            return None
        where = {"source": "-".join(map(str, self._draw_key(index)))}
        return self._problem(instance, index, split, where)

    def _problem(
        self, instance: GameInstance, index: int, split: str, where: Mapping[str, object]
    ) -> Problem:
        meta = {**where, "board": instance.board, "solution": instance.gold, **instance.facts}
        problem = Problem(self.name, split, self.seed, index, "", instance.gold, meta)
        text = self.describe(problem, instance.board, START)
        return Problem(self.name, split, self.seed, index, text, instance.gold, meta)

    def question(self, text: str) -> Problem:
        """Raise: a problem is a world."""
        raise UsageError(
            f"a problem of task {self.name!r} is a world, not a text: questions are for text tasks "
            "such as math, code and search"
        )

    def prompt(self, problem: Problem) -> str:
        return f"{problem.text}\n{self.instruction}"

    def prompt_at(self, problem: Problem, actions: str) -> str:
        """`prompt` for the world after `actions`."""
        if actions == START:
            return self.prompt(problem)
        board_text = self.describe(problem, self.state(problem, actions), actions)
        return f"{board_text}\n{self.instruction}"

    def board_in(self, problem: Problem, prompt: str) -> str:
        """The board in a text of `prompt_at`, the only information of scripted players."""
        return "\n".join(prompt.split("\n")[1 : problem.meta["board"].count("\n") + 2])

    def solves(self, problem: Problem, board: str, actions: Sequence[str]) -> list[bool]:
        """For each canonical list, True if it solves the world on `board`."""
        at_board = replace(problem, meta={**problem.meta, "board": board})
        return [self.play(at_board, plan).solved for plan in actions]

    def join(self, *actions: str) -> str:
        """Concatenate canonical lists."""
        return f"[{','.join(inner for text in actions if (inner := text[1:-1]))}]"

    def grade(self, problem: Problem, answer: str | None) -> GradeResult:
        """Play an answer; the status is `solved`, `unsolved` or `none` (no list of actions)."""
        if not answer or not self.is_canonical(answer):
            return GradeResult(0.0, "none")
        end = self.play(problem, answer)
        share = min(1.0, max(0.0, end.gained / end.best))
        parts = (("return", end.gained), ("invalid", float(end.invalid)))
        score = float(end.solved) if self.reward == "sparse" else share
        return GradeResult(score, "solved" if end.solved else "unsolved", parts)

    def solve(self, problem: Problem, rng: random.Random, right: bool) -> str:
        """A list that solves the world from its start; if not `right`, one that plausibly fails."""
        return self.plan(problem, problem.meta["board"], rng, right)


_LOCK = Lock()


def compile_in(module: dict[str, Any], names: Iterable[str]) -> None:
    """Replace the functions `names` in a module's `globals()` by compiled ones, once."""
    # Numba compiles them at the first call, or loads them from the cache next to the module's file.
    # As globals, not closures, they can call each other and still be cached. A kernel must not call
    # itself: numba 0.65 crashes when it loads a recursive kernel from the cache.
    from numba import njit

    with _LOCK:  # graders run on threads
        for name in names:
            if not hasattr(module[name], "py_func"):
                module[name] = njit(cache=True, nogil=True)(module[name])


def most_moves(side: int) -> int:
    """Most moves that are made on a square board."""
    return 2 * side * side


class Tile(NamedTuple):
    """Name of a board's symbol in the legend, and its terminal style."""

    word: str  # empty: not a symbol of initial boards
    text: str
    style: str


@dataclass(frozen=True)
class MoveGame(Game):
    """A game played by lists of "U", "D", "L", "R" on a square board."""

    tiles: ClassVar[Mapping[str, Tile]]
    """The board's symbols, in the order of the legend."""

    side: int = 6
    """Number of rows and columns."""

    @classmethod
    def legend(cls) -> str:
        """The symbols of a board with their meanings, for prompts."""
        return ", ".join(f"{symbol} {tile.word}" for symbol, tile in cls.tiles.items() if tile.word)

    @classmethod
    def check_board(cls, rows: list[str], side: int) -> None:
        """Raise `UsageError` unless `rows` are `side` rows of `side` symbols of the legend."""
        check_square(rows, side, "".join(name for name, tile in cls.tiles.items() if tile.word))

    @property
    def cap(self) -> int:
        """Most moves that are made."""
        return most_moves(self.side)

    def is_canonical(self, answer: str) -> bool:
        return _CANONICAL_MOVES.fullmatch(answer) is not None

    def answer(self, text: str) -> str | None:
        moves = json_list(text)
        if moves is None or not all(type(a) is str and len(a) == 1 and a in MOVES for a in moves):
            return None
        return written(moves)

    def answer_lenient(self, text: str) -> str | None:
        """The moves of the last list, else of the last line, as letters or words in any case."""
        # Quotes are ignored, and letters may be joined (`UURD`); any other word or number and
        # nested lists make the reply unreadable.
        items = shown_list(text)
        if items is None:
            lines = visible(text)[-LONGEST_LIST:].splitlines()
            items = next((line for line in reversed(lines) if line.strip()), "").rpartition(":")[2]
            if not _WORD.search(items):
                return None
        elif "[" in items[1:]:
            return None
        tokens = (match[0].upper() for match in _WORD.finditer(items))
        moves = "".join(_WORDS.get(token, token) for token in tokens)
        return None if moves.strip(MOVES) or len(moves) > MOST_ACTIONS else written([*moves])

    @abstractmethod
    def best_moves(self, board: str, rng: random.Random) -> str:
        """A shortest solution of `board`; empty if it is solved or unsolvable."""

    def plan(self, problem: Problem, board: str, rng: random.Random, right: bool) -> str:
        """A shortest solution; wrong: with one move changed or the last one omitted."""
        moves = self.best_moves(board, rng)
        if right or not moves:
            return written([*moves])
        number = rng.randrange(len(moves))
        others = (move for move in MOVES if move != moves[number])
        wrong = [written([*moves[:number], move, *moves[number + 1 :]]) for move in others]
        wrong.append(written([*moves[:-1]]))
        solved = self.solves(problem, board, wrong)
        return rng.choice(
            [plan for plan, is_right in zip(wrong, solved, strict=True) if not is_right]
        )

    def samples(self) -> tuple[str, ...]:
        return ('["R"]', 'Go: ["D","D","R"]', '["U","L"]', "[up, right]", "I am not sure.", "[")
