"""TorchRL: wrappers, specs, rollouts, vector environments, collectors."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import gymnasium
import torch
from rows import Row, example, learned, report
from tensordict import NonTensorStack
from torchrl.collectors import Collector
from torchrl.envs import ParallelEnv, SerialEnv
from torchrl.envs.libs.gym import GymEnv, GymWrapper
from torchrl.envs.libs.pettingzoo import PettingZooWrapper
from torchrl.envs.utils import check_env_specs

from flowzoo import code_pair_v0, voting_v0, writing_pair_v0
from flowzoo.adapters.torchrl import pettingzoo_env

warnings.filterwarnings("ignore", message="PettingZoo in TorchRL is tested")


def make() -> Any:
    """The AEC environment."""
    return pettingzoo_env(voting_v0.env(), seed=0)


def rollout() -> None:
    """An episode of random replies: who was asked, what it paid, and the next episode."""
    found = make().rollout(12, break_when_any_done=False)
    assert found["next", "done"].flatten().nonzero().flatten().tolist() == [3, 7, 11]
    assert found["aggregator", "mask"].flatten().tolist() == [False, False, False, True] * 3
    assert found["generator", "mask"][:4].tolist() == torch.eye(4, 3, dtype=torch.bool).tolist()
    replies = {step["generator", "action"][0] for step in found}
    assert len(replies) > 1


def place(agent: str) -> tuple[str, int]:
    """Group and row of an agent: its role, and its number in the role."""
    role, _, number = agent.rpartition("_")
    return role, int(number)


def groups() -> None:
    """A group is a role, in AEC and parallel environments alike; a map of one's own is taken."""
    pair = {"helper": ["helper_0"], "main": ["main_0"]}
    assert pettingzoo_env(code_pair_v0.env()).group_map == pair
    assert pettingzoo_env(code_pair_v0.parallel_env()).group_map == pair
    own = {"all": ["helper_0", "main_0"]}
    assert pettingzoo_env(code_pair_v0.env(), group_map=own).group_map == own
    assert [len(members) for members in make().group_map.values()] == [3, 1]
    assert example("libraries.md", "pettingzoo_env(")["episode"].numel() == 4


def own_replies() -> None:
    """Replies of one's own arrive whole, and rewards come back."""
    env = voting_v0.env(credit="local")
    wrapped = pettingzoo_env(env)
    now = wrapped.reset(seed=3)
    while not now["done"].all():
        group, row = place(env.agent_selection)
        chat = now[group, "observation", "messages"][row]
        assert chat[0]["role"] == "user"
        now = wrapped.rand_action(now)
        members = wrapped.group_map[group]
        now[group, "action"] = NonTensorStack(*[f"{name} says \\boxed{{1}}" for name in members])
        now = wrapped.step(now)["next"]
    said = [turn["reply"] for turn in env.transcript()]
    assert said == [f"{agent} says \\boxed{{1}}" for agent in env.possible_agents]
    places = map(place, env.possible_agents)
    paid = [now[group, "reward"][row].item() for group, row in places]
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
    """One role; by TorchRL's own constructor too, and its specs go to other processes."""
    env = GymWrapper(gymnasium.make("flowzoo/Voting-v0", role="generator"))
    check_env_specs(env)
    assert env.rollout(9)["next", "done"].sum() == 1
    named = GymEnv("flowzoo/Voting-v0", role="aggregator")
    assert named.rollout(9)["next", "done"].sum() == 1
    assert pickle.loads(pickle.dumps(named.action_spec)) == named.action_spec  # noqa: S301


def serial() -> None:
    """Two environments in one."""
    assert SerialEnv(2, make).rollout(4)["next", "done"].shape == (2, 4, 1)


def collector() -> None:
    """Batches of steps."""
    batches = list(Collector(make, policy=None, frames_per_batch=8, total_frames=16))
    assert [batch.numel() for batch in batches] == [8, 8]


SPACES = "`from flowzoo.adapters.torchrl import pettingzoo_env`"
ROWS = [
    Row("`PettingZooWrapper`, AEC", rollout, using=SPACES),
    Row("a group for each role, AEC and parallel", groups, using=SPACES),
    Row("replies and rewards through it", own_replies, using=SPACES),
    Row("`PettingZooWrapper`, parallel", parallel, using=SPACES),
    Row("`return_state=True`", state, using=SPACES),
    Row("`check_env_specs`", lambda: check_env_specs(make()), using=SPACES),
    Row("`GymWrapper`", gym, using="`import flowzoo.adapters.torchrl`"),
    Row("`SerialEnv`", serial, using=SPACES),
    Row(
        "`ParallelEnv`",
        lambda: ParallelEnv(2, make).rollout(4),
        error='key "action" not found',
        why="it shares tensors between processes, and a reply is none; `SerialEnv` takes them",
    ),
    Row("`Collector`", collector, using=SPACES),
    Row(
        "`PettingZooWrapper` on the environment as it is",
        lambda: PettingZooWrapper(voting_v0.env(), use_mask=True),
        error="invalid data type 'str'",
        why="it makes a tensor of every entry of `info`; `pettingzoo_env` leaves them behind",
    ),
    learned("torchrl_ppo"),
]

if __name__ == "__main__":
    report("TorchRL", ("torchrl", "tensordict", "torch"), ROWS)
