"""Counterfactual replay of transcripts, and whom it blames where the culprit is planted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.diagnostics.blame import (
    Choice,
    Donors,
    Replacement,
    find_blame,
    from_transcript,
    play,
)
from flowzoo.baselines.diagnostics.verdicts import Verdicts
from flowzoo.envs import Ask, Episode, Outcome, Tool, Workflow
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.script import GradeResult, Run, RunResult
from flowzoo.envs.tools import call_text
from flowzoo.errors import UsageError
from studies.truth.scripted_runs import judge_skill, scripted_episodes

LOOP = make_workflow("eval_opt", "math", level=1)
VOTE = make_workflow("voting", "math", level=1)
FAIR, REJECTS = judge_skill(0.7, 0.8), judge_skill(0.03, 1.0)


def problems(count: int) -> list[Any]:
    return distinct_problems(VOTE.task, "validation", count)


def test_a_transcript_plays_itself_again():
    some = problems(20)
    saved = scripted_episodes(LOOP, some, {"generator": 0.5, "evaluator": FAIR}, 0)
    again = play(LOOP, some, [from_transcript(one) for one in saved])
    assert [one.score for one in again] == [one["score"] for one in saved]
    assert [d.reply for one in again for d in one.decisions] == [
        call["reply"] for one in saved for call in one["calls"]
    ]
    assert sum(one.replaced for one in again) == 0


def test_situations_hold_what_was_known_when_an_agent_was_asked():
    some = problems(1)
    (one,) = play(LOOP, some, [from_transcript(scripted_episodes(
        LOOP, some, {"generator": 0.0, "evaluator": FAIR}, 0)[0])])  # fmt: skip
    first, second = one.decisions[:2]
    assert first.situation[0] == ("generator", 0, (), ())
    assert second.situation[0] == (
        "evaluator", 0, (("generator", 0.0),), (("generator", 0.0),),
    )  # fmt: skip


def test_donors_are_of_the_finest_situation_that_has_enough():
    from random import Random

    some = problems(12)
    saved = scripted_episodes(LOOP, some, {"generator": 1.0, "evaluator": FAIR}, 0)
    donors = Donors(play(LOOP, some, [from_transcript(one) for one in saved]))
    known = donors.draw((("generator", 0, (), ()), ("generator",)), Random(0))
    assert known is not None
    assert (known.role_score, known.read) == (1.0, True)
    assert donors.draw(((0,), (1,), (2,), ("generator",)), Random(0)) is not None
    assert donors.draw(((0,), (1,), (2,)), Random(0)) is None
    assert donors.draw((("nobody",),), Random(0)) is None


@dataclass(frozen=True)
class Looked(Workflow):
    """A solver may call a tool, whose result never differs."""

    name: ClassVar[str] = "looked_v0"
    roles: ClassVar[Mapping[str, int]] = {"solver": 1}
    tool_roles: ClassVar[tuple[str, ...]] = ("solver",)

    def play(self, problem: Any) -> Any:
        chat = [{"role": "user", "content": self.task.prompt(problem)}]
        reply = yield Ask("solver_0", chat, self.task.answer, tools=(LOOK,))
        if reply.tool_calls:
            chat += [reply.message(), reply.tool_calls[0].result("nothing")]
        reply = yield Ask("solver_0", chat, self.task.answer)
        return Outcome(reply.strict)


LOOK = Tool("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}})


def test_a_reply_serves_for_the_same_prompt_with_the_same_calls_only():
    workflow = Looked(task=VOTE.task)
    (problem,) = problems(1)

    def call(at: str) -> str:
        return call_text(json.dumps({"name": "look", "arguments": {"at": at}}))

    def choose(*replies: str) -> Any:
        return lambda episode, turn, where: Choice(replies[turn.turn])

    def keys(*calls: str) -> list[bytes]:
        played = play(workflow, [problem] * len(calls), [choose(c, "\\boxed{1}") for c in calls])
        assert len({one.decisions[0].prompt for one in played}) == 1
        return [one.decisions[1].prompt for one in played]

    here, again, there, none = keys(call("x"), call("x"), call("y"), "nothing")
    assert here == again
    assert len({here, there, none}) == 3
    # So a replay that calls otherwise is answered by a donor, not by what was said after `x`.
    (now,) = play(workflow, [problem], [choose(call("x"), "after x")])
    replace = Replacement(now.decisions, Donors(), "nobody", None, Donors(), "key")
    for at, strange in (("x", 0), ("y", 1)):
        first = Choice(call(at))

        def follow(episode: Episode, turn: Any, where: Any, first: Choice = first) -> Choice:
            return replace(episode, turn, where) if turn.turn else first

        (one,) = play(workflow, [problem], [follow])
        assert one.strange == strange


@pytest.mark.usual(1)
@pytest.mark.parametrize(
    ("kind", "before", "now", "culprit"),
    [
        (LOOP, {"generator": 0.5, "evaluator": FAIR}, {"generator": 0.7, "evaluator": REJECTS},
         "evaluator"),
        pytest.param(
            LOOP, {"generator": 0.75, "evaluator": FAIR}, {"generator": 0.35, "evaluator": FAIR},
            "generator", marks=pytest.mark.full,
        ),
        pytest.param(
            VOTE, {"generator": 0.6, "aggregator": 0.95}, {"generator": 0.65, "aggregator": 0.4},
            "aggregator", marks=pytest.mark.full,
        ),
        (VOTE, {"generator": 0.6, "aggregator": 0.8}, {"generator": 0.6, "aggregator": 0.8}, ""),
    ],
    ids=["evaluator, while the generator gains", "generator", "aggregator", "nobody"],
)  # fmt: skip
def test_the_planted_culprit_is_blamed(kind, before, now, culprit):
    some = problems(200)
    parts = [scripted_episodes(kind, some, skill, seed) for seed, skill in enumerate((before, now))]
    found = find_blame(kind, some, *parts)
    assert found is not None
    assert found.fidelity == 1.0
    assert found.blamed == culprit
    assert {one.role for one in found.roles} == before.keys()
    if culprit == "evaluator":  # whose oracle repairs nothing that the generator could not
        assert found.roles[0].cost.low > 0 > found.roles[1].cost.mean


def test_nobody_is_blamed_without_the_transcripts_or_with_few_problems():
    some = problems(40)
    saved = scripted_episodes(VOTE, some, {"generator": 0.6, "aggregator": 0.8}, 0)
    assert find_blame(VOTE, some[:20], saved[:20], saved[:20]) is None
    other = [one | {"score": 1 - one["score"]} for one in saved]  # not what the grader says
    assert find_blame(VOTE, some, saved, other) is None
    assert find_blame(LOOP, some, saved, saved) is None  # another workflow's
    assert Choice("x") == ("x", False, False)


ONE, OTHER = (SimpleNamespace(id=name) for name in ("one", "other"))


class CountingTask:
    """A task that counts what it grades and runs."""

    name = "counting"

    def __init__(self, *, runs_programs: bool) -> None:
        self.runs_programs = runs_programs
        self.graded: list[Any] = []
        self.ran: list[str] = []

    def grade_batch(self, problems: Sequence[Any], answers: Sequence[Any]) -> list[GradeResult]:
        self.graded += answers
        return [GradeResult(0.5, "WA") for _ in answers]

    def classes_batch(self, problems: Sequence[Any], groups: Sequence[Any]) -> list[Any]:
        return [tuple(range(len(group))) for group in groups]

    def run_batch(self, runs: Sequence[Run]) -> list[RunResult]:
        self.ran += [run.source for run in runs]
        return [RunResult("AC", ()) for _ in runs]


def verdicts(*, runs_programs: bool = True, most: int = 100) -> tuple[CountingTask, Verdicts, Any]:
    """A counting task, the verdicts on its programs, and the task that asks for them."""
    task = CountingTask(runs_programs=runs_programs)
    workflow: Any = SimpleNamespace(task=task, runs_programs=True)
    results = Verdicts(workflow, most)
    assert results.workflow is not workflow
    return task, results, results.workflow.task


def test_a_program_is_judged_once_a_problem():
    task, results, asking = verdicts()
    problems, answers = [ONE, OTHER, ONE], ["a", "a", "a"]
    assert [grade.status for grade in asking.grade_batch(problems, answers)] == ["WA"] * 3
    asking.grade_batch(problems, answers)
    assert [ran.status for ran in asking.run_batch([Run("a"), Run("b"), Run("a")])] == ["AC"] * 3
    assert (task.graded, sorted(task.ran), results.graded) == (["a", "a"], ["a", "b"], 4)
    asking.classes_batch([ONE], [("a", "b", None)])
    asking.grade_batch([ONE], [None])
    assert results.graded == 6


def test_grades_of_saved_episodes_are_used():
    task, results, asking = verdicts()
    results.take(ONE, "a", 1.0)
    results.take(ONE, "a", 1.0)
    results.take(ONE, "b", None)
    results.take(ONE, None, 0.0)
    assert asking.grade_batch([ONE], ["a"]) == [GradeResult(1.0, "AC")]
    assert (task.graded, results.reused, results.graded) == ([], 1, 0)


def test_answers_that_are_no_programs_are_graded_by_the_task():
    task, results, asking = verdicts(runs_programs=False)
    results.take(ONE, "a", 1.0)
    asking.grade_batch([ONE, ONE], ["a", "a"])
    asking.run_batch([Run("b"), Run("b")])
    assert (task.graded, task.ran, results.reused, results.graded) == (["a", "a"], ["b"], 0, 1)


def test_a_replay_runs_a_bounded_number_of_programs():
    task, _, asking = verdicts(most=2)
    asking.run_batch([Run("a"), Run("b"), Run("b")])
    with pytest.raises(UsageError, match="at most 2 programs"):
        asking.run_batch([Run("c")])
    assert task.ran == ["a", "b"]


@pytest.mark.full
def test_the_planted_culprit_of_a_team_that_programs_is_blamed():
    vote = make_workflow("voting", "code", level=1)
    problems = distinct_problems(vote.task, "validation", 120)
    skills = ({"generator": 0.6, "aggregator": 0.95}, {"generator": 0.6, "aggregator": 0.2})
    before, now = (scripted_episodes(vote, problems, skill, n) for n, skill in enumerate(skills))
    blame = find_blame(vote, problems, before, now)
    assert blame is not None
    assert (blame.blamed, blame.fidelity) == ("aggregator", 1.0)
    assert blame.reused > 120
    assert 0 < blame.programs < 1_000
