"""Somebody else's game, played and trained in text: PettingZoo's tic-tac-toe.

flowzoo train --env examples/tictactoe.py:make --model MODEL --options illegal=end
"""

from typing import Any

import pettingzoo

from flowzoo.envs import TextEnv, random_move


def describe(observation: Any, agent: str) -> str:
    """The board: own marks X, the other's O, free cells by number."""
    own, other = observation["observation"][..., 0], observation["observation"][..., 1]
    cells = [
        "X" if own[row, column] else "O" if other[row, column] else str(3 * row + column + 1)
        for row in range(3)
        for column in range(3)
    ]
    return "\n".join("".join(cells[start : start + 3]) for start in (0, 3, 6))


def parse(reply: str, env: Any, agent: str) -> int | None:
    """The last digit from 1 to 9 in a reply, as the action from 0 to 8; None without one."""
    digits = [int(letter) for letter in reply if letter in "123456789"]
    return digits[-1] - 1 if digits else None


def make(opponent: str = "random") -> TextEnv:
    """The game against random legal moves, or with opponent=self between two policies."""
    fixed = {"player_2": random_move} if opponent == "random" else {}
    game = pettingzoo.make("aec", "classic/tictactoe-v3")
    return TextEnv(game, describe, parse, scripted=fixed, score_range=(-1, 1))
