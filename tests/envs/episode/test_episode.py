"""Episodes: replies, phases, forks, limits of calls, and errors that name what failed."""

import asyncio
import importlib
import itertools
import json
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pettingzoo
import pytest

from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.rollout.joint import JointRollout
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import with_prompts
from flowzoo.cli import main
from flowzoo.envs import (
    Ask,
    Episode,
    EquivalenceClasses,
    Grade,
    GradeResult,
    InterimScore,
    Outcome,
    RoleScore,
    Run,
    Workflow,
    WorkflowError,
    make_env,
    make_workflow,
)
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.api.solo import SoloEnv
from flowzoo.envs.episode.recording import record, state_hash
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.testing import advance, check_workflow, play_out
from flowzoo.errors import TaskError, UsageError
from tests.envs.playing import echo, opened, start, toy


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


class Marked(Workflow):
    """Only to show that a workflow without a script says so."""

    name: ClassVar[str] = "marked_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}


def test_a_workflow_without_a_script_says_so():
    workflow = Marked(task=MathTask())
    problem = replace(workflow.task.problem(0))
    with pytest.raises((WorkflowError, NotImplementedError), match=r"must define play\(\)"):
        Episode(workflow, problem)


CALLS = r"test_episode\.py, line \d+.*: Endless\.play\(\) has made {} calls and did not end.*max_ca"


@dataclass(frozen=True)
class Endless(Workflow):
    """Asks two agents for ever."""

    name: ClassVar[str] = "endless_v0"
    roles: ClassVar[Mapping[str, int]] = {"writer": 2}

    def play(self, problem: Any) -> Any:
        while True:
            drafts = yield [Ask(f"writer_{slot}", problem.text) for slot in range(2)]
            yield Grade(None)
            yield InterimScore(0.5)
            yield RoleScore(drafts[0], 0.0)


@dataclass(frozen=True)
class Unasked(Endless):
    """Asks once, then yields something else for ever."""

    item: Callable[[Any], Any] = lambda reply: Grade("3")

    def play(self, problem: Any) -> Any:
        reply = yield Ask("writer_0", problem.text)
        while True:
            yield self.item(reply)


@dataclass(frozen=True)
class Crowd(Endless):
    """Asks a hundred and fifty agents seven times."""

    roles: ClassVar[Mapping[str, int]] = {"writer": 150}

    def play(self, problem: Any) -> Any:
        for _ in range(7):
            yield [Ask(f"writer_{slot}", problem.text) for slot in range(150)]
        return Outcome(score=1.0)


def play_env(workflow: Workflow) -> None:
    env = opened(make_env(workflow))
    for _ in env.agent_iter(10_000):
        env.step("no")


def play_solo(workflow: Workflow) -> None:
    env = opened(SoloEnv(workflow, role="writer", others=lambda role, messages: "no"))
    for _ in range(10_000):
        env.step("no")


def play_awaited(workflow: Workflow) -> None:
    async def steps() -> None:
        env = WorkflowEnv(workflow)
        await env.areset(seed=0)
        while env.agents:
            await env.astep("no")

    asyncio.run(steps())


def sampled(sampler: Callable[..., Any]) -> Callable[[Workflow], None]:
    def play(workflow: Workflow) -> None:
        policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.5), workflow.role_counts())
        sampler(workflow, policy_map).sample([EpisodeJob(workflow.task.problem(0))])

    return play


@pytest.mark.parametrize(
    "play",
    [
        lambda workflow: play_out(Episode(workflow, workflow.task.problem(0))),
        play_env, play_solo, play_awaited, check_workflow,
        sampled(Rollout), sampled(TreeRollout), sampled(JointRollout),
    ],
    ids=["episode", "aec", "solo", "astep", "check_workflow", "rollout", "tree", "joint"],
)  # fmt: skip
def test_a_script_that_asks_for_ever_is_stopped(play):
    failure = AssertionError if play is check_workflow else WorkflowError
    with pytest.raises(failure, match=CALLS.format(20)):
        play(make_workflow(Endless, max_calls=20))


def test_without_a_limit_of_its_own_a_script_may_make_a_thousand_calls():
    with pytest.raises(WorkflowError, match=CALLS.format("1,000")):
        play_out(Episode(make_workflow(Endless), make_workflow(Endless).task.problem(0)))
    crowd = make_workflow(Crowd)
    assert len(play_out(Episode(crowd, crowd.task.problem(0))).turns) == 1_050
    with pytest.raises(UsageError, match="max_calls: expected a whole number of at least 1"):
        make_workflow(Endless, max_calls=0)


@pytest.mark.parametrize(
    "item",
    [lambda reply: Grade("3"), lambda reply: [Grade("3")], lambda reply: InterimScore(1.0)],
    ids=["effect", "effects", "interim"],
)
@pytest.mark.parametrize("limit", [None, 2])
def test_a_script_that_asks_no_more_is_stopped(item, limit):
    workflow = make_workflow(Unasked, item=item, max_calls=limit)
    message = r"line \d+.*Unasked\.play\(\) has yielded 1,000 effects or notes since its last call"
    with pytest.raises(WorkflowError, match=message):
        play_out(Episode(workflow, workflow.task.problem(0)))


