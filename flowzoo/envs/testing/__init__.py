"""Conformance checks for workflows, ours and yours.

    from flowzoo.envs.testing import check_workflow
    check_workflow(MyWorkflow(task=make_task("math")))

Every check takes a `Workflow` and raises `AssertionError` saying what is wrong; `check_workflow`
runs them all. They need no model.
"""

from __future__ import annotations

from flowzoo.envs.testing.interfaces import (
    HOSTILE,
    check_api,
    check_hostile,
    check_parallel,
    check_solo,
)
from flowzoo.envs.testing.leaks import check_gold_leaks, check_phase_leaks, check_truth_blindness
from flowzoo.envs.testing.playthrough import (
    advance,
    guarded,
    play_out,
    problem_at,
    sampled_reply,
    strict_warnings,
)
from flowzoo.envs.testing.runs import (
    check_budget,
    check_forks,
    check_isolation,
    check_returns,
    check_seeds,
)
from flowzoo.envs.workflow import Workflow

__all__ = [
    "CHECKS",
    "HOSTILE",
    "advance",
    "check_api",
    "check_budget",
    "check_forks",
    "check_gold_leaks",
    "check_hostile",
    "check_isolation",
    "check_parallel",
    "check_phase_leaks",
    "check_returns",
    "check_seeds",
    "check_solo",
    "check_truth_blindness",
    "check_workflow",
    "guarded",
    "play_out",
    "problem_at",
    "sampled_reply",
    "strict_warnings",
]

CHECKS = (
    check_api,
    check_parallel,
    check_solo,
    check_hostile,
    check_phase_leaks,
    check_gold_leaks,
    check_truth_blindness,
    check_seeds,
    check_returns,
    check_budget,
    check_forks,
    check_isolation,
)
"""All checks, in the order `check_workflow` runs them."""


def check_workflow(workflow: Workflow) -> None:
    """Run every check.

    Raises:
        AssertionError: naming the check and what is wrong, be it a requirement that does not hold
            or an exception of the workflow.
    """
    for check in CHECKS:
        try:
            check(workflow)
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else repr(error)
            raise AssertionError(f"{workflow.name}, {check.__name__}: {what}") from error
