"""Conformance checks for workflows and tasks.

    from flowzoo.envs.testing import check_task, check_workflow
    check_workflow(MyWorkflow(task=make_task("math")))
    check_task(MyTask())

Every check takes a `Workflow` (or a `Task`) and raises `AssertionError` with the fault;
`check_workflow` and `check_task` run them all. They need no model.
"""

import pickle
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flowzoo.envs.external.workflow import ResetTask
from flowzoo.envs.readers.judgments import scripted_judge
from flowzoo.envs.tasks.golds import GoldSurvey
from flowzoo.envs.tasks.task import Task
from flowzoo.envs.testing import author_checks, slow_replies, workflow_checks
from flowzoo.envs.testing.author_checks import CreditTraits, credit_traits
from flowzoo.envs.testing.playthrough import HOSTILE, advance, guard, play_out, problem_at
from flowzoo.envs.testing.task_checks import TASK_CHECKS
from flowzoo.envs.workflow import Workflow

__all__ = [
    "CHECKS", "HOSTILE", "TASK_CHECKS", "CreditTraits", "advance", "check_task", "check_workflow",
    "credit_traits", "guard", "play_out", "problem_at",
]  # fmt: skip

CHECKS = (
    author_checks.check_declared,
    author_checks.check_yields,
    slow_replies.check_ends,  # first, since the others are slow with a script that does not end
    author_checks.check_methods,
    slow_replies.check_parsers,
    author_checks.check_credit,
    workflow_checks.check_forks,  # before the others, which say less about an impure script
    workflow_checks.check_api,
    workflow_checks.check_solo,
    workflow_checks.check_hostile,
    workflow_checks.check_phase_leaks,
    workflow_checks.check_gold_leaks,
    workflow_checks.check_truth_blindness,
    workflow_checks.check_seeds,
    workflow_checks.check_processes,
    workflow_checks.check_returns,
    workflow_checks.check_budget,
    workflow_checks.check_isolation,
)
"""All checks, in the order of `check_workflow`."""
_CHECKED: weakref.WeakKeyDictionary[type[Task], set[bytes]] = weakref.WeakKeyDictionary()
"""Pickled tasks that have passed in `check_workflow`, since many workflows share a task."""


def check_workflow(workflow: Workflow) -> CreditTraits:
    """Run every check, first the checks of the workflow's task.

    Returns:
        The roles whose replies have scores, and the credit rules and algorithms that go with them.

    Raises:
        AssertionError: naming the check and what is wrong, a violated requirement
            or an exception of the workflow.
    """
    if workflow.needs_judge and workflow.judge is None:
        workflow = replace(workflow, judge=scripted_judge)
    if not isinstance(workflow.task, ResetTask):  # external rewards are grades
        seen = _CHECKED.setdefault(type(workflow.task), set())
        try:
            state = pickle.dumps(workflow.task)
        except Exception:
            state = b""  # reported by check_task
        if state not in seen:
            check_task(workflow.task)
            seen.add(state)
    for check in CHECKS:
        _run_check(workflow.name, check, workflow)
    return credit_traits(workflow)


def check_task(task: Task) -> GoldSurvey | None:
    """Run every check of a task, and return its reference answers by sort with remarkable ones.

    It checks items by index and seed, disjoint splits, prompts without answers, parsing time for
    repetitive replies, a reference answer that scores 1, wrong and hostile answers that score and
    never raise, batches that grade like single answers, copies in this process and in another.

    Raises:
        AssertionError: naming the check and what is wrong, a violated requirement
            or an exception of the task.
    """
    for check in TASK_CHECKS:
        _run_check(f"task {task.name}", check, task)
    return task.golds()


def _run_check(name: str, check: Callable[[Any], None], subject: object) -> None:
    try:
        check(subject)
    except Exception as error:
        what = str(error) if isinstance(error, AssertionError) else repr(error)
        raise AssertionError(f"{name}, {check.__name__}: {what}") from error
