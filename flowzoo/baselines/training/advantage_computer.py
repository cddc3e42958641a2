"""Advantages of the rows of a step, and the jobs that leave something to learn from."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flowzoo.agents.rollout.episodes import RolloutBatch
from flowzoo.baselines.advantages.compute import Advantages, RunningMean, compute, episode_returns
from flowzoo.baselines.advantages.segments import Floats
from flowzoo.baselines.advantages.spec import AdvantageSpec
from flowzoo.baselines.advantages.targets import lowest_groups
from flowzoo.baselines.learner.batch import learns
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.settings.hooks import AdvantageFunction
from flowzoo.baselines.training.filters import FilteredBatch, job_of
from flowzoo.envs import Call
from flowzoo.errors import UsageError


@dataclass(frozen=True, slots=True)
class LengthShaping:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13), added to a reply's reward.

    With L tokens at most and a cache of C of them, a reply of n tokens gets 0 up to n = L - C,
    from there (L - C - n) / C, which is -1 at the limit; all times `penalty`. The paper has one
    reply an episode; here every call has its own, and is judged by its target plus that.
    """

    limits: Mapping[str, int]
    """Most tokens of a reply by role or agent; an agent's entry wins over its role's."""
    cache: int = 0
    """C; 0: a fifth of the limit, as in the paper (4,096 of 20,480)."""
    penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, limit in self.limits.items():
            if self.cache > limit:
                raise UsageError(
                    f"`length_cache` must be within the limit of a reply, {limit} tokens for "
                    f"{name}: got {self.cache}"
                )

    def of(self, calls: Sequence[Call]) -> Floats:
        """Amount that is added to the reward of each call, (rows,)."""
        amounts = np.zeros(len(calls))
        for row, call in enumerate(calls):
            limit = self.limits.get(call.agent, self.limits.get(call.role, 0))
            cache = self.cache or max(1, limit // 5)
            over = len(call.output_ids) - (limit - cache)
            amounts[row] = -self.penalty * min(max(over / cache, 0.0), 1.0)
        return amounts


@dataclass(frozen=True, slots=True)
class AdvantageComputer:
    """Computes the advantages of a run's rows."""

    spec: AdvantageSpec
    shaping: LengthShaping | None = None
    function: AdvantageFunction | None = None
    """Function that has the last word: see `flowzoo.baselines.settings.hooks`."""
    origin: float | None = 0.0
    """Zero of rewards without a baseline; see `compute`."""

    def __call__(self, sampled: RolloutBatch, state: RunningMean) -> Advantages:
        """Return the advantages of the rows of `sampled`; a running mean in `state` moves."""
        calls, returns = sampled.rows, episode_returns(sampled.records)
        extra = None if self.shaping is None else self.shaping.of(calls)
        advantages = compute(calls, self.spec, returns, state, extra, self.origin)
        if self.function is None:
            return advantages
        values = self.function(calls, advantages.values.copy(), returns)
        return replace(advantages, values=values)


def trained_rows(
    gathered: FilteredBatch, spec: AdvantageSpec, policies: Iterable[str], drop_groups: float
) -> list[bool]:
    """True for every sampled row that is trained on, without the lowest groups of `policies`."""
    rows = gathered.sampled.rows
    trained = [gathered.trains(call) for call in rows]
    returns = episode_returns(gathered.sampled.records)
    for policy in policies if drop_groups else ():
        indices = [
            index for index, call in enumerate(rows) if call.policy == policy and trained[index]
        ]
        lowest = lowest_groups([rows[index] for index in indices], spec, returns, drop_groups)
        for index in np.array(indices)[lowest].tolist():
            trained[index] = False
    return trained


def informative_jobs(
    calls: Sequence[Call], advantages: Floats, learners: Mapping[str, LearnerConfig]
) -> set[str]:
    """Keys of the jobs with a row that its advantage makes its policy learn from."""
    # KL terms and entropy bonuses do not count: they need no difference between rows.
    return {
        job_of(call.episode)
        for call, advantage in zip(calls, advantages.tolist(), strict=True)
        if call.policy in learners and learns(call, advantage, learners[call.policy])
    }
