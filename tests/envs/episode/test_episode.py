"""The sans-I/O core: rules 4, 6 and 9 of the design's core document."""

import itertools
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from flowzoo.envs import (
    Ask,
    Episode,
    EquivalenceClasses,
    Grade,
    GradeResult,
    Outcome,
    RoleScore,
    Run,
    Workflow,
)
from flowzoo.envs.api.registry import make_workflow
from flowzoo.envs.episode.faults import WorkflowError
from flowzoo.envs.episode.recording import record, state_hash
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.testing import advance, check_workflow, play_out
from flowzoo.errors import UsageError
from tests.envs.playing import echo, start, toy


def test_effects_may_come_before_the_first_ask_and_in_parallel():
    def play(self, problem):
        first = yield Grade(problem.gold)
        second, classes = yield [Grade("no"), EquivalenceClasses(("1", None, "1.0", "2"))]
        yield Ask("writer_0", f"{first.score} {second.score} {classes}")
        return Outcome(score=1.0)

    episode = start(play)
    assert (episode.waiting, len(episode.effects)) == ((), 1)
    advance(episode)
    assert episode.waiting[0].messages[0]["content"] == "1.0 0.0 (0, -1, 0, 1)"


def with_yield(item: Any) -> Callable[..., Any]:
    def play(self, problem):
        yield item
        return Outcome(score=0.0)

    return play


def ending(outcome: Any) -> Callable[..., Any]:
    def play(self, problem):
        yield Ask("writer_0", "write")
        return outcome

    return play


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ([], "got an empty list"),
        ([Ask("writer_0", "a"), Grade("1")], "got Ask, Grade"),
        ([Ask("writer_0", "a"), Ask("writer_0", "b")], "asked only once in a phase"),
        (Ask("wirter_0", "a"), "unknown agent 'wirter_0'. Did you mean 'writer_0'"),
        ("write", "got str"),
        (None, "got NoneType"),
        ((Ask("writer_0", "a"), Ask("writer_1", "b")), "got tuple"),
        ([RoleScore(None, 1.0)], "got RoleScore"),  # type: ignore[arg-type]
        (Ask("writer_0", None), "prompt of writer_0 must be a str or a list"),  # type: ignore[arg-type]
        (Ask("writer_0", [{"role": "user"}]), "prompt of writer_0 must be"),
        (Ask("writer_0", ["hello"]), "prompt of writer_0 must be"),  # type: ignore[list-item]
        (Grade(14), "Grade(answer=...) takes str | None, got int"),  # type: ignore[arg-type]
        (Grade("14", of="reply"), "takes Reply | None, got str"),  # type: ignore[arg-type]
        (EquivalenceClasses(["1"]), "takes tuple[str | None, ...], got list"),  # type: ignore[arg-type]
        (EquivalenceClasses((1,)), "takes tuple[str | None, ...], got tuple (1,)"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_yield_names_workflow_line_and_problem(item, message):
    with pytest.raises(WorkflowError) as caught:
        start(with_yield(item))
    line = with_yield(item).__code__.co_firstlineno + 1
    text = str(caught.value)
    assert message in text
    assert text.startswith(
        f"toy_v0 (test_episode.py, line {line}), problem {MathTask().problem(0).id}: "
    )


def test_a_wrong_yield_of_a_helper_names_the_helpers_line():
    def helper():
        yield "nothing"

    def play(self, problem):
        yield from helper()
        return Outcome(score=0.0)

    with pytest.raises(WorkflowError, match=f"line {helper.__code__.co_firstlineno + 1}\\)"):
        start(play)


def test_play_must_return_an_outcome():
    def play(self, problem):
        yield Ask("writer_0", "a")

    episode = start(play)
    with pytest.raises(WorkflowError, match=r"must return an Outcome, got NoneType"):
        episode.reply("writer_0", "x")


def failing(error: Exception) -> Callable[..., Any]:
    def play(self, problem):
        reply = yield Ask("writer_0", "write")
        if reply.text != "fine":
            raise error
        return Outcome(score=1.0)

    return play


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), UsageError("of a helper")])
def test_an_exception_in_a_script_carries_problem_transcript_and_line(error):
    """For any exception, the package's own included, whose message stands for itself."""
    play = failing(error)
    episode = start(play)
    message = str(error) if isinstance(error, UsageError) else type(error).__name__
    with pytest.raises(WorkflowError, match=message) as caught:
        episode.reply("writer_0", "bad")
    assert caught.value.__cause__ is error
    assert caught.value.problem == MathTask().problem(0).id
    assert [(row["agent"], row["reply"]) for row in caught.value.transcript] == [
        ("writer_0", "bad")
    ]
    assert f"test_episode.py, line {play.__code__.co_firstlineno + 3})" in str(caught.value)