def test_as_many_calls_as_allowed_are_made_and_replayed():
    workflow = make_workflow("voting_v0", max_calls=4)
    episode = play_out(Episode(workflow, workflow.task.problem(0)))
    assert len(episode.turns) == 4
    assert episode.done
    assert pickle.loads(pickle.dumps(episode)).done
    few = make_workflow("voting_v0", max_calls=3)
    with pytest.raises(WorkflowError, match="has made 3 calls and did not end"):
        play_out(Episode(few, few.task.problem(0)))


def test_the_limit_changes_nothing_of_an_episode_that_ends():
    plain, limited = make_workflow("voting_v0"), make_workflow("voting_v0", max_calls=9)
    assert plain.spec_digest == limited.spec_digest


def test_beside_max_cycles_only_a_limit_that_was_set_holds():
    def played(**options: Any) -> Episode:
        workflow = make_workflow(Endless, **options)
        return play_out(Episode(workflow, workflow.task.problem(0), max_cycles=600))

    episode = played()
    assert (len(episode.turns), episode.truncated) == (1_200, True)
    with pytest.raises(WorkflowError, match=CALLS.format(30)):
        played(max_calls=30)


def test_it_is_an_argument_of_environments_and_of_commands(capsys):
    assert (
        pettingzoo.make("aec", "flowzoo/voting-v0", max_calls=7).unwrapped.workflow.max_calls == 7
    )
    assert with_prompts(TrainConfig(max_calls=7))[0].max_calls == 7
    with pytest.raises(UsageError, match="--max-calls and --options give 'max_calls' twice"):
        with_prompts(TrainConfig(max_calls=7, options=("max_calls=8",)))[0]
    name = f"{__file__}:Endless"
    for command in ("play", "eval"):
        arguments = [command, name, "--policy", "scripted:0.5", "--n", "1", "--max-calls", "6"]
        assert main(arguments) == 2
        message = capsys.readouterr().err
        assert "Endless.play() has made 6 calls and did not end" in " ".join(message.split())


SOURCE = '''
from typing import ClassVar

from flowzoo.envs import Ask, Judge, Outcome, Tool, UseTool, Workflow
from flowzoo.envs.tools import call_text

SIZE = Tool("size", "The size.", {"type": "object", "properties": {}})


class Sized:
    def use(self, calls):
        return ANSWER


class Own(Workflow):
    """A solver uses a tool, and a writer is judged."""

    name = "own_v0"
    roles: ClassVar = {"writer": 1, "solver": 1}
    tool_roles: ClassVar = ("solver",)
    asks_judge: ClassVar = JUDGES

    def play(self, problem):
        text = yield Ask("writer_0", "Write.")
        if JUDGES:
            yield Judge(text, "Good?")
        reply = yield Ask("solver_0", "What size?", tools=(SIZE,))
        yield UseTool(reply.tool_calls[0], Sized())
        return Outcome(score=1.0)

    def expert(self, role, messages, problem, rng, right):
        return call_text('{"name": "size", "arguments": {}}') if role == "solver" else "A text."
'''
NO_SIZE = "[str(1 // 0)]"


def written(folder: Path, answer: str = NO_SIZE, *, judges: bool = False) -> Path:
    path = folder / "own_tools.py"
    source = SOURCE.replace("ANSWER", answer).replace("JUDGES", str(judges))
    path.write_text(source, encoding="utf-8")
    return path


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`make(...)`: an environment of `Own`, after the writer's reply."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(answer: str = NO_SIZE, judge: Any = None) -> Any:
        written(tmp_path, answer, judges=judge is not None)
        sys.modules.pop("own_tools", None)
        importlib.invalidate_caches()
        env = opened(make_env(importlib.import_module("own_tools").Own, judge=judge))
        return env

    yield load
    sys.modules.pop("own_tools", None)


CALL = '<tool_call>{"name": "size", "arguments": {}}</tool_call>'


def test_an_error_of_a_tool_is_named(make):
    env = make()
    env.step("A text.")
    named = (
        r"tool size of problem math/train/0/\S+ \(own_v0, solver_0\) raised ZeroDivisionError: "
        r".* \(own_tools.py, line 12\)"
    )
    with pytest.raises(TaskError, match=named):
        env.step(CALL)


@pytest.mark.parametrize("answer", ["[]", "[7]", "['a', 'b']"])
def test_a_tool_that_answers_otherwise_is_named(answer, make):
    env = make(answer)
    env.step("A text.")
    with pytest.raises(UsageError, match=r"tool size of .* \(own_v0, solver_0\): `use` of"):
        env.step(CALL)


def test_an_error_of_a_judge_is_named(make):
    def judge(messages: Any) -> str:
        raise KeyError("verdict")

    named = (
        r"the judge of problem math/train/0/\S+ \(own_v0, writer_0\) raised KeyError.*\.py, line"
    )
    with pytest.raises(TaskError, match=named):
        make(judge=judge).step("A text.")
    with pytest.raises(UsageError, match=r"\(own_v0, writer_0\): `judge` must return a str"):
        make(judge=lambda messages: 1.0).step("A text.")


def test_a_command_prints_one_line(tmp_path, capsys):
    path = written(tmp_path)
    assert main(["eval", f"{path}:Own", "--policy", "scripted:1", "--n", "2"]) != 0
    said = capsys.readouterr().err
    assert "(own_v0, solver_0) raised ZeroDivisionError" in said
    assert "Traceback" not in said
