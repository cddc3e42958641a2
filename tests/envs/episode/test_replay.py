"""Effects of scripts, and replays of their logs."""

import itertools
import os
import pickle
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from processes import run_python

from flowzoo.envs import (
    Ask,
    Episode,
    EquivalenceClasses,
    Grade,
    GradeResult,
    Outcome,
    Problem,
    Run,
    RunResult,
    Workflow,
    WorkflowError,
)
from flowzoo.envs.api.registry import WORKFLOWS, make_workflow, workflow_class
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.recording import record, state_hash
from flowzoo.envs.script import RunCase
from flowzoo.envs.tasks.code.task import CodeTask
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.testing import advance, play_out
from flowzoo.errors import DivergedError, UsageError
from flowzoo.sandbox.program import CallTest, Limits, StdinTest
from tests.envs.playing import echo, toy

GRADED: list[str | None] = []
"""Every answer that `CountingMath` was asked to grade."""


@dataclass(frozen=True)
class CountingMath(MathTask):
    """The math task, counting what it grades."""

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        GRADED.extend(answers)
        return super().grade_batch(problems, answers)


def start(play: Callable[..., Any]) -> Episode:
    workflow = toy(play, CountingMath())
    return Episode(workflow, workflow.task.problem(0))


def test_replays_do_not_run_effects_again():
    episode = start(echo)
    episode.reply("writer_0", "seven")
    GRADED.clear()
    advance(episode)
    assert GRADED == ["seven"]
    twin = episode.fork()
    assert [turn.agent for turn in twin.waiting] == ["judge_0"]
    twin.reply("judge_0", "ok")
    advance(twin)
    assert twin.done
    assert GRADED == ["seven"]


def test_the_log_holds_replies_and_results_in_order():
    episode = start(echo)
    episode.reply("writer_0", "seven")
    advance(episode)
    episode.reply("judge_0", "fine")
    assert [type(entry) for entry in episode.log] == [str, GradeResult, str]


@pytest.mark.parametrize("name", [n for n in WORKFLOWS if "math" in workflow_class(n).kinds])
def test_pickles_do_not_run_effects_again(name):
    """For the shipped workflows, in their final state."""
    workflow = make_workflow(name, CountingMath())
    episode = play_out(Episode(workflow, workflow.task.problem(1), "e"), "x")
    assert GRADED
    GRADED.clear()
    assert record(pickle.loads(pickle.dumps(episode))) == record(episode)
    assert not GRADED


class Changes:
    """A value that differs each time it is read: a clock, a global counter."""

    def __init__(self) -> None:
        self.count = itertools.count()

    def __str__(self) -> str:
        return str(next(self.count))

    def __bool__(self) -> bool:
        return next(self.count) == 0


def impure_prompt(self, problem):
    yield Ask("writer_0", f"the time is {self.world}")
    return Outcome(score=0.0)


def impure_agent(self, problem):
    yield Ask("writer_0" if self.world else "writer_1", "write")
    return Outcome(score=0.0)


def impure_phase(self, problem):
    if self.world:
        yield Ask("writer_0", "write")
        yield Ask("writer_1", "write")
    else:
        yield [Ask("writer_0", "write"), Ask("writer_1", "write")]
    return Outcome(score=0.0)


def impure_effect(self, problem):
    yield Grade(f"answer {self.world}")
    yield Ask("writer_0", "write")
    return Outcome(score=0.0)


def impure_effect_kind(self, problem):
    yield Grade("7") if self.world else EquivalenceClasses(("7",))
    yield Ask("writer_0", "write")
    return Outcome(score=0.0)


def impure_end(self, problem):
    yield Ask("writer_0", "write")
    if self.world:
        yield Ask("writer_1", "write")
    return Outcome(score=0.0)


def impure_work(self, problem):
    yield Ask("writer_0", "write")
    if not self.world:
        yield Grade("7")
    yield Ask("writer_1", "write")
    return Outcome(score=0.0)


IMPURE = [
    impure_prompt,
    impure_agent,
    impure_phase,
    impure_effect,
    impure_effect_kind,
    impure_end,
    impure_work,
]


def impure_episode(play: Callable[..., Any]) -> Episode:
    """An episode of `play` one step before it tells the world that was replayed."""
    workflow = toy(play, CountingMath(), world=Changes())
    episode = Episode(workflow, workflow.task.problem(0))
    advance(episode)
    if play in (impure_phase, impure_end, impure_work):
        episode.reply("writer_0", "text")
        advance(episode)
    return episode


@pytest.mark.parametrize("play", IMPURE)
def test_an_impure_script_is_caught_when_forked_and_when_unpickled(play):
    """Prompts, agents, phases, effects and the end must come again, for a pickle by digests."""
    with pytest.raises(DivergedError, match=r"toy_v0: .* must not use clocks"):
        impure_episode(play).fork()
    state = impure_episode(play).__getstate__()
    with pytest.raises(DivergedError, match=r"toy_v0: .* must not use clocks"):
        Episode.__new__(Episode).__setstate__(state)