def test_a_raising_parser_is_a_workflow_error():
    def play(self, problem):
        yield Ask("writer_0", "write", parse=int)
        return Outcome(score=1.0)

    line = play.__code__.co_firstlineno + 1
    with pytest.raises(
        WorkflowError, match=rf"line {line}\).*parser of writer_0 raised ValueError"
    ):
        start(play).reply("writer_0", "seven")


def test_a_forgotten_yield_is_said_with_its_line():
    def play(self, problem):
        reply = Ask("writer_0", "write")
        yield Ask("writer_0", reply.text)

    line = play.__code__.co_firstlineno + 2
    with pytest.raises(
        WorkflowError, match=rf"line {line}\).*only what `yield Ask\(...\)` returns"
    ):
        start(play)


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), "1"])
def test_a_role_score_is_a_number_from_0_to_1_about_a_reply(value):
    def play(self, problem):
        reply = yield Ask("writer_0", "write")
        yield RoleScore(reply, value)
        return Outcome(score=1.0)

    line = play.__code__.co_firstlineno + 2
    with pytest.raises(WorkflowError, match=rf"line {line}\).*TypeError"):
        start(play).reply("writer_0", "x")
    with pytest.raises(WorkflowError, match=r"RoleScore takes a Reply and a number in \[0, 1\]"):
        start(with_yield(RoleScore(None, 1.0)))  # type: ignore[arg-type]


def test_workflow_errors_survive_pickling():
    error = WorkflowError("broken", "math/train/0/0", [{"agent": "writer_0"}])
    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.problem, twin.transcript) == (
        str(error),
        error.problem,
        error.transcript,
    )


def phase(self, problem):
    drafts = yield [Ask(f"writer_{slot}", f"draft {slot}") for slot in range(3)]
    yield Ask("judge_0", " ".join(draft.text for draft in drafts))
    return Outcome(score=1.0)


