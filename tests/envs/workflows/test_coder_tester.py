"""Coder and tester: tests as JSON, mismatches, role scores that need a reference, the end."""

import json

import pytest

from flowzoo.envs import Problem, make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.readers import read_tests
from flowzoo.envs.tasks.code.task import CodeTask, fence
from flowzoo.errors import UsageError
from flowzoo.sandbox.program import CallTest, StdinTest
from tests.envs.playing import play_experts, play_turns

TASK = CodeTask(level=1)
META = {
    "entry": "f",
    "public": (CallTest((1,), 16),),
    "hidden": tuple(CallTest((n,), (n + 3) * 4) for n in (1, 2, 7, -9)),
    "solution": "def f(x):\n    return (x + 3) * 4",
}
PROBLEM = Problem("code", "train", 0, 0, "Write f(x): add 3, then multiply by 4.", "", META)
RIGHT = fence(META["solution"])
WRONG = fence("def f(x):\n    return x * 4 if x < 0 else (x + 3) * 4")


def cases(*pairs):
    return json.dumps([{"input": [given], "output": out} for given, out in pairs])


def run(*turns, problem=PROBLEM, **options):
    """Play turns of (coder, tester); returns the record, or the episode if it goes on."""
    workflow = make_workflow("coder_tester_v0", TASK, **options)
    replies = [{"coder_0": coder, "tester_0": tester} for coder, tester in turns]
    return play_turns(workflow, problem, *replies)


def test_they_stop_when_the_program_passes_the_tests():
    done = run((RIGHT, cases((1, 16), (2, 20))))
    assert done.score == 1.0
    assert done.returns == pytest.approx({"coder_0": 2.0, "tester_0": 2.0})
    assert done.facts == {
        "turns": 1, "agreed": True, "solved": True, "fooled": False, "tests": 2, "valid_tests": 1.0,
    }  # fmt: skip


def test_agreement_on_a_wrong_program_is_not_noticed_before_the_end():
    done = run((WRONG, cases((1, 16))))
    assert (done.score, done.facts["fooled"], done.facts["solved"]) == (0.75, True, False)


def test_mismatches_are_shown_to_both_and_hidden_tests_to_nobody():
    episode = run((WRONG, cases((-1, 8), (1, 16))))
    for turn in episode.waiting:
        text = turn.messages[0]["content"]
        assert 'Mismatches:\n{"input": [-1], "output": 8}: got -4' in text
        assert "x * 4 if x < 0" in text
        assert '{"input": [1], "output": 16}' in text
        assert "-9" not in text
    silent = run(("no code", "no tests"))
    for turn in silent.waiting:
        assert "(could not be read)" in turn.messages[0]["content"]
        assert "Nothing could be run." in turn.messages[0]["content"]


def test_role_scores_and_local_rewards():
    done = run((WRONG, cases((-1, 8), (1, 17))), (RIGHT, cases((1, 16))))
    assert [call.role_score for call in done.calls] == [0.75, 0.5, 1.0, 1.0]
    assert done.facts["valid_tests"] == pytest.approx(2 / 3)
    locals_ = [call.parts["local"] for call in done.calls]
    assert locals_ == pytest.approx([0.2 + 0.8 * 0.75, 0.2 + 0.8 * 0.5, 1.0, 1.0])
    for code, local in (("no code", 0.0), (fence("def f(x"), 0.0), (fence("f = 1 / 0"), 0.1)):
        failed = run((code, cases((1, 16))), max_turns=1)
        assert failed.calls[0].parts["local"] == pytest.approx(local)


def test_without_a_reference_the_tester_has_no_role_score_and_local_credit_says_so():
    problem = Problem("code", "train", 0, 1, PROBLEM.text, "", {**META, "solution": ""})
    done = run((RIGHT, cases((1, 16))), problem=problem, credit="team")
    assert [call.role_score for call in done.calls] == [1.0, None]
    assert "valid_tests" not in done.facts
    assert "local" not in done.calls[1].parts
    with pytest.raises(UsageError, match="recorded none for role 'tester'"):
        run((RIGHT, cases((1, 16))), problem=problem)


def test_reading_tests():
    assert read_tests(cases((1, 2)), "f") == (
        CallTest((1,), 2, compare=read_tests(cases((0, 0)), "f")[0].compare),
    )
    assert read_tests('Here:\n```json\n[{"input": "1", "output": "2"}]\n```', None) == (
        StdinTest("1", "2"),
    )
    assert len(read_tests(cases(*((n, n) for n in range(20))), "f")) == 8


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "[1]", "null", '[{"input": 1, "output": 2}]', '[{"input": [1]}]',
        '[{"input": "1", "output": "2"}]', cases((1, 1)) + " and more", "[" * 50_000,
        '[{"input": [' + "[" * 30 + "]" * 30 + '], "output": 1}]',
        '[{"input": [1], "output": ' + "9" * 9_000 + "}]", "<think>" + cases((1, 1)),
    ],
)  # fmt: skip
def test_what_is_no_list_of_tests_is_unreadable(text):
    assert read_tests(text, "f") is None


def test_odd_values_are_run():
    """JSON can hold values that Python programs seldom see."""
    odd = '[{"input": ["\\ud800\\u0000"], "output": NaN}, {"input": [1e999], "output": null}]'
    assert not run((RIGHT, odd)).done


@pytest.mark.parametrize("level", [1, 3])
def test_experts_play(level):
    workflow = make_workflow("coder_tester_v0", CodeTask(level=level))
    for index in range(6):
        problem = workflow.task.problem(index)
        done = record(play_experts(workflow, problem))
        assert (done.score, done.facts["turns"], done.facts["valid_tests"]) == (1.0, 1, 1.0)
        tester = workflow.expert("tester", [], problem, problem.rng(), False)
        assert tester != workflow.expert("tester", [], problem, problem.rng(), True)


def test_deeply_nested_cases_are_unreadable_at_every_depth():
    """Some depths are still JSON to the parser, and too deep for anything that recurses."""
    for levels in (20, 25, 450, *range(480, 1000, 7), 100_000):
        nested = "[" * levels + "]" * levels
        for text in (nested, f'[{{"input": [{nested}], "output": 1}}]'):
            assert read_tests(text, "f") is None
    assert read_tests('[{"input": [[[1]]], "output": {"a": [1]}}]', "f") is not None
