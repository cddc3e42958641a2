"""The four workflows on task `code`: experts, wording, public tests as a tool, votes."""

from typing import Any

import pytest

from flowzoo.envs import Episode, EpisodeRecord, make_workflow
from flowzoo.envs.api.registry import WORKFLOWS, workflow_class
from flowzoo.envs.episode.recording import record
from flowzoo.envs.tasks.code.task import CodeTask, fence
from flowzoo.envs.testing import advance
from flowzoo.errors import UsageError
from tests.envs.playing import play_experts, play_lists

EVERY = [
    (name, preset)
    for name in WORKFLOWS
    if {"math", "code"} <= set(workflow_class(name).kinds)
    for preset in workflow_class(name).presets
]
TASK = CodeTask()
PROBLEM = TASK.problem(0)
RIGHT = fence(PROBLEM.gold)
WRONG = fence("def f(x):\n    return x - 12345")


def play(workflow: Any, replies: dict[str, list[str]]) -> EpisodeRecord:
    return play_lists(workflow, PROBLEM, replies)


@pytest.mark.parametrize(("name", "preset"), EVERY)
@pytest.mark.parametrize("level", [1, 3])
def test_experts_score_100_percent(name, preset, level):
    workflow = make_workflow(name, "code", preset=preset, level=level)
    for index in range(4):
        problem = workflow.task.problem(index, "validation")
        results = record(play_experts(workflow, problem, 1.0, index))
        assert results.score == 1.0
        assert all(call.role_score in (None, 1.0) for call in results.calls)
        assert "boxed" not in "".join(
            message["content"]
            for call in results.calls
            if call.role not in ("aggregator", "evaluator") and call.turn == 0
            for message in call.messages
        )


def test_an_unskilled_team_fails():
    for name, _ in EVERY:
        workflow = make_workflow(name, "code")
        assert record(play_experts(workflow, PROBLEM, skill=0.0)).score == 0.0


def test_code_takes_two_rounds_unless_told_otherwise():
    assert make_workflow("eval_opt_v0", "code").rounds == 2
    assert make_workflow("eval_opt_v0", "code", preset="paper").rounds == 2
    assert make_workflow("eval_opt_v0", "code", max_rounds=4).rounds == 4
    assert make_workflow("eval_opt_v0").rounds == 3
    assert make_workflow("eval_opt_v0", preset="dr_mas").rounds == 2


def test_the_evaluator_speaks_of_programs_and_points_at_a_line():
    workflow = make_workflow("eval_opt_v0", "code")
    attempt = Episode(workflow, PROBLEM)
    attempt.reply("generator_0", WRONG)
    advance(attempt)
    messages = attempt.waiting[0].observe()
    assert "Program:\n```python\ndef f(x):" in messages[0]["content"]
    output = workflow.responder(PROBLEM)("evaluator", messages)
    assert output == "return x - 12345 is wrong. \\boxed{Incorrect}"
    attempt.reply("evaluator_0", output)
    (turn,) = attempt.waiting
    last = turn.observe()[-1]["content"]
    assert last.endswith("Write the program again. Put the code in a ```python block.")


def test_public_tests_as_a_tool():
    workflow = make_workflow("eval_opt_v0", "code", tools="tests")
    replies = {"generator_0": [WRONG, RIGHT], "evaluator_0": ["no \\boxed{Incorrect}"]}
    results = play(workflow, replies)
    first = PROBLEM.meta["public"][0]
    prompt = results.calls[1].messages[0]["content"]
    assert prompt.startswith("The program passes 0 of 2 public tests.\nTest 1: WA, ")
    assert f"Test 1: WA, {first.args[0] - 12345}\n" in prompt
    for test in PROBLEM.meta["hidden"]:
        assert str(test.args[0] - 12345) not in prompt
    assert (results.score, results.facts["recovered"]) == (1.0, True)
    silent = play(
        workflow, {"generator_0": ["I pass.", RIGHT], "evaluator_0": ["\\boxed{Incorrect}"]}
    )
    assert silent.calls[1].messages[0]["content"].startswith("There is no program to run.")


def test_tools_need_programs():
    with pytest.raises(
        UsageError, match="runs programs, but the answers of task 'math' are not programs"
    ):
        make_workflow("eval_opt_v0", tools="tests")
    with pytest.raises(UsageError, match="unknown tools 'test'"):
        make_workflow("eval_opt_v0", "code", tools="test")


def test_majority_counts_programs_that_do_the_same():
    workflow = make_workflow("voting_v0", "code", aggregate="majority")
    again = RIGHT.replace("return", "x = x + 0\n    return")
    results = play(
        workflow, {"generator_0": [WRONG], "generator_1": [RIGHT], "generator_2": [again]}
    )
    assert (results.facts["chosen"], results.score) == (1, 1.0)
    results = play(
        workflow, {"generator_0": [RIGHT], "generator_1": [WRONG], "generator_2": [WRONG]}
    )
    assert (results.facts["chosen"], results.score) == (1, 0.0)


def test_the_aggregator_sees_programs_and_boxes_a_number():
    workflow = make_workflow("voting_v0", "code")
    results = play(
        workflow,
        {
            "generator_0": [WRONG],
            "generator_1": [f"<think>{WRONG}</think>{RIGHT}"],
            "generator_2": [f"So:\n{PROBLEM.gold}"],
            "aggregator_0": ["\\boxed{2}"],
        },
    )
    ballot = results.calls[3].messages[0]["content"]
    assert ballot.count("x - 12345") == 1
    assert ballot.endswith("Which program is right? Put its number in \\boxed{}.")
    assert (results.score, results.facts["recovered"]) == (1.0, True)
    assert [call.strict for call in results.calls] == [True, True, False, True]


def test_programs_within_prose_are_read_in_paper_alone_and_bare_ones_in_strict_too():
    for preset, score in (("strict", 0.0), ("paper", 1.0)):
        workflow = make_workflow("single_v0", "code", preset=preset)
        assert play(workflow, {"generator_0": [f"So:\n{PROBLEM.gold}"]}).score == score
        assert play(workflow, {"generator_0": [PROBLEM.gold]}).score == 1.0


def test_workers_and_synthesizer_write_programs():
    workflow = make_workflow("orch_workers_v0", "code", split_by="subtasks")
    results = record(play_experts(workflow, PROBLEM))
    assert results.score == 1.0
    worker, final = results.calls[1], results.calls[-1]
    assert worker.messages[0]["content"].endswith("Put its code in a ```python block.")
    assert final.messages[0]["content"].endswith("Write the final program.")


def test_published_takes_the_last_closed_block_alone():
    block = f"```python\n{PROBLEM.gold}\n```"
    for text, score in (
        (block, 1.0),
        (block.replace("python", ""), 1.0),
        (f"{block}\nIt prints:\n```text\n1\n```", 0.0),
        (block.removesuffix("```"), 0.0),
        (PROBLEM.gold, 0.0),
        ("```python\n```", 0.0),
    ):
        workflow = make_workflow("single_v0", "code", preset="published")
        assert play(workflow, {"generator_0": [text]}).score == score
