"""The code pair, run for real: every hole of the published bonus, feedback, and the experts."""

import pytest

from flowzoo.envs import Episode, make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.tasks.code.task import CodeTask, fence
from flowzoo.envs.workflows.code_pair import split_solution
from flowzoo.reward.code.pair import find_function, is_wrapper
from flowzoo.reward.code.score import parse_code
from flowzoo.sandbox.program import CallTest
from tests.envs.playing import play_experts, play_turns
from tests.tables import read_tables

TABLES = read_tables(__file__)

TASK = CodeTask(level=1)
HELPER = "def aux(x):\n    return x + 3"
GOOD = "def f(x):\n    return aux(x) * 4"


@pytest.fixture(scope="module")
def problem():
    """`f(x) = (x + 3) * 4`, whatever the generator makes of its wording."""
    tests = tuple(CallTest((n,), (n + 3) * 4) for n in (1, 2, 7, -9))
    built = TASK.problem(0)
    meta = {**built.meta, "entry": "f", "public": tests[:1], "hidden": tests}
    meta["solution"] = "def f(x):\n    return (x + 3) * 4"
    return type(built)(
        "code", "train", 0, 0, "Write f(x): take x, add 3, then multiply by 4.", "", meta
    )


def play(problem, *turns, **options):
    """Play turns of (helper, main) code; returns the record."""
    workflow = make_workflow("code_pair_v0", TASK, **options)
    replies = [{"main_0": fence(main), "helper_0": fence(helper)} for helper, main in turns]
    return play_turns(workflow, problem, *replies)


def body(*lines):
    return "\n".join(["def f(x):", *(f"    {line}" for line in lines)])


def test_a_good_pair_earns_all_of_it(problem):
    done = play(problem, (HELPER, GOOD))
    assert done.facts["reward"] == pytest.approx(4.0)
    assert done.score == pytest.approx(1.0)
    assert done.returns == {"helper_0": done.score, "main_0": done.score}
    assert [call.role_score for call in done.calls] == pytest.approx([1.0, 1.0])
    assert done.facts["solved"]
    assert done.facts["cooperation"] == 1.5


@pytest.mark.parametrize("lines", TABLES["mentioned"])
def test_a_mentioned_or_never_called_aux_earns_nothing(problem, lines):
    done = play(problem, (HELPER, body(*lines.split("\n"))))
    assert done.facts["passed"] == 1.0
    assert (done.facts["calls"], done.facts["depth"], done.facts["cooperation"]) == (0, 0, 0)


@pytest.mark.parametrize("lines", TABLES["ignored"])
def test_a_result_that_is_ignored_earns_nothing(problem, lines):
    done = play(problem, (HELPER, body(*lines.split("\n"))))
    assert done.facts["passed"] == 1.0
    assert done.facts["depth"] == 0.0
    assert done.facts["cooperation"] == 0.0


@pytest.mark.parametrize("lines", TABLES["wrappers"])
def test_a_wrapper_earns_the_call_and_no_depth(problem, lines):
    helper = "def aux(x):\n    return (x + 3) * 4"
    done = play(problem, (helper, body(*lines.split("\n"))))
    assert (done.facts["passed"], done.facts["calls"], done.facts["depth"]) == (1.0, 0.5, 0.0)


def test_a_main_that_asks_whether_it_is_watched_earns_nothing(problem):
    lines = ['if "_aux_given" in globals():', "    return aux(x)", "aux(x)", "return (x + 3) * 4"]
    done = play(problem, (HELPER, body(*lines)))
    assert (done.facts["passed"], done.facts["cooperation"]) == (1.0, 0.0)


def test_a_helper_that_always_returns_the_same_earns_no_depth(problem):
    done = play(problem, ("def aux(x):\n    return 0", body("return (x + 3) * 4 + aux(x)")))
    assert (done.facts["passed"], done.facts["calls"], done.facts["depth"]) == (1.0, 0.5, 0.0)


def test_task_success_and_cooperation_are_told_apart(problem):
    alone = play(problem, ("x = 1", body("return (x + 3) * 4")))
    assert alone.facts["solved"]
    assert alone.facts["cooperation"] == 0.0
    assert alone.facts["reward"] == pytest.approx(0.6 + 0.5 + 1.0)
    half = play(problem, (HELPER, body("return aux(x) * 4 if x > 0 else 0")), max_turns=1)
    assert half.facts["passed"] == 0.75
    assert not half.facts["solved"]
    assert half.facts["cooperation"] == 1.5


def test_without_a_test_passed_there_is_no_bonus(problem):
    done = play(problem, (HELPER, body("return aux(x)")), max_turns=1)
    assert done.facts["passed"] == 0.0
    assert done.facts["reward"] == pytest.approx(1.5)


def test_main_must_take_the_helpers_aux(problem):
    done = play(problem, ("def aux(x):\n    return 0", f"{HELPER}\n{GOOD}"))
    assert done.facts["solved"]
    assert done.facts["cooperation"] == 0.0


def test_the_second_turn_shows_own_text_and_public_failures(problem):
    wrong = body("return aux(x) * 5")
    episode = play(problem, (HELPER, wrong))
    chats = {turn.agent: turn.messages for turn in episode.waiting}
    for agent, own_texts, other in (("helper_0", HELPER, wrong), ("main_0", wrong, HELPER)):
        assert [m["role"] for m in chats[agent]] == ["user", "assistant", "user"]
        assert own_texts in chats[agent][1]["content"]
        assert all(other not in message["content"] for message in chats[agent])
        assert "A test fails: f(1): got 20" in chats[agent][2]["content"]
        assert "-9" not in chats[agent][2]["content"]
    plain = play(problem, (HELPER, wrong), feedback="plain")
    assert plain.waiting[0].messages[2]["content"] == "Write your function again."
    broken = play(problem, ("def aux(x", GOOD))
    helper_chat, main_chat = (turn.messages for turn in broken.waiting)
    assert "syntax error in line 1" in helper_chat[2]["content"]
    assert "syntax" not in main_chat[2]["content"]


def test_a_pair_that_passes_the_public_tests_stops(problem):
    assert play(problem, (HELPER, GOOD)).facts["turns"] == 1
    again = play(problem, (HELPER, body("return aux(x) * 5")), (HELPER, GOOD))
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
    stdin = type(TASK.problem(0))("code", "train", 0, 0, "Read n.", "", {"entry": None})
    with pytest.raises(RuntimeError, match="Use level=1 or 2"):
        Episode(make_workflow("code_pair_v0", TASK), stdin)
