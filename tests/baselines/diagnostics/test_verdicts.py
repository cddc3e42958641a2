"""Programs of a replay are judged once, by the run's own grades where it has them."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.diagnostics.blame import find_blame
from flowzoo.baselines.diagnostics.verdicts import Verdicts
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.script import GradeResult, Run, RunResult
from flowzoo.errors import UsageError
from studies.truth.scripted_runs import scripted_episodes

ONE, OTHER = (SimpleNamespace(id=name) for name in ("one", "other"))


class CountingTask:
    """A task that counts what it grades and runs."""

    name = "counting"

    def __init__(self, *, runs_programs: bool) -> None:
        self.runs_programs = runs_programs
        self.graded: list[Any] = []
        self.ran: list[str] = []

    def grade_batch(self, problems: Sequence[Any], answers: Sequence[Any]) -> list[GradeResult]:
        self.graded += answers
        return [GradeResult(0.5, "WA") for _ in answers]

    def classes_batch(self, problems: Sequence[Any], groups: Sequence[Any]) -> list[Any]:
        return [tuple(range(len(group))) for group in groups]

    def run_batch(self, runs: Sequence[Run]) -> list[RunResult]:
        self.ran += [run.source for run in runs]
        return [RunResult("AC", ()) for _ in runs]


def verdicts(*, runs_programs: bool = True, most: int = 100) -> tuple[CountingTask, Verdicts, Any]:
    """A counting task, the verdicts on its programs, and the task that asks for them."""
    task = CountingTask(runs_programs=runs_programs)
    workflow: Any = SimpleNamespace(task=task, runs_programs=True)
    results = Verdicts(workflow, most)
    assert results.workflow is not workflow
    return task, results, results.workflow.task


def test_a_program_is_judged_once_a_problem():
    task, results, asking = verdicts()
    problems, answers = [ONE, OTHER, ONE], ["a", "a", "a"]
    assert [grade.status for grade in asking.grade_batch(problems, answers)] == ["WA"] * 3
    asking.grade_batch(problems, answers)
    assert [ran.status for ran in asking.run_batch([Run("a"), Run("b"), Run("a")])] == ["AC"] * 3
    assert (task.graded, sorted(task.ran), results.graded) == (["a", "a"], ["a", "b"], 4)
    asking.classes_batch([ONE], [("a", "b", None)])
    asking.grade_batch([ONE], [None])
    assert results.graded == 6


def test_grades_of_saved_episodes_are_used():
    task, results, asking = verdicts()
    results.take(ONE, "a", 1.0)
    results.take(ONE, "a", 1.0)
    results.take(ONE, "b", None)
    results.take(ONE, None, 0.0)
    assert asking.grade_batch([ONE], ["a"]) == [GradeResult(1.0, "AC")]
    assert (task.graded, results.reused, results.graded) == ([], 1, 0)


def test_answers_that_are_no_programs_are_graded_by_the_task():
    task, results, asking = verdicts(runs_programs=False)
    results.take(ONE, "a", 1.0)
    asking.grade_batch([ONE, ONE], ["a", "a"])
    asking.run_batch([Run("b"), Run("b")])
    assert (task.graded, task.ran, results.reused, results.graded) == (["a", "a"], ["b"], 0, 1)


def test_a_replay_runs_a_bounded_number_of_programs():
    task, _, asking = verdicts(most=2)
    asking.run_batch([Run("a"), Run("b"), Run("b")])
    with pytest.raises(UsageError, match="at most 2 programs"):
        asking.run_batch([Run("c")])
    assert task.ran == ["a", "b"]


@pytest.mark.full
def test_the_planted_culprit_of_a_team_that_programs_is_blamed():
    vote = make_workflow("voting", "code", level=1)
    problems = distinct_problems(vote.task, "validation", 120)
    skills = ({"generator": 0.6, "aggregator": 0.95}, {"generator": 0.6, "aggregator": 0.2})
    before, now = (scripted_episodes(vote, problems, skill, n) for n, skill in enumerate(skills))
    blame = find_blame(vote, problems, before, now)
    assert blame is not None
    assert (blame.blamed, blame.fidelity) == ("aggregator", 1.0)
    assert blame.reused > 120
    assert 0 < blame.programs < 1_000
