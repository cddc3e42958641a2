"""PPO on one agent, with `GymWrapper`, `SerialEnv`, `Collector` and `ClipPPOLoss`."""

import gymnasium
import torch
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import SerialEnv
from torchrl.envs.libs.gym import GymWrapper
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss

import flowzoo  # noqa: F401 - registers the environments
from flowzoo.adapters.arrays import Choose, Encode, NgramEncoder


def make() -> GymWrapper:
    """The solver's seat as a choice."""
    env = gymnasium.make("flowzoo/Single-v0", data="benchmarks/third_party/problems.jsonl")
    env = Choose(Encode(env, NgramEncoder(64)), [f"\\boxed{{{number}}}" for number in (1, 2, 3, 4)])
    return GymWrapper(env, categorical_action_encoding=True)


def train(seed: int) -> list[float]:
    """Train, and return the rewards of the episodes."""
    torch.manual_seed(seed)
    net = TensorDictModule(torch.nn.Linear(64, 4), ["observation"], ["logits"])
    kind = torch.distributions.Categorical
    actor = ProbabilisticActor(net, ["logits"], distribution_class=kind, return_log_prob=True)
    critic, paid = ValueOperator(torch.nn.Linear(64, 1)), list[float]()
    loss = ClipPPOLoss(actor, critic)
    optimizer = torch.optim.Adam(loss.parameters(), 0.1)
    for batch in Collector(SerialEnv(8, make), actor, frames_per_batch=64, total_frames=960):
        paid += batch["next", "reward"].flatten().tolist()
        for _ in range(4):
            optimizer.zero_grad()
            found = loss(batch)
            (found["loss_objective"] + found["loss_critic"]).backward()
            optimizer.step()
    return paid
