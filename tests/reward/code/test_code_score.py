"""Scores of programs in a real sandbox."""

import pytest

from flowzoo.errors import UsageError
from flowzoo.reward.code.score import CodeScore, score_programs
from flowzoo.sandbox.program import CallTest, Limits, Program, StdinTest

DOUBLE = tuple(CallTest((n,), 2 * n) for n in range(4))


def test_all_and_fraction():
    programs = [
        Program("def f(x):\n    return x * 2", "f"),
        Program("def f(x):\n    return x * 2 if x < 3 else 0", "f"),
        None,
        Program("def f(x):\n    return x / 0", "f"),
        Program("def g(x):\n    return x * 2", "f"),
        Program("def f(x:\n", "f"),
    ]
    tests = [DOUBLE] * len(programs)
    strict = score_programs(programs, tests)
    assert [score for score, _ in strict] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [status for _, status in strict] == ["AC", "WA", "none", "RE", "RE", "CE"]
    shares = [score for score, _ in score_programs(programs, tests, scoring="fraction")]
    assert shares == [1.0, 0.75, 0.0, 0.0, 0.0, 0.0]


def test_programs_that_print_are_compared_by_words():
    tests = [StdinTest("2 3\n", "5\n")]
    programs = [
        Program("a, b = map(int, input().split())\nprint(a + b, end='')"),
        Program("print(6)"),
    ]
    assert score_programs(programs, [tests] * 2) == [CodeScore(1.0, "AC"), CodeScore(0.0, "WA")]


def test_limits_count():
    looping = Program("while True:\n    pass")
    scores = score_programs([looping], [[StdinTest("", "")]], limits=Limits(cpu_s=0.2, wall_s=2.0))
    assert scores == [CodeScore(0.0, "TLE")]


def test_no_programs_need_no_sandbox():
    assert score_programs([None], [DOUBLE], sandbox="docker") == [CodeScore(0.0, "none")]


def test_wrong_arguments():
    with pytest.raises(UsageError, match="reward of task 'code' 'half'"):
        score_programs([None], [DOUBLE], scoring="half")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="sandbox backend 'jail'"):
        score_programs([Program("")], [DOUBLE], sandbox="jail")  # type: ignore[arg-type]
