"""Filtering of sampled groups without variance, which have nothing to learn from.

With `zero_variance="drop"`, problems whose rows all have advantage zero or are left out of the loss
are replaced by fresh ones from the stream, up to a cap ("dynamic sampling" of DAPO, arXiv
2503.14476, section 3.2). Differences to the paper: the algorithm's advantages after the rule for
truncated replies decide, not the outcomes; as many problems are drawn as are likely to be needed,
not a whole batch; at the cap the step goes on with a short batch, which is reported.

All episodes stay in `sampled`, so that statistics (accuracy, mu_k, F_k, b_k) are taken before the
filter. The stream's cursor is the only state: a run that saves it draws the same problems again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, concat_batches
from flowzoo.envs import Call
from flowzoo.envs.tasks.task import Task
from flowzoo.errors import UsageError, check_choice

ZeroVariance = Literal["keep", "drop"]
PlayJobs = Callable[[Sequence[EpisodeJob]], RolloutBatch]
InformativeJobs = Callable[[RolloutBatch], Set[str]]
"""Returns the keys of the jobs with something to learn from, of all jobs so far."""


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """Treatment of problems with nothing to learn from.

    Raises:
        UsageError: an unknown choice, or a negative number.
    """

    zero_variance: ZeroVariance = "keep"
    """`drop`: problems with nothing to learn from are replaced by fresh ones."""
    refills: int = 10
    """Most times that fresh problems are drawn in one step."""

    def __post_init__(self) -> None:
        """Check the choices."""
        check_choice("choice of `zero_variance`", self.zero_variance, ZeroVariance)
        if self.refills < 0:
            raise UsageError(f"`refills` must be at least 0, got {self.refills}")


class FilteredBatch(NamedTuple):
    """The episodes of one step."""

    sampled: RolloutBatch
    """All episodes, of dropped groups too, in the order they were drawn."""
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


def needed(missing: int, useful: int, drawn: int, most: int) -> int:
    """Number of problems to draw for `missing` useful ones, if `useful` of `drawn` were useful.

    At most `most`, which is also the number while none was useful.
    """
    return min(most, math.ceil(missing * drawn / useful)) if useful else most


def gather(
    stream: ProblemStream,
    task: Task,
    play: PlayJobs,
    config: FilterConfig,
    *,
    problems: int,
    samples: int,
    informative: InformativeJobs,
) -> FilteredBatch:
    """Play `samples` jobs of problems from `stream` until `problems` of them are useful.

    Args:
        stream: source of problems; its cursor advances.
        task: task that makes the problems.
        play: plays jobs: `sample` of a `Rollout`, `TreeRollout` or `JointRollout`.
        config: the rule.
        problems: problems in a full batch.
        samples: jobs per problem.
        informative: returns the useful jobs; called for all jobs after every draw, since new jobs
            may change the statistics of the batch, and only if the rule drops any.

    Returns:
        All episodes and the jobs to train on; fewer problems than asked for, even none, if the cap
        was reached.
    """
    parts: list[RolloutBatch] = []
    groups: list[list[str]] = []
    useful: list[list[str]] = []
    rounds = 0
    while True:
        want = needed(problems - len(useful), len(useful), len(groups), problems)
        # Numbered through the step: a problem that is drawn twice makes two groups.
        drawn = [
            [EpisodeJob(problem, number * samples + sample) for sample in range(samples)]
            for number, problem in enumerate(stream.take(task, want), start=len(groups))
        ]
        groups += [[job.key for job in jobs] for jobs in drawn]
        parts.append(play([job for jobs in drawn for job in jobs]))
        useful = groups
        if config.zero_variance == "drop":
            jobs_with_signal = informative(concat_batches(parts))
            useful = [keys for keys in groups if not jobs_with_signal.isdisjoint(keys)]
        if len(useful) >= problems or config.zero_variance == "keep" or rounds == config.refills:
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