def test_a_pure_script_may_change_its_message_dicts_afterwards():
    """Questions are kept as they were then, so no false alarm on replay."""

    def play(self, problem):
        message = {"role": "user", "content": "first"}
        yield Ask("writer_0", [message])
        message["content"] = "second"
        yield Ask("writer_1", [message])
        return Outcome(score=0.0)

    episode = start(play)
    episode.reply("writer_0", "x")
    assert [turn.messages[0]["content"] for turn in episode.fork().turns] == ["first", "second"]


MODULE = """
from dataclasses import dataclass
from typing import ClassVar
from flowzoo.envs import Ask, Grade, Outcome, Workflow

@dataclass(frozen=True)
class Salted(Workflow):
    name: ClassVar = "salted_v0"
    roles: ClassVar = {"writer": 2}

    def play(self, problem):
        first = yield Ask("writer_0", "write \\ud800 π")
        words = set(first.text.split())
        yield Ask("writer_1", " ".join(words if self.credit == "team" else sorted(words)))
        return Outcome(score=1.0)
"""
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa"


def test_salted_hashes_diverge_in_another_process_and_sorted_words_do_not(tmp_path):
    """Digests do not depend on PYTHONHASHSEED, scripts that do are caught."""
    (tmp_path / "salted_flow.py").write_text(MODULE)
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[3])])
    make = textwrap.dedent(
        f"""
        import pickle
        from salted_flow import Salted
        from flowzoo.envs import Episode
        from flowzoo.envs.episode.recording import state_hash
        from flowzoo.envs.tasks import make_task
        for credit in ("team", "local"):
            flow = Salted(make_task("math"), credit=credit)
            episode = Episode(flow, flow.task.problem(0))
            episode.reply("writer_0", {WORDS!r})
            open(f"{tmp_path}/{{credit}}", "wb").write(pickle.dumps(episode))
            if credit == "local":
                print(state_hash(episode))
        """
    )
    digest = run_python(make, PYTHONHASHSEED="1", PYTHONPATH=path)
    load = """
import pickle, sys
from flowzoo.envs.episode.recording import state_hash
print(state_hash(pickle.load(open(sys.argv[1], "rb"))))
"""
    with pytest.raises(AssertionError, match="DivergedError"):
        run_python(load, str(tmp_path / "team"), PYTHONHASHSEED="2", PYTHONPATH=path)
    local = str(tmp_path / "local")
    assert run_python(load, local, PYTHONHASHSEED="2", PYTHONPATH=path) == digest


def test_the_problems_rng_starts_afresh_at_every_replay():
    def play(self, problem):
        rng = problem.rng()
        yield Ask("writer_0", str(rng.random()))
        yield Ask("writer_1", str(rng.random()))
        return Outcome(score=0.0)

    episode = start(play)
    episode.reply("writer_0", "x")
    prompts = [turn.messages for turn in episode.fork().turns]
    assert prompts == [turn.messages for turn in episode.turns]
    other = Episode(episode.workflow, episode.workflow.task.problem(1))
    assert other.turns[0].messages != prompts[0]


def test_results_come_in_the_order_of_the_jobs_whatever_their_kinds():
    task = MathTask()
    item, two = task.problem(0), task.problem(1)
    jobs: list[Any] = [
        (item, Grade(item.gold)),
        (item, EquivalenceClasses(("1", None, "1.0"))),
        (two, Grade(None)),
        (two, Grade(two.gold)),
        (two, EquivalenceClasses(())),
    ]
    results = resolve(task, jobs)
    assert results[1::3] == [(0, -1, 0), ()]
    assert [result[0] for result in (results[0], results[2], results[3])] == [1.0, 0.0, 1.0]
    assert resolve(task, jobs[::-1]) == results[::-1]
    assert resolve(task, []) == []


def test_a_grader_that_loses_answers_is_caught():
    @dataclass(frozen=True)
    class Lossy(MathTask):
        def grade_batch(self, problems: Any, answers: Any) -> list[GradeResult]:
            return super().grade_batch(problems, answers)[:-1]

    task = Lossy()
    with pytest.raises(UsageError, match="one result per Grade: got 1 for 2"):
        resolve(task, [(task.problem(0), Grade("1"))] * 2)


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
        (Run("", tests=("x",)), r"takes tuple\[.*\], got tuple \('x',\)"),  # type: ignore[arg-type]
        (Run("", limits=2), r"takes Limits \| None, got int"),  # type: ignore[arg-type]
        ([Run(""), Ask("reader_0", "")], "yield an Ask, a RoleScore, an? InterimScore, an effect"),
    ],
)
def test_what_is_no_run_is_refused_with_its_line(run, message):
    with pytest.raises(WorkflowError, match=message):
        Episode(Runs(TASK, run=run), PROBLEM)
