"""shimmy: a game of OpenSpiel as an environment of others."""

from __future__ import annotations

from rows import Row, learned, report
from shimmy.openspiel_compatibility import OpenSpielCompatibilityV0


def paid(name: str) -> list[float]:
    """Returns of the players of a game of first legal moves."""
    env = OpenSpielCompatibilityV0(game_name=name)
    env.reset(seed=0)
    returns = dict.fromkeys(env.agents, 0.0)
    for agent in env.agent_iter():
        _, reward, terminated, truncated, info = env.last()
        returns[agent] += reward
        env.step(None if terminated or truncated else info["action_mask"].argmax())
    return [*returns.values()]


def second() -> None:
    """Somebody wins one point, and the other loses one."""
    assert sum(paid("tic_tac_toe")) == 0, "the second player is paid twice"


def short() -> None:
    """Tiny Hanabi pays something for first moves."""
    assert any(paid("tiny_hanabi")), "no player is paid"


ROWS = [
    learned("shimmy_board"),
    Row(
        "a seat of the second player",
        second,
        error="paid twice",
        why="it adds the last rewards again when the first player leaves",
    ),
    Row(
        "games as short as chance and one move of each",
        short,
        error="no player is paid",
        why="it counts moves of chance, and cuts the episode off before its rewards",
    ),
]

if __name__ == "__main__":
    report("shimmy", ("shimmy", "open-spiel", "pettingzoo"), ROWS)
