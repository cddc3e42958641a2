"""The writing pair: one phase, one reward, the role scores, and the expert of each writer."""

import pytest

from flowzoo.envs import Episode, make_workflow
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.tasks.writing import split_texts
from flowzoo.errors import UsageError
from tests.envs.playing import play_turns


def written(first, second, **options):
    workflow = make_workflow("writing_pair_v0", **options)
    replies = {"writer_1": second, "writer_0": first}
    return play_turns(workflow, workflow.task.problem(0), replies)


def model_pair(**options):
    task = make_workflow("writing_pair_v0", **options).task
    return split_texts(task.problem(0).meta["solution"])


@pytest.mark.parametrize("form", ["tldr", "expansion"])
def test_both_writers_are_paid_for_the_pair(form):
    done = written(*model_pair(form=form), form=form)
    assert done.score > 0.7
    assert done.returns == {"writer_0": done.score, "writer_1": done.score}
    assert done.facts["reward"] == pytest.approx(3 * done.score)
    assert [call.role_score for call in done.calls] == [
        done.facts["grounding_0"], done.facts["grounding_1"],
    ]  # fmt: skip
    assert done.calls[0].messages != done.calls[1].messages
    assert split_texts(done.answer) == model_pair(form=form)


def test_the_pair_earns_nothing_if_one_writes_nonsense_and_the_role_scores_say_who():
    first, _ = model_pair()
    done = written(first, "zorp blick fanta wug dax quill morb trask vinto plome " * 6)
    assert done.score == 0.0
    assert [call.role_score for call in done.calls] == [1.0, 0.0]


def test_an_empty_text_abstains():
    first, _ = model_pair()
    done = written(first, "<think>hm")
    assert done.score == 0.0
    assert [call.strict for call in done.calls] == [True, False]
    assert done.calls[1].role_score == 0.0


def test_under_the_published_reward_the_role_score_is_the_pairs():
    done = written(*model_pair(), reward="published")
    assert done.score > 0.7
    assert [call.role_score for call in done.calls] == [done.score] * 2


def test_the_expert_writes_the_text_that_its_instruction_asks_for():
    workflow = make_workflow("writing_pair_v0")
    problem = workflow.task.problem(0)
    episode, respond = Episode(workflow, problem), workflow.responder(problem)
    message = [respond("writer", turn.observe()) for turn in episode.waiting]
    assert tuple(message) == split_texts(problem.meta["solution"])


def test_other_tasks_are_refused():
    with pytest.raises(UsageError, match="supports tasks of kind writing"):
        make_workflow("writing_pair_v0", MathTask())
