"""The effect `Run`: what scripts may ask for and get, and that replays never run it again."""

import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from flowzoo.envs import (
    Ask,
    Episode,
    EquivalenceClasses,
    Grade,
    Outcome,
    Run,
    RunResult,
    Workflow,
    WorkflowError,
)
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.recording import state_hash
from flowzoo.envs.script import GradeResult, RunCase
from flowzoo.envs.tasks.code.task import CodeTask
from flowzoo.envs.testing import advance
from flowzoo.sandbox.program import CallTest, Limits, StdinTest

TASK = CodeTask()
PROBLEM = TASK.problem(0)


@dataclass(frozen=True)
class Runs(Workflow):
    """Runs what it is told and shows the output."""

    name: ClassVar[str] = "runs_v0"
    roles: ClassVar[dict[str, int]] = {"reader": 1}
    run: Any = None

    def play(self, problem: Any) -> Any:
        ran = yield self.run
        shown = [item.output for item in ran] if isinstance(ran, list) else ran.output
        yield Ask("reader_0", str(shown))
        return Outcome(score=1.0)


def test_a_script_sees_what_programs_came_to():
    effects = [Run("print(input()[::-1])", stdin="abc"), Run("1/0"), Run("import sys; print(7)")]
    episode = Episode(Runs(TASK, run=effects), PROBLEM)
    advance(episode)
    assert episode.waiting[0].messages[0]["content"] == str(["cba\n", "", "7\n"])
    reversed_, raised, plain = episode.log
    assert (reversed_, plain) == (
        RunResult("AC", (RunCase("AC", "cba\n", ""),)),
        RunResult("AC", (RunCase("AC", "7\n", ""),)),
    )
    assert isinstance(raised, RunResult)
    assert raised.status == "RE"
    assert "ZeroDivisionError" in raised.cases[0].detail


def test_tests_are_all_made_and_limits_hold():
    tests = (CallTest((1,), 2), CallTest((2,), 0), CallTest((3,), 6))
    runs = [
        Run("def f(x):\n    return 2 * x", tests, "f"),
        Run("def f(x):\n    return 2 * x", (), "f"),
        Run("def f(x", (), "f"),
        Run("print('a' * 9_000)"),
        Run("print(input())", (StdinTest("1", "1"), StdinTest("2", "3"))),
        Run("print('a' * 9_000)", limits=Limits(output_bytes=100)),
    ]
    results = TASK.run_batch(runs)
    assert [ran.status for ran in results] == ["WA", "AC", "CE", "AC", "WA", "OLE"]
    assert [case.status for case in results[0].cases] == ["AC", "WA", "AC"]
    assert [case.output for case in results[0].cases] == ["2", "4", "6"]
    assert (results[0].passed, len(results[3].output)) == (2, 4096)
    assert TASK.run_batch([]) == []


def test_effects_of_all_kinds_are_resolved_in_order():
    jobs: list[Any] = [
        (PROBLEM, Run("print(1)")),
        (PROBLEM, Grade(PROBLEM.gold)),
        (PROBLEM, EquivalenceClasses((PROBLEM.gold, None))),
        (PROBLEM, Run("print(2)")),
    ]
    first, grade, classes, second = resolve(TASK, jobs)
    assert isinstance(first, RunResult)
    assert isinstance(second, RunResult)
    assert (first.output, second.output) == ("1\n", "2\n")
    assert (grade, classes) == (GradeResult(1.0, "AC"), (0, -1))


def test_replays_do_not_run_again_and_notice_another_program(monkeypatch):
    episode = Episode(Runs(TASK, run=Run("print(5)")), PROBLEM)
    advance(episode)

    def forbidden(*args: Any) -> Any:
        raise AssertionError("a replay ran a program")

    monkeypatch.setattr(CodeTask, "run_batch", forbidden)
    for twin in (episode.fork(), pickle.loads(pickle.dumps(episode))):
        assert state_hash(twin) == state_hash(episode)
        assert twin.waiting[0].messages == episode.waiting[0].messages
    state = episode.__getstate__()
    other = {**state, "workflow": Runs(TASK, run=Run("print(6)"))}
    with pytest.raises(RuntimeError, match="effect 0 asked about something else"):
        Episode.__new__(Episode).__setstate__(other)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (Run(None), r"Run\(source=...\) takes str, got NoneType"),  # type: ignore[arg-type]
        (Run("", stdin=b""), "stdin=.*got bytes"),  # type: ignore[arg-type]
        (Run("", entry=1), "entry=.*got int"),  # type: ignore[arg-type]
        (Run("", tests=[]), r"takes tuple\[StdinTest \| .*, \.\.\.\], got list"),  # type: ignore[arg-type]
        (
            Run("", tests=("x",)),
            r"takes tuple\[.*\], got tuple \('x',\)",
        ),  # type: ignore[arg-type]
        (Run("", limits=2), r"takes Limits \| None, got int"),  # type: ignore[arg-type]
        ([Run(""), Ask("reader_0", "")], "yield an Ask, a RoleScore, an? InterimScore, an effect"),
    ],
)
def test_what_is_no_run_is_refused_with_its_line(run, message):
    with pytest.raises(WorkflowError, match=message):
        Episode(Runs(TASK, run=run), PROBLEM)
