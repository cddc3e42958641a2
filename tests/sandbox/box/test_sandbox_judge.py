from typing import Any

import pytest

from flowzoo.sandbox import Case, StdinTest
from flowzoo.sandbox.judge import (
    CaseOutcome,
    judge_checker,
    judge_stdin,
    last_line,
    one_line,
    read_outcome,
    settle,
    show_text,
    show_value,
)
from flowzoo.sandbox.runner.wire import CASE, Frame, FrameError


def outcome(name: Any, output: bytes = b"", stderr: bytes = b"", **more: Any) -> CaseOutcome:
    fields = {"code": 0, "signal": 0, "detail": "", "cpu_s": 0.1, "wall_s": 0.2, "memory": 2**21}
    return CaseOutcome(name=name, output=output, stderr=stderr, **{**fields, **more})


def test_invalid_bytes_never_match_by_replacement():
    [case] = judge_stdin([outcome("exited", b"\xff")], [StdinTest("", "\ufffd")])
    assert case.status == "WA"
    assert case.stdout == "\ufffd"


@pytest.mark.parametrize(
    ("checker", "raised", "status"),
    [
        (outcome("returned"), "", "AC"),
        (outcome("exited"), "", "SE"),
        (outcome("raised", detail="AssertionError: x"), "", "WA"),
        (outcome("raised", detail="AssertionError: x"), "AssertionError", "WA"),
        (outcome("raised", detail="KeyError: x"), "KeyError", "RE"),
        (outcome("raised", detail="TypeError: None"), "", "WA"),
        (outcome("raised", detail="ModuleNotFoundError: No module named 'numpy'"), "", "SE"),
        (outcome("raised", detail="ModuleNotFoundError: x"), "ModuleNotFoundError", "RE"),
        (outcome("compile", detail="SyntaxError"), "", "SE"),
        (outcome("cpu"), "", "SE"),
        (outcome("memory"), "", "SE"),
    ],
)
def test_ends_of_a_check(checker, raised, status):
    assert judge_checker(checker, {raised}, answered=False).status == status


def test_a_limit_upon_an_answer_is_no_failure_of_the_sandbox():
    assert judge_checker(outcome("cpu"), set(), answered=True).status == "TLE"
    assert judge_checker(outcome("memory"), set(), answered=True).status == "MLE"


def test_the_first_failing_case_gives_the_status():
    cases = [Case("AC"), Case("TLE"), Case("AC"), Case("WA")]
    verdict = settle(cases, 5, "docker", stop=False, facts={})
    assert (verdict.status, verdict.passed, verdict.fraction, verdict.total) == ("TLE", 2, 0.4, 5)
    assert settle(cases, 5, "docker", stop=True, facts={}).cases == (Case("AC"), Case("TLE"))
    assert settle([*cases, Case("SE")], 5, "docker", stop=False, facts={}).status == "SE"


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "accepted"}, {"outcome": None}, {"outcome": ["exited"]}, {"code": "0"},
        {"code": True}, {"cpu_s": float("nan")}, {"wall_s": -1}, {"memory": 1.5},
    ],
)  # fmt: skip
def test_a_case_that_breaks_the_protocol(change):
    head = {"outcome": "exited", "code": 0, "signal": None, "cpu_s": 1, "wall_s": 1.0, "memory": 1}
    assert read_outcome(Frame(CASE, head, [b"", b""])).cpu_s == 1.0
    with pytest.raises(FrameError):
        read_outcome(Frame(CASE, {**head, **change}, [b"", b""]))
    with pytest.raises(FrameError):
        read_outcome(Frame(CASE, head, [b""]))


def test_what_is_shown_is_bounded_and_harmless():
    assert show_text(b"x" * 10**6)[4090:] == "xxxxxx…"
    assert "more than 4,300 digits" in show_value([10**5000])
    assert len(show_value(["x" * 10**6] * 1000)) < 5000
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested]
    assert "..." in show_value(nested)
    assert one_line("a\n\x1b[31mb\x00" + "c" * 999).startswith("a ?[31mb?c")
    assert len(one_line("c" * 999)) == 300
    assert last_line(b"a\nb\n \n") == "b"
    assert last_line(b"") == ""


@pytest.mark.parametrize(
    ("what", "status", "detail"),
    [
        (outcome("exited", b"1\n"), "AC", ""),
        (outcome("exited", b"2\n"), "WA", ""),
        (outcome("exited", b"1\n", code=3), "RE", "exit code 3"),
        (
            outcome("exited", b"", b"Traceback\nKeyError: 1\n", code=1),
            "RE",
            "exit code 1: KeyError: 1",
        ),
        (outcome("signaled", b"1\n", signal=11), "RE", "signal 11"),
        (outcome("cpu", b"1\n"), "TLE", "cpu"),
        (outcome("wall", b"1\n"), "TLE", "wall"),
        (outcome("memory", b"1\n"), "MLE", "memory"),
        (outcome("output", b"1\n"), "OLE", "output"),
        (outcome("compile", detail="SyntaxError: x"), "CE", "SyntaxError: x"),
        (outcome("setup"), "SE", "the box failed before the program started"),
    ],
)
def test_stdin_outcomes(what, status, detail):
    [case] = judge_stdin([what], [StdinTest("", "1")])
    assert (case.status, case.detail) == (status, detail)
    assert (case.cpu_s, case.wall_s, case.memory_mb) == (0.1, 0.2, 2.0)
