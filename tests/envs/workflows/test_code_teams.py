"""Coder and tester, and the code pair: feedback, role scores, every hole of the published bonus."""

import json

import pytest

from flowzoo.envs import Episode, Problem, make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.readers import read_tests
from flowzoo.envs.tasks.code.task import CodeTask, fence
from flowzoo.envs.workflows.code_pair import split_solution
from flowzoo.errors import UsageError
from flowzoo.reward.code.pair import find_function, is_wrapper
from flowzoo.reward.code.score import parse_code
from flowzoo.sandbox.program import CallTest, StdinTest
from tests.envs.playing import play_experts, play_turns
from tests.tables import read_tables

TABLES = read_tables(__file__)

TASK = CodeTask(level=1)
HELPER = "def aux(x):\n    return x + 3"
GOOD = "def f(x):\n    return aux(x) * 4"


META = {
    "entry": "f",
    "public": (CallTest((1,), 16),),
    "hidden": tuple(CallTest((n,), (n + 3) * 4) for n in (1, 2, 7, -9)),
    "solution": "def f(x):\n    return (x + 3) * 4",
}
PROBLEM = Problem("code", "train", 0, 0, "Write f(x): add 3, then multiply by 4.", "", META)
RIGHT = fence(META["solution"])
WRONG = fence("def f(x):\n    return x * 4 if x < 0 else (x + 3) * 4")


def play(*turns, **options):
    """Play turns of (helper, main) code; returns the record."""
    workflow = make_workflow("code_pair_v0", TASK, **options)
    replies = [{"main_0": fence(main), "helper_0": fence(helper)} for helper, main in turns]
    return play_turns(workflow, PROBLEM, *replies)


def body(*lines):
    return "\n".join(["def f(x):", *(f"    {line}" for line in lines)])


def test_a_good_pair_earns_all_of_it():
    done = play((HELPER, GOOD))
    assert done.facts["reward"] == pytest.approx(4.0)
    assert done.score == pytest.approx(1.0)
    assert done.returns == {"helper_0": done.score, "main_0": done.score}
    assert [call.role_score for call in done.calls] == pytest.approx([1.0, 1.0])
    assert done.facts["solved"]
    assert done.facts["cooperation"] == 1.5


@pytest.mark.parametrize("lines", TABLES["mentioned"])
def test_a_mentioned_or_never_called_aux_earns_nothing(lines):
    done = play((HELPER, body(*lines.split("\n"))))
    assert done.facts["passed"] == 1.0
    assert (done.facts["calls"], done.facts["depth"], done.facts["cooperation"]) == (0, 0, 0)


@pytest.mark.parametrize("lines", TABLES["ignored"])
def test_a_result_that_is_ignored_earns_nothing(lines):
    done = play((HELPER, body(*lines.split("\n"))))
    assert done.facts["passed"] == 1.0
    assert done.facts["depth"] == 0.0
    assert done.facts["cooperation"] == 0.0


@pytest.mark.parametrize("lines", TABLES["wrappers"])
def test_a_wrapper_earns_the_call_and_no_depth(lines):
    helper = "def aux(x):\n    return (x + 3) * 4"
    done = play((helper, body(*lines.split("\n"))))
    assert (done.facts["passed"], done.facts["calls"], done.facts["depth"]) == (1.0, 0.5, 0.0)


def test_a_main_that_asks_whether_it_is_watched_earns_nothing():
    lines = ['if "_aux_given" in globals():', "    return aux(x)", "aux(x)", "return (x + 3) * 4"]
    done = play((HELPER, body(*lines)))
    assert (done.facts["passed"], done.facts["cooperation"]) == (1.0, 0.0)


def test_a_helper_that_always_returns_the_same_earns_no_depth():
    done = play(("def aux(x):\n    return 0", body("return (x + 3) * 4 + aux(x)")))
    assert (done.facts["passed"], done.facts["calls"], done.facts["depth"]) == (1.0, 0.5, 0.0)


