"""Tianshou: its wrapper of PettingZoo, vector environments, collectors and algorithms."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import numpy as np
from rows import Row, learned, report
from tianshou.algorithm.algorithm_base import Policy
from tianshou.data import Batch
from tianshou.env import DummyVectorEnv, PettingZooEnv, SubprocVectorEnv

from flowzoo import voting_v0

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)


def make() -> Any:
    """The AEC environment in Tianshou's wrapper."""
    return PettingZooEnv(voting_v0.env())


def aec() -> None:
    """An episode; rewards as a list in the order of the agents."""
    env = make()
    observed, _ = env.reset(seed=0)
    asked = []
    while True:
        asked.append(observed["agent_id"])
        observed, rewards, ended, *_ = env.step(env.action_space.sample())
        if ended:
            break
    assert asked == ["generator_0", "generator_1", "generator_2", "aggregator_0"]
    assert len(rewards) == 4


def vector(kind: Any) -> Any:
    """Two environments, with texts as objects."""

    def check() -> None:
        envs = kind([make, make])
        envs.reset(seed=0)
        observed, rewards, *_ = envs.step(np.array(["\\boxed{1}", "some words"], dtype=object))
        assert [row["agent_id"] for row in observed] == ["generator_1"] * 2
        assert rewards.shape == (2, 4)
        envs.close()

    return check


class Repeating(Policy):
    """A policy of texts."""

    def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
        """The same reply to everything."""
        return Batch(act=np.array(["\\boxed{1}"] * len(batch.obs), dtype=object))


ROWS = [
    Row("`PettingZooEnv`, AEC", aec),
    Row("`DummyVectorEnv`", vector(DummyVectorEnv), using="replies as an array of objects"),
    Row("`SubprocVectorEnv`", vector(SubprocVectorEnv), using="replies as an array of objects"),
    Row(
        "`Policy` of texts, and so `Collector`",
        lambda: Repeating(action_space=make().action_space),
        error=r"Unsupported action space: Prose\(\)",
        why="a policy's actions are discrete or a box",
    ),
    learned("tianshou_dqn"),
    learned("tianshou_marl"),
]

if __name__ == "__main__":
    report("Tianshou", ("tianshou", "pettingzoo", "torch"), ROWS)
