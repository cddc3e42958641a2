"""Base of the games whose actions are the four moves: plan_path and sokoban."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from flowzoo.envs.tasks.games.actions import (
    MOVES,
    are_moves,
    mistaken,
    read_moves,
    read_moves_loosely,
    written,
)
from flowzoo.envs.tasks.games.game import Game, check_square
from flowzoo.envs.tasks.task import Problem


class Tile(NamedTuple):
    """Name of a board's symbol in the legend, and its looks in a terminal."""

    word: str  # empty: no symbol of a board at the start
    text: str
    style: str


@dataclass(frozen=True)
class MoveGame(Game):
    """A game played by lists of "U", "D", "L", "R" on a square board."""

    tiles: ClassVar[Mapping[str, Tile]]
    """The board's symbols, in the order of the legend."""

    side: int = 6
    """Cells in a row, and rows."""

    @classmethod
    def legend(cls) -> str:
        """The symbols of a board with their meaning, as a prompt has them."""
        return ", ".join(f"{symbol} {tile.word}" for symbol, tile in cls.tiles.items() if tile.word)

    @classmethod
    def check_board(cls, rows: list[str], side: int) -> None:
        """Raise `UsageError` unless `rows` are `side` rows of `side` symbols of the legend."""
        check_square(rows, side, "".join(name for name, tile in cls.tiles.items() if tile.word))

    @property
    def cap(self) -> int:
        """Most moves that are made."""
        return 2 * self.side * self.side

    def is_canonical(self, answer: str) -> bool:
        return are_moves(answer)

    def answer(self, text: str) -> str | None:
        return read_moves(text)

    def answer_lenient(self, text: str) -> str | None:
        return read_moves_loosely(text)

    @abstractmethod
    def best_moves(self, board: str, rng: random.Random) -> str:
        """The fewest moves that solve `board`; empty if it is solved or cannot be."""

    def plan(self, problem: Problem, board: str, rng: random.Random, right: bool) -> str:
        """A shortest solution of the board as it is; wrong: with a mistake that leaves it open."""
        moves = self.best_moves(board, rng)
        if right or not moves:
            return written([*moves])
        return self.near_miss(problem, board, moves, rng)

    def near_miss(self, problem: Problem, board: str, moves: str, rng: random.Random) -> str:
        """The solution `moves` of `board` with one move other or the last left out, so it fails."""
        number = rng.randrange(len(moves))
        wrong = [mistaken(moves, number, move) for move in MOVES if move != moves[number]]
        wrong.append(written([*moves[:-1]]))
        solved = self.solves(problem, board, wrong)
        return rng.choice(
            [plan for plan, is_right in zip(wrong, solved, strict=True) if not is_right]
        )

    def samples(self) -> tuple[str, ...]:
        return ('["R"]', 'Go: ["D","D","R"]', '["U","L"]', "[up, right]", "I am not sure.", "[")