def test_all_prompts_of_a_phase_are_open_at_its_start():
    assert [turn.messages[0]["content"] for turn in start(phase).waiting] == [
        "draft 0",
        "draft 1",
        "draft 2",
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_replies_out_of_order_are_committed_in_slot_order(order):
    episode = start(phase)
    for slot in order:
        assert len(episode.log) == 0
        episode.reply(f"writer_{slot}", f"text{slot}")
    assert episode.log == ["text0", "text1", "text2"]
    assert episode.waiting[0].messages[0]["content"] == "text0 text1 text2"


def test_forks_keep_the_buffered_replies_of_an_open_phase():
    episode = start(phase)
    episode.reply("writer_2", "late")
    twin = episode.fork("other")
    assert (twin.key, episode.key) == ("other", "")
    assert [turn.agent for turn in twin.waiting] == ["writer_0", "writer_1"]
    for name in ("writer_0", "writer_1"):
        twin.reply(name, name)
    assert twin.log == ["writer_0", "writer_1", "late"]
    assert episode.log == []


def make_open_phase() -> Episode:
    workflow = make_workflow("voting_v0")
    episode = Episode(workflow, workflow.task.problem(0))
    episode.reply("generator_1", "\\boxed{2}")
    return episode


def test_a_pickled_open_phase_goes_on_where_it_was():
    twin = pickle.loads(pickle.dumps(make_open_phase()))
    assert [turn.agent for turn in twin.waiting] == ["generator_0", "generator_2"]
    twin.reply("generator_0", "a")
    twin.reply("generator_2", "c")
    assert twin.log == ["a", "\\boxed{2}", "c"]


def test_replying_twice_or_for_a_closed_turn_is_an_error():
    episode = start(phase)
    episode.reply("writer_0", "x")
    with pytest.raises(UsageError, match=r"unknown agent with an open turn 'writer_0'.*writer_1"):
        episode.reply("writer_0", "y")
    with pytest.raises(UsageError, match=r"must be a str, got NoneType"):
        episode.reply("writer_1", None)  # type: ignore[arg-type]


def test_resolving_is_checked():
    episode = start(echo)
    with pytest.raises(UsageError, match="no effect is pending"):
        episode.resolve([])
    episode.reply("writer_0", "x")
    with pytest.raises(UsageError, match="expected 1 effect results, got 2"):
        episode.resolve([GradeResult(1.0, "a"), GradeResult(1.0, "b")])
    with pytest.raises(UsageError, match=r"tuple is not a result of Grade"):
        episode.resolve([(0, 1)])
    episode.resolve([GradeResult(1.0, "pinned")])
    assert episode.role_scores == {0: 1.0}
    other = start(with_yield(EquivalenceClasses(("1",))))
    with pytest.raises(UsageError, match=r"GradeResult is not a result of EquivalenceClasses"):
        other.resolve([GradeResult(1.0, "a")])


def test_reading_results_before_the_end_is_an_error():
    with pytest.raises(UsageError, match="not finished"):
        record(start(echo))


def own_rule(parts):
    return parts["team"]


def test_state_hashes_tell_settings_problems_and_replies_apart():
    def hashed(level: int = 1, text: str = "x", **options: Any) -> str:
        workflow = make_workflow("single_v0", level=level, **options)
        episode = Episode(workflow, workflow.task.problem(0))
        episode.reply("generator_0", text)
        return state_hash(episode)

    same = hashed()
    assert same == hashed()
    others = [hashed(level=3), hashed(text="y"), hashed(preset="paper"), hashed(credit=own_rule)]
    assert len({same, *others}) == 5
    # By name: the repr of a function has an address, which differs between processes.
    workflow = make_workflow("single_v0", credit=own_rule)
    assert workflow.spec["credit"].endswith("test_episode.own_rule")


def test_calls_of_one_phase_share_a_state_hash():
    workflow = make_workflow("voting_v0")
    finished = record(play_out(Episode(workflow, workflow.task.problem(0), "e"), 1))
    hashes = [call.state_hash for call in finished.calls]
    assert hashes[0] == hashes[1] == hashes[2] != hashes[3]


def two_rounds(self, problem):
    for _ in range(2):
        yield [Ask(f"writer_{slot}", "write") for slot in range(2)]
        yield Ask("judge_0", "judge")
    return Outcome(score=1.0)


def test_a_cycle_is_a_step_of_each_agent():
    workflow = toy(two_rounds)
    episode = Episode(workflow, workflow.task.problem(0), max_cycles=1)
    for agent in ("writer_0", "writer_1", "judge_0"):
        assert not episode.done
        episode.reply(agent, "x")
    assert (episode.done, episode.truncated) == (True, True)
    assert record(episode).score == 0.0
    assert len(record(episode.fork()).calls) == 3
    whole = play_out(Episode(workflow, workflow.task.problem(0), max_cycles=2), 1)
    assert (whole.truncated, len(whole.turns)) == (False, 6)


@pytest.mark.parametrize(
    ("fact", "kind"),
    [(object(), "object"), ({1, 2}, "set"), ([1, {"a": b""}], "list"), (np.int64(3), "int64"),
     (int, "type"), ({(1, 2): 3}, "dict")],
)  # fmt: skip
def test_a_fact_that_is_no_plain_value_is_named(fact, kind):
    play = ending(Outcome(score=1.0, facts={"fine": 1, "x": fact}))
    message = rf"the fact 'x' of an Outcome is of type {kind}: facts are plain values"
    with pytest.raises(WorkflowError, match=message):
        start(play).reply("writer_0", "x")


class OddFact(Workflow):
    """A workflow that states something that cannot be saved."""

    name = "odd_fact_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}

    def play(self, problem):
        yield Ask("writer_0", "write")
        return Outcome(score=1.0, facts={"x": object()})


def test_the_conformance_suite_names_such_a_fact():
    with pytest.raises(AssertionError, match=r"the fact 'x' .* type object: facts are plain"):
        check_workflow(make_workflow(OddFact))


@dataclass
class Point:
    x: int


def test_facts_may_be_nested_and_of_dataclasses():
    facts = {"list": [1, ("a", None)], "rows": {"a": {1: 0.5}}, "n": np.float64(2), "p": Point(1)}

    episode = start(ending(Outcome(score=1.0, facts=facts)))
    episode.reply("writer_0", "x")
    assert json.loads(json.dumps(record(episode).to_json()))["facts"]["p"] == {"x": 1}


@pytest.mark.parametrize("score", [7.0, -3, float("nan"), float("inf"), "1", 1j, None, [1]])
def test_a_score_out_of_range_is_refused_where_it_arises(score):
    episode = start(ending(Outcome(answer=3) if score is None else Outcome(score=score)))
    with pytest.raises(WorkflowError) as caught:
        episode.reply("writer_0", "x")
    message = str(caught.value)
    assert episode.workflow.name in message
    assert episode.problem.id in message
    assert repr(score) in message or "int" in message


@pytest.mark.parametrize("score", [0, 1, True, np.float32(0.5), np.int64(1), Fraction(1, 2)])
def test_every_kind_of_number_is_a_score(score):
    episode = start(ending(Outcome(score=score)))
    episode.reply("writer_0", "x")
    assert record(episode).score == float(score)
    assert type(record(episode).score) is float


def test_a_declared_range_is_brought_to_the_scale_of_accuracies():
    class Verdicts(Workflow):
        name: ClassVar[str] = "judged_v0"
        roles: ClassVar[dict[str, int]] = {"writer": 1}
        score_range: ClassVar[tuple[float, float]] = (-1.0, 7.0)

        def play(self, problem):
            reply = yield Ask("writer_0", "write", float)
            return Outcome(score=reply.strict)

    workflow = Verdicts(task=MathTask())
    for text, score in (("7", 1.0), ("-1", 0.0), ("3", 0.5)):
        episode = Episode(workflow, workflow.task.problem(0))
        episode.reply("writer_0", text)
        assert record(episode).score == score
    episode = Episode(workflow, workflow.task.problem(0))
    with pytest.raises(WorkflowError, match=r"judged_v0.*score .* must be from -1 to 7, got 8.0"):
        episode.reply("writer_0", "8")

    class Wrong(Verdicts):
        score_range: ClassVar[Any] = (1.0, 0.0)

    with pytest.raises(UsageError, match="score_range must be two finite numbers"):
        Wrong(task=MathTask())


@pytest.mark.parametrize("score", [2.0, float("nan"), "1"])
def test_a_grade_out_of_range_names_the_task(score):
    class Generous(MathTask):
        def grade_batch(self, problems, answers):
            return [GradeResult(score, "generous")] * len(answers)

    workflow = make_workflow("single_v0", Generous())
    episode = Episode(workflow, workflow.task.problem(0))
    episode.reply("generator_0", "x")
    with pytest.raises(
        WorkflowError, match=r"single_v0.*problem math/.*grade_batch of task 'math'"
    ):
        advance(episode)


class Undeclared(Workflow):
    """Runs a program and does not say so."""

    name: ClassVar[str] = "undeclared_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}

    def play(self, problem):
        yield Run("print(1)")
        return Outcome(score=1.0)


def test_programs_are_run_only_where_the_workflow_says_so():
    workflow = Undeclared(task=MathTask())
    with pytest.raises(WorkflowError, match="set `runs_programs = True`"):
        Episode(workflow, workflow.task.problem(0))
    with pytest.raises(AssertionError, match="set `runs_programs = True`"):
        check_workflow(workflow)


def test_a_reward_of_ones_own_is_a_finite_number():
    workflow = make_workflow("single_v0", episode_reward=lambda episode: float("nan"))
    episode = Episode(workflow, workflow.task.problem(0))
    episode.reply("generator_0", "x")
    advance(episode)
    with pytest.raises(
        UsageError, match=r"episode_reward .*<lambda> must return a finite number, got nan"
    ):
        record(episode)


class Marked(Workflow):
    """Only to show that a workflow without a script says so."""

    name: ClassVar[str] = "marked_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}


def test_a_workflow_without_a_script_says_so():
    workflow = Marked(task=MathTask())
    problem = replace(workflow.task.problem(0))
    with pytest.raises((WorkflowError, NotImplementedError), match=r"must define play\(\)"):
        Episode(workflow, problem)
