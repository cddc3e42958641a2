"""Mistakes of the caller raise at once; programs of a model never raise."""

from typing import Any

import pytest

from flowzoo.errors import UsageError
from flowzoo.sandbox import CallTest, CheckTest, Limits, Program, Sandbox, StdinTest
from flowzoo.sandbox.box.job import MOST_TEST, digest_tests, job_key, make_limits, make_plans

PRINT, CALL = Program("print(1)"), Program("def f(x): return x", "f")
STDIN, SAME, CHECK = StdinTest("", "1"), CallTest((1,), 1), CheckTest("assert f(1) == 1")


@pytest.mark.parametrize(
    ("programs", "tests", "message"),
    [
        ("print(1)", [[STDIN]], "`programs` must be a list, got str"),
        (PRINT, [[STDIN]], "`programs` must be a list, got Program"),
        ([PRINT], STDIN, "`tests` must be a list, got StdinTest"),
        ([PRINT], [STDIN], r"tests\[0\] must be a list of tests, got StdinTest"),
        ([PRINT, PRINT], [[STDIN]], "got 2 programs and 1 lists of tests"),
        ([PRINT, PRINT], [[STDIN], []], r"tests\[1\] is empty"),
        (["print(1)"], [[STDIN]], r"programs\[0\] must be a Program, got str: wrap"),
        ([Program(b"1")], [[STDIN]], r"programs\[0\].source must be a str"),  # type: ignore[arg-type]
        ([Program("", "f()")], [[SAME]], r"programs\[0\].entry must be the name of a function"),
        ([PRINT], [[SAME]], r"tests\[0\]\[0\] is a CallTest, .* this one has none"),
        ([CALL], [[SAME, STDIN]], r"tests\[0\]\[1\] is a StdinTest, .* has the entry 'f'"),
        ([PRINT], [["1"]], r"tests\[0\]\[0\] must be a StdinTest, CallTest or CheckTest, got str"),
        (
            [CALL],
            [[CallTest((object(),), 1)]],
            r"tests\[0\]\[0\] must contain only plain data .* object",
        ),
        ([CALL], [[CallTest((1,), iter([]))]], r"must contain only plain data .* list_iterator"),
        ([CALL], [[CallTest(1, 1)]], r"tests\[0\]\[0\] has a field of a wrong type"),  # type: ignore[arg-type]
        ([PRINT], [[StdinTest(1, "1")]], "has a field of a wrong type"),  # type: ignore[arg-type]
        ([PRINT], [[StdinTest("\ud800", "1")]], "not UTF-8"),
        ([PRINT], [[StdinTest("", "\ud800")]], "not UTF-8"),
        ([PRINT], [[StdinTest("x" * (MOST_TEST + 1), "1")]], f"at most {MOST_TEST} are allowed"),
    ],
)
def test_mistakes_name_their_place_and_the_remedy(programs, tests, message):
    with pytest.raises(UsageError, match=message):
        make_plans(programs, tests)


def test_tests_ride_together_where_they_can():
    [plan] = make_plans([CALL], [[SAME, SAME, CHECK, CHECK, SAME]])
    assert [(step.style, len(step.tests)) for step in plan.steps] == [
        ("call", 2),
        ("check", 1),
        ("check", 1),
        ("call", 1),
    ]
    assert plan.total == 5
    large = StdinTest("x" * (MOST_TEST - 1), "")
    [plan] = make_plans([PRINT], [[STDIN, large, large]])
    assert [len(step.tests) for step in plan.steps] == [2, 1]


def test_a_group_shares_its_plan():
    tests = [SAME] * 3
    plans = make_plans([CALL, CALL, Program("", "g")], [tests] * 3)
    assert plans[0] is plans[1]
    assert plans[2].entry == "g"


def test_limits_are_one_or_one_each():
    assert make_limits(Limits(), 2) == [Limits(), Limits()]
    with pytest.raises(UsageError, match="got 1 for 2"):
        make_limits([Limits()], 2)
    with pytest.raises(UsageError, match="class Limits, got int"):
        make_limits([1], 1)  # type: ignore[list-item]


def test_keys_of_the_cache_tell_types_apart():
    def key(value: Any, stop: bool = False) -> bytes:
        return job_key(CALL, digest_tests([CallTest((value,), 1)]), Limits(), stop)

    values = (1, True, 1.0, "1", b"1", [1], (1,), "\ud800", float("nan"))
    assert len({key(value) for value in values}) == len(values)
    assert key(1) == key(1)
    assert key(1) != key(1, stop=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "dokcer"}, "unknown sandbox backend 'dokcer'. Did you mean 'docker'"),
        ({"backend": "none"}, "unknown sandbox backend"),
        ({"workers": 0}, "workers and recycle_after must be at least 1"),
        ({"cache": -1}, "cache at least 0"),
        ({"options": {"runtime": "runsc"}}, "options are for backend='docker'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(UsageError, match=message):
        Sandbox(**settings)


def test_on_error_is_checked():
    with Sandbox("unsafe") as sandbox, pytest.raises(UsageError, match="unknown on_error 'ignore'"):
        sandbox.run_sync([], [], on_error="ignore")  # type: ignore[arg-type]
