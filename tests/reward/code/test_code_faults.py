"""Who is at fault if a sandbox fails: itself, or the one program that makes it fail."""

import math

import pytest

from flowzoo.reward.code.score import score_programs
from flowzoo.reward.unknown import unknown_reason, unknown_status
from flowzoo.sandbox.box import run as box_run
from flowzoo.sandbox.judge import CaseOutcome
from flowzoo.sandbox.program import Case, Program, StdinTest

ECHO = Program("print(input())")


@pytest.mark.parametrize(("broken", "is_unknown"), [("all", True), ("one", False)])
def test_a_program_is_at_fault_only_while_the_sandbox_runs_others(monkeypatch, broken, is_unknown):
    judge = box_run.judge_stdin

    def breaks(outcome: CaseOutcome, test: StdinTest) -> Case:
        return [][0] if broken == "all" or test.stdin == "b" else judge(outcome, test)

    monkeypatch.setattr(box_run, "judge_stdin", breaks)
    tests = [[StdinTest(word, word)] for word in ("b", "c")]
    first, second = score_programs([ECHO, ECHO], tests)
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
