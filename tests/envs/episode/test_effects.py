from dataclasses import dataclass
from typing import Any

import pytest

from flowzoo.envs import EquivalenceClasses, Grade, GradeResult
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.tasks.math import MathTask
from flowzoo.errors import UsageError


def test_results_come_in_the_order_of_the_jobs_whatever_their_kinds():
    task = MathTask()
    item, two = task.problem(0), task.problem(1)
    jobs: list[Any] = [
        (item, Grade(item.gold)),
        (item, EquivalenceClasses(("1", None, "1.0"))),
        (two, Grade(None)),
        (two, Grade(two.gold)),
        (two, EquivalenceClasses(())),
    ]
    results = resolve(task, jobs)
    assert results[1::3] == [(0, -1, 0), ()]
    assert [result[0] for result in (results[0], results[2], results[3])] == [1.0, 0.0, 1.0]
    assert resolve(task, jobs[::-1]) == results[::-1]
    assert resolve(task, []) == []


def test_a_grader_that_loses_answers_is_caught():
    @dataclass(frozen=True)
    class Lossy(MathTask):
        def grade_batch(self, problems: Any, answers: Any) -> list[GradeResult]:
            return super().grade_batch(problems, answers)[:-1]

    task = Lossy()
    with pytest.raises(UsageError, match="one result per Grade: got 1 for 2"):
        resolve(task, [(task.problem(0), Grade("1"))] * 2)