def test_task_success_and_cooperation_are_told_apart():
    alone = play(("x = 1", body("return (x + 3) * 4")))
    assert alone.facts["solved"]
    assert alone.facts["cooperation"] == 0.0
    assert alone.facts["reward"] == pytest.approx(0.6 + 0.5 + 1.0)
    half = play((HELPER, body("return aux(x) * 4 if x > 0 else 0")), max_turns=1)
    assert half.facts["passed"] == 0.75
    assert not half.facts["solved"]
    assert half.facts["cooperation"] == 1.5


def test_without_a_test_passed_there_is_no_bonus():
    done = play((HELPER, body("return aux(x)")), max_turns=1)
    assert done.facts["passed"] == 0.0
    assert done.facts["reward"] == pytest.approx(1.5)


def test_main_must_take_the_helpers_aux():
    done = play(("def aux(x):\n    return 0", f"{HELPER}\n{GOOD}"))
    assert done.facts["solved"]
    assert done.facts["cooperation"] == 0.0


def test_the_second_turn_shows_own_text_and_public_failures():
    wrong = body("return aux(x) * 5")
    episode = play((HELPER, wrong))
    chats = {turn.agent: turn.messages for turn in episode.waiting}
    for agent, own_texts, other in (("helper_0", HELPER, wrong), ("main_0", wrong, HELPER)):
        assert [m["role"] for m in chats[agent]] == ["user", "assistant", "user"]
        assert own_texts in chats[agent][1]["content"]
        assert all(other not in message["content"] for message in chats[agent])
        assert "A test fails: f(1): got 20" in chats[agent][2]["content"]
        assert "-9" not in chats[agent][2]["content"]
    plain = play((HELPER, wrong), feedback="plain")
    assert plain.waiting[0].messages[2]["content"] == "Write your function again."
    broken = play(("def aux(x", GOOD))
    helper_chat, main_chat = (turn.messages for turn in broken.waiting)
    assert "syntax error in line 1" in helper_chat[2]["content"]
    assert "syntax" not in main_chat[2]["content"]


def test_a_pair_that_passes_the_public_tests_stops():
    assert play((HELPER, GOOD)).facts["turns"] == 1
    again = play((HELPER, body("return aux(x) * 5")), (HELPER, GOOD))
    assert (again.facts["turns"], again.score) == (2, pytest.approx(1.0))


@pytest.mark.parametrize("level", [1, 2])
def test_the_reference_is_cut_in_two(level):
    task = CodeTask(level=level)
    cut = 0
    for index in range(60):
        meta = task.problem(index).meta
        helper, main = split_solution(meta["solution"], meta["entry"])
        assert "def aux(" in helper
        assert "aux(" in main
        assert find_function(parse_code(helper), "aux") is not None
        cut += not is_wrapper(find_function(parse_code(main), meta["entry"]))
    assert cut >= (60 if level == 1 else 10)


def test_experts_solve_alone_and_together():
    workflow = make_workflow("code_pair_v0", CodeTask(level="1-2"))
    for index in range(12):
        done = record(play_experts(workflow, workflow.task.problem(index)))
        assert done.facts["solved"]
        assert done.facts["calls"] == 0.5


def test_a_program_that_reads_stdin_is_no_problem_for_a_pair():
    stdin = Problem("code", "train", 0, 0, "Read n.", "", {"entry": None})
    with pytest.raises(RuntimeError, match="Use level=1 or 2"):
        Episode(make_workflow("code_pair_v0", TASK), stdin)


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


def test_deeply_nested_cases_are_unreadable_at_every_depth():
    """Some depths are still JSON to the parser, and too deep for anything that recurses."""
    for levels in (20, 25, 450, *range(480, 1000, 7), 100_000):
        nested = "[" * levels + "]" * levels
        for text in (nested, f'[{{"input": [{nested}], "output": 1}}]'):
            assert read_tests(text, "f") is None
    assert read_tests('[{"input": [[[1]]], "output": {"a": [1]}}]', "f") is not None
