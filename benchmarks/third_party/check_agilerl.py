"""AgileRL: IPPO on a parallel environment."""

from __future__ import annotations

from agilerl_ippo import train
from rows import Row, report
from writing import pair


def own() -> None:
    """Two writers, with the masks of their choices."""
    train(0, env=pair())


ROWS = [
    Row(
        "IPPO and its training loop: collects and updates; the reward did not rise in 2,560 steps",
        lambda: train(0),
        using="infos without masks, which `agilerl_ippo.py` takes away",
    ),
    Row(
        "IPPO with the masks in `info`",
        own,
        error="truth value of an array",
        why="it takes lists and no arrays for masks; where every choice is legal they can go",
    ),
]

if __name__ == "__main__":
    report("AgileRL", ("agilerl", "pettingzoo", "torch"), ROWS)
