"""Majority votes over several episodes of one problem: the control at equal inference budget."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from flowzoo.agents.evaluation.intervals import interval
from flowzoo.agents.evaluation.summary import attempts_of, mean, stderr, tokens_per
from flowzoo.envs import EpisodeRecord, Problem, Workflow
from flowzoo.envs.workflows.voting import majority
from flowzoo.errors import DataError, UsageError, check_choice

Match = Literal["calls", "tokens"]
MATCHES: tuple[Match, ...] = get_args(Match)
"""Units in which the budgets of votes and of a workflow can be equal."""


def vote(
    workflow: Workflow, problems: Sequence[Problem], records: Sequence[EpisodeRecord]
) -> dict[str, Any]:
    """The accuracy of majority answers; ties go to the answer that was given first.

    The task says which answers are equal. Problems with unknown episodes have fewer votes.

    Returns:
        `samples` (most votes of a problem), `accuracy` (mean score of the chosen answers), its
        `stderr` and `interval` (None: a single score that is no 0 or 1), `scores` (in the order of
        `problems`), `right`, `problems`, `abstained` (problems of which no episode had an answer),
        `calls` and `tokens` per problem (None: not counted).
    """
    groups = attempts_of(records)
    order = [problem for problem in problems if problem.id in groups]
    if len(order) != len(groups) or not order:
        raise UsageError(
            f"a majority vote needs episodes of its own problems, got {len(order)} of {len(groups)}"
        )
    answers = [[record.answer for record in groups[problem.id]] for problem in order]
    chosen = [majority(classes) for classes in workflow.task.classes_batch(order, answers)]
    scores = [
        0.0 if pick is None else groups[problem.id][pick].score
        for problem, pick in zip(order, chosen, strict=True)
    ]
    calls = [call for record in records for call in record.calls]
    return {
        "samples": max(map(len, groups.values())),
        "accuracy": mean(scores),
        "stderr": stderr(scores),
        "interval": ends if math.isfinite((ends := interval(np.array(scores)))[0]) else None,
        "scores": scores,
        "right": sum(score >= 1.0 for score in scores),
        "problems": len(order),
        "abstained": sum(pick is None for pick in chosen),
        "calls": len(calls) / len(order),
        "tokens": tokens_per((call.output_tokens for call in calls), len(order)),
    }


def read_summary(path: Path) -> dict[str, Any]:
    """The summary of a finished evaluation, from its folder or its `summary.json`."""
    file = path / "summary.json" if path.is_dir() else path
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = "" if isinstance(error, FileNotFoundError) else f" ({error})"
        raise UsageError(
            f"no finished evaluation at {path}{why}: make one with `flowzoo eval WORKFLOW "
            f"--out {shlex.quote(str(path))}`"
        ) from error
    for needed in ("protocol", "calls"):  # a training run's has no calls
        if not isinstance(summary, dict) or needed not in summary:
            raise DataError(f"{file} is no summary of `flowzoo eval`: it has no {needed}")
    return summary


def cost_of(summary: Mapping[str, Any], match: Match) -> float | None:
    """Cost of an episode; None: tokens were not all counted."""
    return None if match == "tokens" and summary.get("uncounted") else summary.get(match)


def votes_for(budget: Mapping[str, object], match: Match, cost: float | None) -> int:
    """Number of votes, each of `cost`, for the `budget` of another evaluation's episode."""
    check_choice("budget", match, Match)
    available = cost_of(budget, match)
    if not (available and cost and available > 0 and cost > 0):
        values = " and ".join(
            f"{value:g}" if value else "not counted" for value in (available, cost)
        )
        raise UsageError(
            f"the {match} of the two evaluations cannot be compared: {values}, per episode. "
            "Policies that report no tokens are matched by calls."
        )
    return max(1, round(available / cost))
