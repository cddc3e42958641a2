"""Advantages of the rows of a step, and draws until enough jobs leave something to learn from."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, concat_batches
from flowzoo.baselines.advantages.compute import Advantages, RunningMean, compute, episode_returns
from flowzoo.baselines.advantages.segments import Floats
from flowzoo.baselines.advantages.spec import AdvantageSpec
from flowzoo.baselines.advantages.targets import lowest_groups
from flowzoo.baselines.learner.batch import learns
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.settings.hooks import AdvantageFunction
from flowzoo.envs import Call
from flowzoo.envs.tasks.task import Task
from flowzoo.errors import UsageError

PlayJobs = Callable[[Sequence[EpisodeJob]], RolloutBatch]
InformativeJobs = Callable[[RolloutBatch], Set[str]]
"""Returns the keys of the jobs with something to learn from, of all jobs so far."""


class FilteredBatch(NamedTuple):
    """Episodes of one step; statistics are taken of all, dropped groups included."""

    sampled: RolloutBatch
    """All episodes, in the order they were drawn."""
    trained_jobs: frozenset[str]
    """Keys of the jobs to train on."""
    counts: dict[str, float]
    """Metrics: `filter/drawn`, `filter/kept`, `filter/dropped` (nothing to learn), `filter/surplus`
    (of use, but the batch was full), all in problems; `filter/refills`; `filter/capped` (1
    if the cap left the batch short)."""

    def trains(self, row: Call) -> bool:
        """True if a row of `sampled` is trained on."""
        return job_of(row.episode) in self.trained_jobs


def job_of(episode: str) -> str:
    """Key of the job that an episode belongs to: `…#3` for the episodes `…#3` and `…#3/0.1`."""
    problem, _, sample = episode.rpartition("#")
    return f"{problem}#{sample.partition('/')[0]}"


def problems_needed(missing: int, useful: int, drawn: int, most: int) -> int:
    """Number of problems to draw for `missing` useful ones, if `useful` of `drawn` were useful."""
    return min(most, math.ceil(missing * drawn / useful)) if useful else most


def gather(
    stream: ProblemStream,
    task: Task,
    play: PlayJobs,
    *,
    refills: int,
    problems: int,
    samples: int,
    informative: InformativeJobs,
) -> FilteredBatch:
    """Play `samples` jobs of problems from `stream` until `problems` of them are useful.

    Problems whose rows all have advantage zero or are left out of the loss are replaced by fresh
    ones ("dynamic sampling" of DAPO, arXiv 2503.14476, section 3.2). Differences to the paper:
    advantages after the rule for truncated replies decide, not outcomes; as many problems are drawn
    as are likely to be needed, not a whole batch; at the cap the step goes on with a short batch.

    Fresh problems are drawn at most `refills` times; with 0 every problem counts as useful.
    `informative` is called for all jobs after every draw, since new jobs may change the statistics
    of the batch. If the cap is reached there are fewer problems than asked for, even none.
    """
    parts: list[RolloutBatch] = []
    groups: list[list[str]] = []
    useful: list[list[str]] = []
    rounds = 0
    while True:
        want = problems_needed(problems - len(useful), len(useful), len(groups), problems)
        # Numbered through the step: a problem that is drawn twice makes two groups.
        drawn = [
            [EpisodeJob(problem, number * samples + sample) for sample in range(samples)]
            for number, problem in enumerate(stream.take(task, want), start=len(groups))
        ]
        groups += [[job.key for job in jobs] for jobs in drawn]
        parts.append(play([job for jobs in drawn for job in jobs]))
        useful = groups
        if refills:
            jobs_with_signal = informative(concat_batches(parts))
            useful = [keys for keys in groups if not jobs_with_signal.isdisjoint(keys)]
        if len(useful) >= problems or rounds == refills:
            break
        rounds += 1
    chosen = useful[:problems]
    counts = {
        "filter/drawn": len(groups),
        "filter/kept": len(chosen),
        "filter/dropped": len(groups) - len(useful),
        "filter/surplus": len(useful) - len(chosen),
        "filter/refills": rounds,
        "filter/capped": len(chosen) < problems,
    }
    return FilteredBatch(
        concat_batches(parts),
        frozenset(key for group in chosen for key in group),
        {name: float(value) for name, value in counts.items()},
    )


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
