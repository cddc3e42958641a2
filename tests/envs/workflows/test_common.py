"""What all workflows share: the control, kinds of answers, and thoughts."""

import json
from typing import Any, ClassVar

import pytest

from flowzoo.cli import main
from flowzoo.envs import Episode, make_env, make_workflow
from flowzoo.envs.api.registry import WORKFLOWS, workflow_class
from flowzoo.envs.episode.recording import record
from flowzoo.envs.tasks import TASKS, task_class
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.tasks.task import KINDS
from flowzoo.envs.testing.playthrough import play_with
from flowzoo.errors import UsageError
from tests.envs.playing import play, play_experts

MATH = [name for name in WORKFLOWS if "math" in workflow_class(name).kinds]


def test_golden_transcript():
    finished = play("single_v0", {"generator_0": ["\\boxed{14}"]})
    (call,) = finished.calls
    assert call.messages == (
        {"role": "user", "content": "Compute 2+3*4.\nPut the final answer in \\boxed{}."},
    )
    assert (call.reward, call.role_score, finished.score, finished.answer) == (1.0, 1.0, 1.0, "14")


@pytest.mark.parametrize(("preset", "score"), [("strict", 0.0), ("paper", 1.0)])
def test_strict_reads_boxes_only(preset, score):
    finished = play("single_v0", {"generator_0": ["The answer is 14."]}, preset=preset)
    assert finished.score == score
    assert (finished.calls[0].strict, finished.calls[0].lenient) == (False, True)


# An orchestrator plans, and a reasoner with tools is told of them.
OTHERS = [name for name in MATH if name not in ("orch_workers_v0", "reasoner_python_v0")]


@pytest.mark.parametrize("name", OTHERS)
def test_the_control_sees_the_same_text_as_the_first_role_of_the_others(name):
    prompts = []
    for workflow in (make_workflow("single_v0"), make_workflow(name)):
        episode = Episode(workflow, workflow.task.problem(5))
        prompts.append(episode.waiting[0].messages)
    assert prompts[0] == prompts[1]


ON_CODE = [name for name in MATH if "code" in workflow_class(name).kinds]
TEAMS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"level": level}) for name in MATH for level in (1, 3, 5)),
    *(
        (name, {"task": "code", "preset": preset, "level": level})
        for name in ON_CODE
        for preset in workflow_class(name).presets
        for level in (1, 3)
    ),
    *(("coder_tester_v0", {"level": level}) for level in (1, 3)),
    *(("tool_planner_v0", {"task": task}) for task in ("plan_path", "sokoban", "sudoku")),
]


@pytest.mark.parametrize(("name", "options"), TEAMS)
def test_experts_of_full_skill_always_score_and_without_skill_never(name, options):
    workflow = make_workflow(name, **options)
    for index in range(4):
        problem = workflow.task.problem(index, "validation")
        done, failed = (record(play_experts(workflow, problem, n, index)) for n in (1.0, 0.0))
        assert done.score == 1.0 > failed.score
        if name == "coder_tester_v0":
            assert (done.facts["turns"], done.facts["valid_tests"]) == (1, 1.0)
        assert all(call.role_score in (None, 1.0) for call in done.calls)
        for call in done.calls if "code" in options.values() else ():
            told = call.role in ("aggregator", "evaluator") or call.turn > 0
            assert told or "boxed" not in str(call.messages)


class Haiku(MathTask):
    """Answers of a kind that no workflow has heard of."""

    name: ClassVar[str] = "haiku"
    kind: ClassVar[str] = "verse"


def test_the_kinds_are_those_of_the_tasks():
    assert set(KINDS) == {task_class(name).kind for name in TASKS}
    assert all(set(workflow_class(name).kinds) <= set(KINDS) for name in WORKFLOWS)


