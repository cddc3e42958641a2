"""Workflows that play a task, by the kind of its answers; a new kind among them."""

import json
from typing import ClassVar

import pytest

from flowzoo.cli import main
from flowzoo.envs import make_env, make_workflow
from flowzoo.envs.api.registry import WORKFLOWS, workflow_class
from flowzoo.envs.tasks import TASKS, task_class
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.tasks.task import KINDS
from flowzoo.errors import UsageError


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
