"""The four workflows on task `code`: experts, wording, public tests as a tool, votes."""

from dataclasses import replace
from typing import Any

import pytest

from flowzoo.envs import Episode, EpisodeRecord, make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.script import RunCase, RunResult
from flowzoo.envs.tasks.code.task import CodeTask, fence
from flowzoo.envs.testing import advance
from flowzoo.envs.workflows.tested import failure_report
from flowzoo.errors import UsageError
from flowzoo.sandbox.program import CallTest, CheckTest, StdinTest
from tests.envs.playing import play_experts, play_lists

TASK = CodeTask()
PROBLEM = TASK.problem(0)
RIGHT = fence(PROBLEM.gold)
WRONG = fence("def f(x):\n    return x - 12345")


def play(workflow: Any, replies: dict[str, list[str]]) -> EpisodeRecord:
    return play_lists(workflow, PROBLEM, replies)


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


PROMPT = TASK.prompt(PROBLEM)
TEST = PROBLEM.meta["public"][0]


def failed(passed: int, *tests: Any) -> str:
    """The report on `WRONG`, whose output is the argument less 12345."""
    lines = [f"The last program passes {passed} of {len(tests)} public tests."]
    for number, test in enumerate(tests[:3], 1):
        (argument,) = test.args
        lines.append(
            f"Test {number}: {PROBLEM.meta['entry']}({argument}), expected {test.expected}: got "
            f"{argument - 12345}"
        )
    return "\n".join(lines)


def test_a_program_that_fails_public_tests_starts_another_round():
    workflow = make_workflow("single_v0", "code", test_rounds=3)
    finished = play(workflow, {"generator_0": ["I pass.", WRONG, RIGHT]})
    assert [call.messages[0]["content"] for call in finished.calls] == [
        PROMPT,
        f"The last reply had no program to run.\n\n{PROMPT}",
        f"{failed(0, *PROBLEM.meta['public'])}\n\n{PROMPT}",
    ]
    assert [len(call.messages) for call in finished.calls] == [1, 1, 1]
    assert (finished.score, finished.facts["test_rounds"]) == (1.0, 3)
    assert [call.reward for call in finished.calls] == [0.0, 1.0, 1.0]  # the first abstained
    assert play(workflow, {"generator_0": [RIGHT]}).facts["test_rounds"] == 1
    lost = play(workflow, {"generator_0": [WRONG] * 3})
    assert (lost.score, lost.facts["test_rounds"]) == (0.0, 3)
    assert (
        "test_rounds"
        not in play(make_workflow("single_v0", "code"), {"generator_0": [WRONG]}).facts
    )


def test_three_failing_tests_are_shown_and_none_that_is_hidden():
    more = tuple(CallTest((number,), 7) for number in range(5))
    problem = replace(PROBLEM, meta={**PROBLEM.meta, "public": more})
    workflow = make_workflow("single_v0", "code", test_rounds=2)
    texts = {"generator_0": [WRONG, RIGHT]}
    prompt = play_lists(workflow, problem, texts).calls[1].messages[0]["content"]
    assert prompt == f"{failed(0, *more)}\n\n{PROMPT}"
    assert "Test 4" not in prompt
    untested = replace(PROBLEM, meta={**PROBLEM.meta, "public": ()})
    assert len(play_lists(workflow, untested, {"generator_0": [WRONG]}).calls) == 1


def test_every_round_of_voting_and_of_evaluation_starts_anew():
    texts = {f"generator_{slot}": [WRONG, RIGHT] for slot in range(3)}
    voting = make_workflow("voting_v0", "code", test_rounds=2)
    finished = play(voting, {**texts, "aggregator_0": ["\\boxed{1}"] * 2})
    report = failed(0, *PROBLEM.meta["public"])
    assert [call.messages[0]["content"] for call in finished.calls[4:7]] == [
        f"{report}\n\n{PROMPT}"
    ] * 3
    assert "The last program" not in finished.calls[7].messages[0]["content"]
    assert [call.reward for call in finished.calls] == [1.0] * 8
    rubric = play(
        make_workflow("voting_v0", "code", test_rounds=2, credit="rubric"),
        {**texts, "aggregator_0": ["\\boxed{1}"] * 2},
    )
    assert [call.reward for call in rubric.calls] == [-0.5] * 3 + [1.0] + [1.0] * 4
    for history, shown in (("latest", 0), ("shared", 1), ("own", 0)):
        loop = make_workflow("eval_opt_v0", "code", test_rounds=2, history=history)
        accept = {"generator_0": [WRONG, RIGHT], "evaluator_0": ["\\boxed{Correct}"] * 2}
        finished = play(loop, accept)
        third, fourth = (call.messages for call in finished.calls[2:])
        assert third == ({"role": "user", "content": f"{report}\n\n{PROMPT}"},)
        assert sum("The last program" in message["content"] for message in fourth) == shown
        assert (finished.score, finished.facts["test_rounds"]) == (1.0, 2)


def test_tests_of_every_style_are_shown():
    for test, line in (
        (StdinTest("1\n", "2\n"), "Test 1: input '1\\n', expected '2\\n': got 3"),
        (CallTest(("a",), [1], {"k": 2}), "Test 1: f('a', k=2), expected [1]: got 3"),
        (CheckTest("assert f(1) == 2"), "Test 1: assert f(1) == 2: got RE why"),
        (StdinTest("1" * 999, ""), f"Test 1: input '{'1' * 293}: got 3"),
    ):
        is_check = isinstance(test, CheckTest)
        case = RunCase("RE", "", "why") if is_check else RunCase("WA", "3", "")
        assert failure_report((test,), RunResult("WA", (case,)), "f").splitlines()[1:] == [line]


def test_rounds_of_tests_need_programs():
    for name in ("single_v0", "voting_v0", "eval_opt_v0"):
        with pytest.raises(UsageError, match="test_rounds=2 runs programs, but the answers of"):
            make_workflow(name, test_rounds=2)


def test_new_settings_leave_the_digests_of_earlier_episodes():
    for name in ("single_v0", "voting_v0", "eval_opt_v0", "orch_workers_v0"):
        workflow = make_workflow(name, "code")
        later = {"test_rounds", "history", "verdicts", "mode"}
        assert not later & workflow.spec.keys()
    assert make_workflow("eval_opt_v0", history="own").spec["history"] == "own"
