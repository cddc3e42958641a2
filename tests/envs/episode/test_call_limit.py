"""Scripts that do not end are stopped, wherever they are played."""

import asyncio
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

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
    Grade,
    InterimScore,
    Outcome,
    RoleScore,
    Workflow,
    WorkflowError,
)
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.api.registry import make_env, make_workflow
from flowzoo.envs.api.solo import SoloEnv
from flowzoo.envs.testing import check_workflow, play_out
from flowzoo.errors import UsageError

CALLS = (
    r"test_call_limit\.py, line \d+.*: Endless\.play\(\) has made {} calls and did not end.*max_cal"
)


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
    env = make_env(workflow)
    env.reset(seed=0)
    for _ in env.agent_iter(10_000):
        env.step("no")


def play_solo(workflow: Workflow) -> None:
    env = SoloEnv(workflow, role="writer", others=lambda role, messages: "no")
    env.reset(seed=0)
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
