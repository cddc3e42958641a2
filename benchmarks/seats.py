"""Every seat of the workflows as a choice among replies: does the reward of a plain learner rise?

The learner needs NumPy alone: REINFORCE (Williams 1992) with a linear softmax policy on hashed
n-grams of the chat, as any library of array code would train. The replies are those of scripted
experts in this seat, right and wrong ones, to a few problems; in the other seats experts are right
half of the time.

    python -m benchmarks.seats docs/data/seats.json
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.record import write_table
from flowzoo.adapters.arrays import Choose, Encode, NgramEncoder
from flowzoo.adapters.seat import make_seat
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs.api.registry import WORKFLOWS, make_workflow
from flowzoo.envs.workflow import Workflow

PROBLEMS, SAMPLES, MOST_REPLIES = 4, 4, 16
OTHERS: dict[tuple[str, str], dict[str, str]] = {
    ("voting_v0", "generator_0"): {"generator": "scripted:0", "aggregator": "scripted:1"},
    ("voting_v0", "aggregator_0"): {"generator": "scripted:0", "generator_1": "scripted:1"},
}
"""Who plays beside a seat, where experts that are right half of the time hide what it does."""
COLUMNS = ("workflow, role", "replies", "first 100 episodes", "last 100", "difference (95 %)")
ENDS = 100
"""Episodes at each end that are compared."""


@dataclass
class Learner:
    """A linear softmax policy that follows the gradient of the return above its mean."""

    weights: NDArray[np.float64]
    rng: np.random.Generator
    rate: float = 0.5
    mean: float = 0.0
    count: int = 0

    def play(self, env: gymnasium.Env[Any, Any], index: int) -> float:
        """Play an episode of a problem, learn from it, and return its reward."""
        seen, info = env.reset(options={"index": index})
        gradient, total, ended = np.zeros_like(self.weights), 0.0, False
        while not ended:
            scores = np.where(info["action_mask"] > 0, self.weights @ seen, -np.inf)
            chances = np.exp(scores - scores.max())
            chances /= chances.sum()
            action = int(self.rng.choice(len(chances), p=chances))
            gradient += np.outer(np.eye(len(chances))[action] - chances, seen)
            seen, reward, terminated, truncated, info = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        self.count += 1
        self.weights += self.rate * (total - self.mean) * gradient
        self.mean += (total - self.mean) / min(self.count, ENDS)
        return total


def expert_replies(workflow: Workflow, agent: str) -> list[str]:
    """List the replies of right and of wrong experts in a seat."""
    jobs = [
        EpisodeJob(workflow.task.problem(index), sample)
        for sample in range(SAMPLES)
        for index in range(PROBLEMS)
    ]
    replies: dict[str, None] = {}
    for skill in (1.0, 0.5, 0.0):
        team = dict.fromkeys(workflow.role_counts(), ScriptedPolicy(workflow, skill))
        for record in Rollout(workflow, PolicyMap(team)).run(jobs):
            replies |= {call.reply: None for call in record.calls if call.agent == agent}
    return list(replies)[:MOST_REPLIES]


def learn(name: str, agent: str, episodes: int, seed: int) -> dict[str, Any]:
    """Train in one seat; the mean rewards of its first and last episodes with their difference."""
    workflow, began = make_workflow(name), time.perf_counter()
    replies = expert_replies(workflow, agent)
    encoder = NgramEncoder()
    others = OTHERS.get((name, agent), "scripted:0.5")
    env = Choose(Encode(make_seat(workflow, role=agent, others=others), encoder), replies)
    learner = Learner(np.zeros((len(replies), encoder.size)), np.random.default_rng(seed))
    rewards = [learner.play(env, number % PROBLEMS) for number in range(episodes)]
    env.close()
    first, last = np.array(rewards[:ENDS]), np.array(rewards[-ENDS:])
    error = 1.96 * np.sqrt(first.var(ddof=1) / ENDS + last.var(ddof=1) / ENDS)
    rise = last.mean() - first.mean()
    return {
        "workflow": name, "agent": agent, "seed": seed, "replies": len(replies),
        "first": round(first.mean(), 3), "last": round(last.mean(), 3),
        "low": round(rise - error, 3), "high": round(rise + error, 3),
        "seconds": round(time.perf_counter() - began, 1),
    }  # fmt: skip


def table_row(row: dict[str, Any]) -> list[str]:
    """The cells of a row of the table."""
    seat = f"{row['workflow'].removesuffix('_v0')}, {row['agent'].rpartition('_')[0]}"
    ends = " to ".join(f"{row[end]:+.2f}".replace("-", "−") for end in ("low", "high"))
    return [seat, str(row["replies"]), f"{row['first']:.2f}", f"{row['last']:.2f}", ends]


def main() -> None:
    """Train in one seat of every role and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workflows", nargs="*", default=list(WORKFLOWS), choices=list(WORKFLOWS))
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("path", type=Path, nargs="?", help="file of the table")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.workflows:
        agents = make_workflow(name).agents
        seats = {role: agent for agent, (role, _) in reversed(agents.items())}
        for agent in reversed(seats.values()):
            for seed in options.seeds:
                rows.append(learn(name, agent, options.episodes, seed))
                print(*rows[-1].values(), flush=True)
                if options.path:
                    cells = list(map(table_row, rows))
                    write_table(options.path, "python -m benchmarks.seats", COLUMNS, cells)


if __name__ == "__main__":
    main()
