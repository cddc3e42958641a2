"""TorchRL: wrappers, specs, rollouts, vector environments, collectors."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import torch
from rows import Row, report
from tensordict import NonTensorStack
from torchrl.collectors import Collector
from torchrl.envs import SerialEnv
from torchrl.envs.libs.gym import GymWrapper
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.envs.utils import check_env_specs

from flowzoo import voting_v0, writing_pair_v0
from flowzoo.envs.api.torchrl import pettingzoo_env

warnings.filterwarnings("ignore", message="PettingZoo in TorchRL is tested")


def make() -> Any:
    """The AEC environment."""
    return pettingzoo_env(voting_v0.env(), seed=0)


def rollout() -> None:
    """An episode of random replies: who was asked, what it paid, and the next episode."""
    found = make().rollout(12, break_when_any_done=False)
    assert found["next", "done"].flatten().nonzero().flatten().tolist() == [3, 7, 11]
    assert found["aggregator_0", "mask"].flatten().tolist() == [False, False, False, True] * 3
    replies = {step["generator_0", "action"][0] for step in found}
    assert len(replies) > 1


def own_replies() -> None:
    """Replies of one's own arrive whole, and rewards come back."""
    env = voting_v0.env(credit="local")
    wrapped = pettingzoo_env(env)
    now = wrapped.reset(seed=3)
    while not now["done"].all():
        agent = env.agent_selection
        chat = now[agent, "observation", "messages"][0]
        assert chat[0]["role"] == "user"
        now = wrapped.rand_action(now)
        now[agent, "action"] = NonTensorStack(f"{agent} says \\boxed{{1}}")
        now = wrapped.step(now)["next"]
    said = [turn["reply"] for turn in env.transcript()]
    assert said == [f"{agent} says \\boxed{{1}}" for agent in env.possible_agents]
    paid = [now[agent, "reward"].item() for agent in env.possible_agents]
    assert torch.allclose(torch.tensor(paid), torch.tensor(list(env.rewards.values())))


def state() -> None:
    """The transcript as state."""
    found = pettingzoo_env(voting_v0.env(), return_state=True, seed=0).rollout(4)
    last = found[-1]["next", "state"]
    assert [turn["agent"] for turn in last][-1] == "aggregator_0"


def parallel() -> None:
    """Both agents of a pair act at once; their group has two rows."""
    found = pettingzoo_env(writing_pair_v0.parallel_env(), seed=0).rollout(3)
    assert found["next", "writer", "reward"].shape == (1, 2, 1)


def gym() -> None:
    """One role."""
    env = GymWrapper(gymnasium.make("flowzoo/Voting-v0", role="generator"))
    check_env_specs(env)
    assert env.rollout(9)["next", "done"].sum() == 1


def serial() -> None:
    """Two environments in one."""
    assert SerialEnv(2, make).rollout(4)["next", "done"].shape == (2, 4, 1)


def collector() -> None:
    """Batches of steps."""
    batches = list(Collector(make, policy=None, frames_per_batch=8, total_frames=16))
    assert [batch.numel() for batch in batches] == [8, 8]


SPACES = "`from flowzoo.envs.api.torchrl import pettingzoo_env`"
ROWS = [
    Row("`PettingZooWrapper`, AEC", rollout, using=SPACES),
    Row("replies and rewards through it", own_replies, using=SPACES),
    Row("`PettingZooWrapper`, parallel", parallel, using=SPACES),
    Row("`return_state=True`", state, using=SPACES),
    Row("`check_env_specs`", lambda: check_env_specs(make()), using=SPACES),
    Row("`GymWrapper`", gym, using="`import flowzoo.envs.api.torchrl`"),
    Row("`SerialEnv`", serial, using=SPACES),
    Row("`Collector`", collector, using=SPACES),
    Row(
        "`PettingZooWrapper` on the environment as it is",
        lambda: PettingZooWrapper(voting_v0.env(), use_mask=True),
        error="invalid data type 'str'",
        why="it makes a tensor of every entry of `info`; `pettingzoo_env` leaves them behind",
    ),
]

if __name__ == "__main__":
    report("TorchRL", ("torchrl", "tensordict", "torch"), ROWS)
