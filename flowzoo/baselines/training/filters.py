"""Which sampled groups are trained on: those from which something can be learnt.

A problem whose rows all have advantage zero, or are left out of the loss, takes a place in the
batch for nothing. With `zero_variance="drop"` such problems are replaced by fresh ones from the
stream, up to a cap ("dynamic sampling" of DAPO, arXiv 2503.14476, section 3.2). Different from it:
what counts are the algorithm's own advantages after the rule for truncated replies, not whether
outcomes differ; as many problems are drawn as are likely to be needed, not a whole batch again; and
where the cap is reached the step goes on with what it has, which is reported.

Everything that was played stays in `sampled`, so that statistics (accuracy, mu_k, F_k, b_k) are
taken before the filter. The stream's cursor is the only state: a run that saves `stream.cursor`
with its checkpoint draws the same problems again.
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
"""Of all that was played so far, the keys of the jobs with something to learn from."""


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """What becomes of problems with nothing to learn from.

    Raises:
        UsageError: an unknown choice, or a negative number.
    """

    zero_variance: ZeroVariance = "keep"
    """`drop`: problems with nothing to learn from are replaced by fresh ones."""
    refills: int = 10
    """How often in one step fresh problems are drawn at most."""

    def __post_init__(self) -> None:
        """Check the choices."""
        check_choice("choice of `zero_variance`", self.zero_variance, ZeroVariance)
        if self.refills < 0:
            raise UsageError(f"`refills` must be at least 0, got {self.refills}")


class FilteredBatch(NamedTuple):
    """The episodes of one step."""

    sampled: RolloutBatch
    """All that was played, dropped groups included, in the order it was drawn."""
    kept: frozenset[str]
    """Keys of the jobs to train on."""
    counts: dict[str, float]
    """Metrics: `filter/drawn`, `filter/kept`, `filter/dropped` (nothing to learn), `filter/surplus`
    (of use, but the batch was full), all in problems; `filter/refills`; `filter/capped` (1
    if the cap left the batch short)."""

    def trains(self, row: Call) -> bool:
        """Whether a row of `sampled` is trained on."""
        return job_of(row.episode) in self.kept


def job_of(episode: str) -> str:
    """Key of the job that an episode belongs to: `…#3` for the episodes `…#3` and `…#3/0.1`."""
    problem, _, sample = episode.rpartition("#")
    return f"{problem}#{sample.partition('/')[0]}"


def needed(missing: int, kept: int, drawn: int, most: int) -> int:
    """How many problems to draw to find `missing` more, given that `kept` of `drawn` were of use.

    At most `most`; while none had any, `most`.
    """
    return min(most, math.ceil(missing * drawn / kept)) if kept else most


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
    """Play `samples` jobs of problems from `stream` until `problems` of them are of use.

    Args:
        stream: where problems come from; its cursor moves on.
        task: makes them.
        play: plays jobs: `sample` of a `Rollout`, `TreeRollout` or `JointRollout`.
        config: the rule.
        problems: problems in a full batch.
        samples: jobs per problem.
        informative: which jobs are of use; asked again about all of them after every draw, since
            what is drawn may move the statistics of a whole batch. Only asked where the rule drops.

    Returns:
        What was played and what to train on; fewer problems than asked for, even none, if the cap
        was reached.
    """
    parts: list[RolloutBatch] = []
    groups: list[list[str]] = []
    useful: list[list[str]] = []
    rounds = 0
    while True:
        want = needed(problems - len(useful), len(useful), len(groups), problems)
        # Numbered through the step, so that a problem that is drawn twice makes two groups.
        drawn = [
            [EpisodeJob(problem, place * samples + sample) for sample in range(samples)]
            for place, problem in enumerate(stream.take(task, want), start=len(groups))
        ]
        groups += [[job.key for job in jobs] for jobs in drawn]
        parts.append(play([job for jobs in drawn for job in jobs]))
        useful = groups
        if config.zero_variance == "drop":
            found = informative(concat_batches(parts))
            useful = [keys for keys in groups if not found.isdisjoint(keys)]
        if len(useful) >= problems or config.zero_variance == "keep" or rounds == config.refills:
            break
        rounds += 1
    kept = useful[:problems]
    counts = {
        "filter/drawn": len(groups),
        "filter/kept": len(kept),
        "filter/dropped": len(groups) - len(useful),
        "filter/surplus": len(useful) - len(kept),
        "filter/refills": rounds,
        "filter/capped": len(kept) < problems,
    }
    return FilteredBatch(
        concat_batches(parts),
        frozenset(key for group in kept for key in group),
        {name: float(value) for name, value in counts.items()},
    )
