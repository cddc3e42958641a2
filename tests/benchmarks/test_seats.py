"""A plain learner in a seat that is a choice among replies."""

import numpy as np

from benchmarks.seats import PROBLEMS, expert_replies, learn
from flowzoo.envs.api.registry import make_workflow


def test_its_reward_rises_where_the_choice_decides():
    row = learn("single_v0", "generator_0", 600, seed=0)
    assert row["low"] > 0
    assert row == learn("single_v0", "generator_0", 600, seed=0) | {"seconds": row["seconds"]}


def test_replies_are_right_and_wrong_ones():
    workflow = make_workflow("single_v0")
    answers = [workflow.task.answer(reply) for reply in expert_replies(workflow, "generator_0")]
    problems = [workflow.task.problem(index) for index in range(PROBLEMS)]
    scores = np.array(
        [[grade.score for grade in workflow.task.grade_batch(problems, [answer] * PROBLEMS)]
         for answer in answers]
    )  # fmt: skip
    assert (scores.max(axis=0) == 1.0).all(), "every problem has a right reply"
    assert (scores.sum(axis=1) == 0).any(), "some reply is wrong everywhere"
