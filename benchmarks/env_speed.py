"""Speed of the environment layer on one core: steps, rollout overhead, forks.

    python benchmarks/env_speed.py

Everything is measured side by side in interleaved rounds of one process; the peer for steps is
PettingZoo's own bookkeeping: an AEC environment of as many agents that only rotates the selection
and pays rewards in the dead-step flush. Live steps are agent turns; each episode also has one dead
step per agent, whose time is included. Grading is excluded by a task that answers instantly.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence

import gymnasium
from pettingzoo import AECEnv

from flowzoo.agents import Completion, Request, Roster
from flowzoo.agents.policy import Batching
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.envs import Graded, Problem, make_workflow
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.api.guard import Guard
from flowzoo.envs.tasks.math.task import MathTask

ROUNDS = 7
EPISODES = 1_000
AGENTS = [f"agent_{number}" for number in range(4)]


class UngradedMath(MathTask):
    """The math task with grading and reading taken out of the measurement."""

    def problem(self, index: int, split: str = "train") -> Problem:
        """One fixed problem."""
        return Problem("math", split, 0, index, "Compute 2+3*4.", "14")

    def answer(self, text: str) -> str | None:
        """The text itself."""
        return text

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[Graded]:
        """Everything is right."""
        return [Graded(1.0, "equal")] * len(problems)


class Floor(AECEnv):
    """PettingZoo's bookkeeping and nothing else: four agents, one turn each."""

    metadata = {"name": "floor_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        """Make the spaces."""
        super().__init__()
        self.possible_agents = list(AGENTS)
        self._spaces = {agent: gymnasium.spaces.Discrete(2) for agent in AGENTS}

    def observation_space(self, agent: str) -> gymnasium.Space:
        """Any."""
        return self._spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space:
        """Any."""
        return self._spaces[agent]

    def observe(self, agent: str) -> int:
        """Nothing."""
        return 0

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        """Start over."""
        self.agents = list(AGENTS)
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict.fromkeys(AGENTS, 0.0)
        self.terminations = dict.fromkeys(AGENTS, False)
        self.truncations = dict.fromkeys(AGENTS, False)
        self.infos = {agent: {} for agent in AGENTS}
        self.agent_selection = AGENTS[0]
        self._skip_agent_selection = None
        self._turn = 0

    def step(self, action: object) -> None:
        """Rotate; end after everyone's turn."""
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0.0
        self._clear_rewards()
        self._turn += 1
        if self._turn == len(AGENTS):
            self.rewards = dict.fromkeys(AGENTS, 1.0)
            self.terminations = dict.fromkeys(AGENTS, True)
            self.agent_selection = AGENTS[0]
        else:
            self.agent_selection = AGENTS[self._turn]
        self._accumulate_rewards()


class Instant:
    """A policy that takes no time: what is left is the rollout engine."""

    name = "instant"
    batching: Batching = "stream"

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """The same reply to everything."""
        return [Completion("\\boxed{1}")] * len(requests)

    async def close(self) -> None:
        """Nothing to close."""


def loop(env: AECEnv, episodes: int) -> int:
    """PettingZoo's documented loop; returns the number of live steps."""
    live = 0
    for _ in range(episodes):
        env.reset()
        for _ in env.agent_iter():
            _, _, terminated, truncated, _ = env.last()
            over = terminated or truncated
            live += not over
            env.step(None if over else "\\boxed{1}")
    return live


def timed(work: Callable[[], int]) -> float:
    """Seconds per unit of work."""
    start = time.perf_counter()
    units = work()
    return (time.perf_counter() - start) / units


def fork_seconds(env: WorkflowEnv | Guard, forks: int = 200) -> float:
    """Seconds per fork."""
    start = time.perf_counter()
    for _ in range(forks):
        env.fork()
    return (time.perf_counter() - start) / forks


def spread(values: list[float], scale: float = 1.0, digits: int = 1) -> str:
    """Median with minimum and maximum."""
    scaled = [value * scale for value in values]
    low, mid, high = min(scaled), statistics.median(scaled), max(scaled)
    return f"{mid:,.{digits}f}  (min {low:,.{digits}f}, max {high:,.{digits}f})"


def main() -> None:
    """Measure and print."""
    workflow = make_workflow("voting_v0", UngradedMath())
    floor, raw = Floor(), WorkflowEnv(workflow)
    guard = Guard(WorkflowEnv(workflow))
    roster = Roster.shared(Instant(), workflow.role_counts())
    jobs = [EpisodeJob(workflow.task.problem(index)) for index in range(EPISODES)]
    forked = Guard(WorkflowEnv(make_workflow("eval_opt_v0", UngradedMath(), max_rounds=4)))
    forked.reset()
    for _ in range(6):
        forked.step("x" * 4_000)
    seconds: dict[str, list[float]] = {}

    def measure(name: str, work: Callable[[], int]) -> None:
        seconds.setdefault(name, []).append(timed(work))

    async def rolled(deterministic: bool) -> int:
        records = await Rollout(workflow, roster, deterministic=deterministic).arun(jobs)
        return sum(len(record.calls) for record in records)

    async def grown() -> int:
        return len((await TreeRollout(workflow, roster).asample(jobs[: EPISODES // 4])).rows)

    for _ in range(ROUNDS):
        measure("floor", lambda: loop(floor, EPISODES))
        measure("raw", lambda: loop(raw, EPISODES))
        measure("guard", lambda: loop(guard, EPISODES))
        measure("rollout", lambda: asyncio.run(rolled(True)))
        measure("rollout, arrival order", lambda: asyncio.run(rolled(False)))
        measure("tree of 4", lambda: asyncio.run(grown()))
        seconds.setdefault("fork", []).append(fork_seconds(forked))
    for name in ("floor", "raw", "guard"):
        rates = [1 / value for value in seconds[name]]
        print(f"{name:24s} {spread(rates, digits=0)} live steps/s")
    ratios = [a / b for a, b in zip(seconds["guard"], seconds["floor"], strict=True)]
    print(f"{'guard / floor':24s} {spread(ratios, digits=2)} times the bookkeeping floor")
    for name in ("rollout", "rollout, arrival order", "tree of 4"):
        print(f"{name:24s} {spread(seconds[name], 1e6)} us a call")
    print(f"{'fork, 6 calls of 4,000':24s} {spread(seconds['fork'], 1e6)} us")


if __name__ == "__main__":
    main()
