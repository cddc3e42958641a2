"""Tianshou: its wrapper of PettingZoo, vector environments, a collector and an algorithm."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from arrays import choose_candidate
from rows import Row, report
from tianshou.algorithm import DQN
from tianshou.algorithm.algorithm_base import Policy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, PettingZooEnv, SubprocVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step

from flowzoo import voting_v0

warnings.simplefilter("ignore")


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


def numbers() -> None:
    """A collector and an update of DQN on a role in numbers."""
    env = choose_candidate()
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=env.observation_space.shape, action_shape=3, hidden_sizes=[32]),
        action_space=env.action_space,
        observation_space=env.observation_space,
        eps_training=0.5,
    )
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3))
    envs = DummyVectorEnv([choose_candidate, choose_candidate])
    collector = Collector(algorithm, envs, VectorReplayBuffer(200, 2))
    collector.reset()
    found = collector.collect(n_step=64)
    assert set(np.unique(found.returns)) <= {0.0, 1.0}
    with policy_within_training_step(policy):
        algorithm.update(collector.buffer, 32)


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
    Row(
        "`Collector` and DQN on a role in numbers",
        numbers,
        using="`Choose`, `Encode`, `BareInfos` of `flowzoo.adapters.arrays`",
    ),
]

if __name__ == "__main__":
    report("Tianshou", ("tianshou", "pettingzoo", "torch"), ROWS)
