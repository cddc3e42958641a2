import pytest

from flowzoo.envs import Episode, make_workflow
from flowzoo.envs.api.registry import WORKFLOWS, workflow_class
from flowzoo.envs.episode.recording import record
from tests.envs.playing import play_experts

MATH = [name for name in WORKFLOWS if "math" in workflow_class(name).kinds]


def test_golden_transcript(play):
    finished = play("single_v0", {"generator_0": ["\\boxed{14}"]})
    (call,) = finished.calls
    assert call.messages == (
        {"role": "user", "content": "Compute 2+3*4.\nPut the final answer in \\boxed{}."},
    )
    assert (call.reward, call.role_score, finished.score, finished.answer) == (1.0, 1.0, 1.0, "14")


@pytest.mark.parametrize(("preset", "score"), [("strict", 0.0), ("paper", 1.0)])
def test_strict_reads_boxes_only(play, preset, score):
    finished = play("single_v0", {"generator_0": ["The answer is 14."]}, preset=preset)
    assert finished.score == score
    assert (finished.calls[0].strict, finished.calls[0].lenient) == (False, True)


# An orchestrator plans, and a reasoner with tools is told of them.
OTHERS = [name for name in MATH if name not in ("orch_workers_v0", "reasoner_python_v0")]


@pytest.mark.parametrize("name", OTHERS)
def test_the_control_sees_the_same_text_as_the_first_role_of_the_others(name):
    prompts = []
    for workflow in (make_workflow("single_v0"), make_workflow(name)):
        episode = Episode(workflow, workflow.task.problem(5))
        prompts.append(episode.waiting[0].messages)
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("name", MATH)
@pytest.mark.parametrize("level", [1, 3, 5])
def test_experts_of_full_skill_always_score_and_without_skill_never(name, level):
    workflow = make_workflow(name, level=level)
    for index in range(10):
        for skill in (1.0, 0.0):
            episode = play_experts(workflow, workflow.task.problem(index), skill, index)
            assert record(episode).score == skill, (index, skill, episode.transcript())
