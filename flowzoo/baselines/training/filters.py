"""Filtering of sampled groups without variance, which have nothing to learn from.

Problems whose rows all have advantage zero or are left out of the loss are replaced by fresh ones
("dynamic sampling" of DAPO, arXiv 2503.14476, section 3.2). Differences to the paper: advantages
after the rule for truncated replies decide, not outcomes; as many problems are drawn as are likely
to be needed, not a whole batch; at the cap the step goes on with a short batch.
"""

import math
from collections.abc import Callable, Sequence, Set
from typing import NamedTuple

from flowzoo.agents.problems import ProblemStream
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, concat_batches
from flowzoo.envs import Call
from flowzoo.envs.tasks.task import Task

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