@pytest.mark.parametrize("name", ["single", "voting"])
def test_a_kind_of_its_own_is_played_where_answers_are_only_graded(name):
    env = make_env(name, Haiku())
    env.reset(seed=0)
    respond = env.unwrapped.workflow.responder(env.unwrapped.episode.problem)
    while not any(env.terminations.values()):
        agent = env.agent_selection
        env.step(respond(agent.rsplit("_", 1)[0], env.observe(agent)["messages"]))
    assert env.record().score == 1.0


@pytest.mark.parametrize("name", sorted({*WORKFLOWS} - {"single_v0", "voting_v0"}))
def test_the_others_say_what_to_do(name):
    with pytest.raises(
        UsageError, match=r"of kind 'verse'.*work with single_v0, voting_v0"
    ) as caught:
        make_workflow(name, Haiku())
    assert f"set kind = {workflow_class(name).kinds[0]!r} in Haiku" in str(caught.value)


def test_a_kind_of_flowzoo_that_a_workflow_does_not_know_stays_refused():
    with pytest.raises(UsageError, match=r"kind math, code, search, actions: math, code"):
        make_workflow("single_v0", "writing")


def test_it_is_named_on_the_command_line(capsys):
    arguments = ["--task", f"{__file__}:Haiku", "--policy", "scripted:1", "--n", "3", "--json"]
    assert main(["eval", "voting", *arguments]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[0])
    assert summary["accuracy"] == 1.0
    assert main(["play", Haiku.home, "--task", f"{__file__}:Haiku", "--policy", "scripted:1"]) == 0
    assert main(["eval", "eval_opt", *arguments]) == 2
    caught = capsys.readouterr().err
    assert caught.startswith("error: eval_opt_v0 does not support task 'haiku'")
    assert caught.count("\n") == 1


THOUGHT = "<think>I guess \\boxed{12345} SECRET</think>"
OPEN = "<think>SECRET \\boxed{12345} Correct 1"


def answered(name: str, reply, **settings: object) -> Episode:
    """One episode of workflow `name`; `reply(agent)` answers."""
    workflow = make_workflow(name, "math", **settings)
    episode = Episode(workflow, workflow.task.problem(0, "validation"))
    return play_with(episode, lambda turn: reply(turn.agent))


@pytest.mark.parametrize("name", ["voting_v0", "eval_opt_v0", "orch_workers_v0"])
@pytest.mark.parametrize("preset", ["strict", "paper"])
def test_team_mates_do_not_see_thoughts_and_the_record_keeps_them(name, preset):
    episode = answered(name, lambda agent: f"{THOUGHT} it is \\boxed{{7}} ", preset=preset)
    calls = record(episode).calls
    assert len(calls) > 1
    for call in calls:
        assert call.reply == f"{THOUGHT} it is \\boxed{{7}} "
        assert all("SECRET" not in message["content"] for message in call.messages)
    assert all(turn.reply and "SECRET" not in turn.reply.text for turn in episode.turns)
    assert "SECRET" in str(episode.transcript())


@pytest.mark.parametrize("name", ["voting_v0", "eval_opt_v0", "orch_workers_v0"])
def test_asked_for_thoughts_are_shown_and_still_not_graded(name):
    def reply(agent: str) -> str:
        return f"\\boxed{{Correct}} STRATEGY 1: add {OPEN}" if agent[0] in "eo" else OPEN

    episode = answered(name, reply, thoughts="show")
    calls = record(episode).calls
    assert any("SECRET" in message["content"] for call in calls for message in call.messages)
    assert episode.finished().answer is None


def test_a_thought_that_was_cut_off_says_nothing_under_any_preset():
    for preset in ("strict", "paper"):
        calls = record(answered("voting_v0", lambda agent: OPEN, preset=preset)).calls
        assert not any(call.strict or call.lenient for call in calls)
        calls = record(answered("eval_opt_v0", lambda agent: OPEN, preset=preset)).calls
        assert not any(call.strict or call.lenient for call in calls)


def test_an_unknown_way_with_thoughts_is_refused():
    with pytest.raises(UsageError, match=r"unknown thoughts 'shown'.*show"):
        make_workflow("voting_v0", "math", thoughts="shown")
