"""AgileRL: IPPO on a parallel environment, DQN in a seat."""

from __future__ import annotations

from agilerl.algorithms.ippo import IPPO
from agilerl_ippo import train
from rows import Row, learned, report, rise
from writing import pair


def masked() -> None:
    """Two writers, with the masks of their choices."""
    env = pair()
    agents = env.possible_agents
    spaces = [[*map(space, agents)] for space in (env.observation_space, env.action_space)]
    seen, infos = env.reset(seed=0)
    IPPO(*spaces, agent_ids=agents).get_action(seen, infos)


ROWS = [
    learned("agilerl_dqn"),
    learned("agilerl_ippo"),
    Row(
        "IPPO on two agents of one role",
        lambda: rise("agilerl_ippo", lambda seed: train(seed, ("writer_0", "writer_1"))),
        error="the reward did not rise",
        why="agents whose names differ in the number alone share a network, whose batches have "
        "states by agent and advantages by step, so a reply is paid for another one: give the "
        "agents other names, as `agilerl_ippo.py` does",
    ),
    Row(
        "IPPO with the masks in `info`",
        masked,
        error="truth value of an array",
        why="it takes lists and no arrays for masks; where every choice is legal they can go",
    ),
]

if __name__ == "__main__":
    report("AgileRL", ("agilerl", "pettingzoo", "torch"), ROWS)
