"""Finding the program in a reply, its score in a sandbox, and who is at fault if that fails."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.errors import UsageError
from flowzoo.reward.code import score as code
from flowzoo.reward.code.score import LONGEST, CodeScore, extract_code, score_programs
from flowzoo.reward.unknown import unknown_reason, unknown_status
from flowzoo.sandbox.box import run as box_run
from flowzoo.sandbox.judge import CaseOutcome
from flowzoo.sandbox.program import CallTest, Case, Limits, Program, StdinTest
from tests.tables import read_tables

TABLES = read_tables(__file__, "extract")
DOUBLE = tuple(CallTest((n,), 2 * n) for n in range(4))
ESCAPES = "print('" + "\\d" * 100 + "')"
TOO_LONG_OR_DEEP = (
    "def f(x): return x\n" * 2000,
    "print(" + "-" * 9000 + "1)",
    "print(" + "(" * 190 + "1" + ")" * 190 + ")",
)


def block(text: str, label: str = "python") -> str:
    return f"```{label}\n{text}\n```"


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        *TABLES["read"]["strict"],
        (ESCAPES, ESCAPES),
        *((reply, None) for reply in (*TABLES["unread"]["strict"], *TOO_LONG_OR_DEEP)),
    ],
)
def test_strict_reading(reply, program):
    assert extract_code(reply) == program


@pytest.mark.parametrize(
    ("reply", "program"),
    [*TABLES["read"]["lenient"], *((reply, None) for reply in TABLES["unread"]["lenient"])],
)
def test_lenient_reading_goes_on_where_strict_finds_nothing(reply, program):
    assert extract_code(reply) is None
    assert extract_code(reply, "lenient") == program


def test_a_program_has_a_bounded_size():
    assert extract_code(block("a" * LONGEST)) == "a" * LONGEST
    assert extract_code(block("a" * (LONGEST + 1))) is None
    assert extract_code("x" * 10**6 + "\n" + block("a = 1")) == "a = 1"


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize(
    "text",
    ["```python\n" * 10**5, "```\n" * 2 * 10**5, "`" * 10**6, "a,b" * 3 * 10**5,
     "x = " * 3 * 10**5, "<think>" * 10**5, "\x00\ud800```python\n\udfff\x00\n```",
     "def " * 3 * 10**5, " " * 10**6],
)  # fmt: skip
def test_hostile_texts_are_read_in_linear_time(text, monkeypatch):
    monkeypatch.setattr(code, "TAIL", len(text) + 1)  # or most of it would not be read at all
    for reading in ("strict", "lenient"):
        program = extract_code(text, reading)
        assert program is None or 0 < len(program) <= LONGEST


@given(st.lists(st.sampled_from(["```", "python", "\n", "a = 1", " ", "<think>", "</think>", "`"])))
def test_any_mixture_is_read(parts):
    text = "".join(parts)
    strict, lenient = extract_code(text), extract_code(text, "lenient")
    assert strict is None or (strict == lenient and strict in text)


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


@pytest.mark.parametrize(("broken", "is_unknown"), [("all", True), ("one", False)])
def test_a_program_is_at_fault_only_while_the_sandbox_runs_others(monkeypatch, broken, is_unknown):
    judge = box_run.judge_stdin

    def breaks(outcome: CaseOutcome, test: StdinTest) -> Case:
        return [][0] if broken == "all" or test.stdin == "b" else judge(outcome, test)

    monkeypatch.setattr(box_run, "judge_stdin", breaks)
    tests = [[StdinTest(word, word)] for word in ("b", "c")]
    first, second = score_programs([Program("print(input())")] * 2, tests)
    assert bool(unknown_reason(first.status)) is is_unknown
    assert math.isnan(first.score) is is_unknown
    if broken == "one":
        assert (first.score, first.status) == (0.0, "RE")
        assert (second.score, second.status) == (1.0, "AC")
    else:
        assert "internal error of the sandbox" in unknown_reason(second.status)


def test_a_status_without_a_reason_is_not_unknown():
    assert unknown_reason(unknown_status("the box is gone")) == "the box is gone"
    assert [unknown_reason(status) for status in ("RE", "different", "unknown", "")] == [""] * 4
