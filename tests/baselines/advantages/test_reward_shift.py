"""A constant added to the reward teaches nothing else, and a reply that abstained is never best."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest

from flowzoo.agents.policy import Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout, RolloutBatch, Sampler
from flowzoo.agents.rollout.joint import JointRollout
from flowzoo.agents.rollout.settings import JointSettings, TreeSettings
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.advantages.columns import CallColumns, Groups
from flowzoo.baselines.advantages.compute import RunningMean, compute
from flowzoo.baselines.advantages.spec import PRESETS, AdvantageSpec
from flowzoo.baselines.advantages.targets import own_rewards
from flowzoo.baselines.settings.algorithms import ALGORITHMS, Algorithm
from flowzoo.baselines.training.advantage_computer import AdvantageComputer
from flowzoo.envs import Ask, Call, Outcome, Problem, Script, Workflow, make_workflow
from flowzoo.envs.tasks import make_task
from flowzoo.envs.workflow import FinishedEpisode
from flowzoo.seeding import key_rng
from tests.baselines.rows import new_call

SHIFTS = (-10.0, -1.0, 0.5, 5.0, 100.0)
SCALES = (0.01, 3.0, 50.0)


@dataclass(frozen=True)
class Linear:
    """A reward: a line through the task's score."""

    scale: float = 1.0
    shift: float = 0.0

    def __call__(self, episode: FinishedEpisode) -> float:
        return self.scale * episode.score + self.shift


class Mumbling(ScriptedPolicy):
    """Of its replies, three in ten cannot be read."""

    def _reply(self, request: Request) -> str:
        mute = key_rng("mumble", *request.key).random() < 0.3
        return "" if mute else super()._reply(request)


@cache
def played(sampling: str, reward: Any, credit: str = "team", penalty: float = 0.0) -> RolloutBatch:
    """A batch of voting, in which a third of the replies abstain."""
    workflow = make_workflow(
        "voting_v0", "math", episode_reward=reward, credit=credit, format_penalty=penalty
    )
    policy = Mumbling(workflow, 0.6)
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    tree = TreeSettings(candidates=4, value="rollout", select="first")
    samplers: dict[str, Callable[[], Sampler]] = {
        "episodes": lambda: Rollout(workflow, policy_map),
        "tree": lambda: TreeRollout(workflow, policy_map, tree),
        "joint": lambda: JointRollout(workflow, policy_map, JointSettings(4, "cross", leaves=32)),
    }
    problems = (workflow.task.problem(index, "train") for index in range(5))
    samples = 6 if sampling == "episodes" else 1
    jobs = [EpisodeJob(problem, sample) for problem in problems for sample in range(samples)]
    batch = samplers[sampling]().sample(jobs)
    assert 0.2 < np.mean([call.abstained for call in batch.rows]) < 0.4
    return batch


def pay(algorithm: Algorithm) -> tuple[str, float]:
    """Credit rule and penalty under which a call's own part counts where the algorithm sees it."""
    return ("team", 0.0) if algorithm.advantage.target == "episode" else ("mix", 0.125)


def judged(algorithm: Algorithm, reward: Any, origin: float | None) -> np.ndarray:
    """The advantages of two batches, one after the other."""
    batch, state = played(algorithm.sampling, reward, *pay(algorithm)), RunningMean()
    judge = AdvantageComputer(algorithm.advantage, origin=origin)
    return np.concatenate([judge(batch, state).values for _ in range(2)])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_constant_in_the_reward_changes_no_advantage(name):
    algorithm = ALGORITHMS[name]
    plain = judged(algorithm, None, 0.0)
    assert np.abs(plain).max() > 0.4
    np.testing.assert_array_equal(judged(algorithm, Linear(), None), plain)
    for shift in SHIFTS:
        np.testing.assert_allclose(judged(algorithm, Linear(1.0, shift), None), plain, atol=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_factor_of_the_reward_is_a_factor_of_advantages_without_a_scale(name):
    algorithm = ALGORITHMS[name]
    spec, judge = algorithm.advantage, AdvantageComputer(algorithm.advantage, origin=None)
    plain = judge(played(algorithm.sampling, None), RunningMean()).values
    lone = judge(played(algorithm.sampling, None), RunningMean()).singleton
    for scale in SCALES:
        batch = played(algorithm.sampling, Linear(scale, -2.0))
        values = judge(batch, RunningMean()).values
        raw = lone if spec.singleton == "raw" else np.zeros_like(lone)
        factor = np.where(raw | (spec.std == "none"), scale, 1.0)
        np.testing.assert_allclose(values, factor * plain, rtol=1e-3, atol=1e-6 * scale)


def length(episode: FinishedEpisode) -> float:
    """A reward that does not look at the score."""
    return -3.0 - sum(len(text) for _, text in episode.replies) / 100


def reverse(episode: FinishedEpisode) -> float:
    """A reward that pays for failing."""
    return -episode.score


@pytest.mark.parametrize("reward", [None, Linear(1.0, -1.0), Linear(1.0, 5.0), length, reverse])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_abstained_is_never_better_than_the_worst_that_was_read(name, reward):
    algorithm = ALGORITHMS[name]
    spec, batch = algorithm.advantage, played(algorithm.sampling, reward)
    values = AdvantageComputer(spec, origin=None)(batch, RunningMean()).values
    groups = Groups(CallColumns(batch.rows)).by((*spec.mean_group, *spec.std_group)).codes
    silent, some = np.array([call.abstained for call in batch.rows]), 0
    for group in range(groups.max() + 1):
        read, mute = (values[(groups == group) & which] for which in (~silent, silent))
        if len(read) and len(mute):
            some += 1
            assert mute.max() <= read.min() + 1e-9
    assert some


def make_call(episode: str, role: str, team: float, *, abstained: bool = False) -> Call:
    return new_call(
        episode=episode,
        role=role,
        strict=not abstained,
        parts={"team": team},
        reward=team,
        abstained=abstained,
    )


@pytest.mark.parametrize("shift", [0.0, *SHIFTS])
def test_the_lowest_outcome_of_the_group_bounds_what_abstaining_pays(shift):
    scores = {"a": 1.0, "b": -2.0, "c": 0.0}
    calls = [make_call(name, "generator", score + shift) for name, score in scores.items()]
    calls += [make_call(name, "judge", scores[name] + shift) for name in "bc"]
    calls.append(make_call("a", "judge", shift, abstained=True))
    returns = {name: score + shift for name, score in scores.items()}
    grpo = compute(calls, "grpo", returns).values
    assert grpo[5] == grpo[1] == grpo[3] == grpo.min()
    groups = Groups(CallColumns(calls))
    for spec in (PRESETS["dr_mas"], PRESETS["dr_mas_std"]):
        assert own_rewards(groups, spec)[5] == shift - 2.0
    assert own_rewards(groups, AdvantageSpec(target="row", mean_group=("episode",)))[5] == shift


class Below(Workflow):
    """A script that scores its episodes itself, below zero."""

    name: ClassVar[str] = "below_v0"
    roles: ClassVar[dict[str, int]] = {"solver": 1, "checker": 1}
    score_range: ClassVar[tuple[float, float]] = (-1.0, 0.0)

    def play(self, problem: Problem) -> Script:
        answer = yield Ask("solver_0", self.task.prompt(problem), self.task.answer)
        yield Ask("checker_0", self.task.prompt(problem), self.task.answer)
        low, high = self.score_range
        return Outcome(answer.strict, high if answer.strict == problem.gold else low)


class Above(Below):
    """The same on the usual scale."""

    name: ClassVar[str] = "above_v0"
    score_range: ClassVar[tuple[float, float]] = (0.0, 1.0)


def test_a_script_that_scores_below_zero_teaches_the_same():
    found: list[np.ndarray] = []
    for kind in (Below, Above):
        workflow = kind(make_task("math"))
        policy_map = PolicyMap.shared(Mumbling(workflow, 0.6), workflow.role_counts())
        problems = (workflow.task.problem(index, "train") for index in range(4))
        jobs = [EpisodeJob(problem, sample) for problem in problems for sample in range(8)]
        batch = Rollout(workflow, policy_map).sample(jobs)
        assert any(call.abstained and record.score for record in batch.records
                   for call in record.calls)  # fmt: skip
        found.append(AdvantageComputer(PRESETS["dr_mas"])(batch, RunningMean()).values)
    np.testing.assert_array_equal(*found)
    assert np.abs(found[0]).max() > 0.4
