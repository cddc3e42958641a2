"""Agent programs as workflows: turns, phases, answers, replays, settings."""

import asyncio
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import pytest
from agent_programs import DRAFTED, REVIEWED, Client, play_together, reviewed, start, threaded

from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.rollout.settings import TreeSettings
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import Ask, Episode, EpisodeRecord, Outcome, Workflow, make_env
from flowzoo.envs.external.program import OpenAIProgram, read_program, read_roles
from flowzoo.envs.records import SampledReply
from flowzoo.envs.testing import advance, check_workflow
from flowzoo.envs.testing.workflow_checks import check_api, check_forks, check_seeds
from flowzoo.errors import DivergedError, UsageError
from tests.envs.playing import opened


@dataclass(frozen=True)
class Drafted(Workflow):
    """`drafted` as a script."""

    name: ClassVar[str] = "drafted_v0"
    roles: ClassVar[Mapping[str, int]] = {"writer": 2, "reviewer": 1}

    def play(self, problem: Any) -> Any:
        question = self.task.prompt(problem)
        drafts = yield [Ask(f"writer_{number}", question) for number in range(2)]
        text = "\n\n".join([question, *(draft.text for draft in drafts)])
        reply = yield Ask("reviewer_0", text)
        return Outcome(self.task.answer(reply.text) or reply.text.strip())


def records(workflow: Workflow, samples: int = 2) -> list[EpisodeRecord]:
    policy_map = PolicyMap(dict.fromkeys(workflow.role_counts(), ScriptedPolicy(workflow, 0.6)))
    jobs = [EpisodeJob(workflow.task.problem(n), s) for n in range(6) for s in range(samples)]
    return Rollout(workflow, policy_map, seed=3).run(jobs)


def test_a_program_plays_as_the_script_that_asks_the_same():
    scripted, programmed = records(Drafted(task=DRAFTED.task)), records(DRAFTED)
    seen = [
        [
            (record.problem, record.episode, record.answer, record.score, dict(record.returns)),
            [
                (c.agent, c.turn, c.phase, c.slot, c.messages, c.reply, c.reward)
                for c in record.calls
            ],
        ]
        for of in (scripted, programmed)
        for record in of
    ]
    assert seen[: len(scripted)] == seen[len(scripted) :]
    assert {record.score for record in programmed} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("check", "workflow"),
    [
        (check_api, REVIEWED),
        (check_seeds, REVIEWED),
        (check_forks, DRAFTED),
        pytest.param(check_workflow, REVIEWED, marks=pytest.mark.full),
    ],
)
def test_it_is_an_ordinary_environment(check, workflow):
    check(workflow)


def test_requests_of_a_role_are_turns_of_its_agents_in_the_order_of_their_texts():
    workflow = OpenAIProgram(threaded, roles={"writer": 2}, at_once=2)
    (episode,) = play_together(workflow)
    assert [(t.agent, t.phase, t.messages[0]["content"][0]) for t in episode.turns] == [
        ("writer_0", 0, "a"),
        ("writer_1", 0, "b"),
    ]
    alone = OpenAIProgram(threaded, roles="writer", at_once=2)  # the second waits for its turn
    (episode,) = play_together(alone)
    assert [(t.agent, t.phase, t.turn) for t in episode.turns] == [
        ("writer_0", 0, 0),
        ("writer_0", 1, 1),
    ]


async def by_client(problem: str, base_url: str, key: str) -> str:
    """The official client, asynchronously, with a stream."""
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
        names = [model.id async for model in await client.models.list()]
        first = await client.chat.completions.create(
            model="writer",
            messages=[
                {"role": "developer", "content": "Solve."},
                {"role": "user", "content": problem},
            ],
            temperature=0.5,
            stop=["STOP"],
        )
        stream = await client.chat.completions.create(
            model="writer_0",
            messages=[{"role": "user", "content": [{"type": "text", "text": "again"}]}],
            stream=True,
            stream_options={"include_usage": True},
        )
        text, tokens = "", None
        async for chunk in stream:
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            tokens = chunk.usage or tokens
        assert first.usage is not None
        assert tokens is not None
        return repr((names, first.choices[0].message.content, first.choices[0].finish_reason,
                     first.usage.total_tokens, text, tokens.total_tokens))  # fmt: skip


def test_the_official_client_reads_replies_streams_models_and_token_counts():
    pytest.importorskip("openai")
    env = opened(make_env(OpenAIProgram(by_client, roles="writer", at_once=1)))
    assert env.observe("writer_0")["messages"][0] == {"role": "system", "content": "Solve."}
    reply = SampledReply(
        "<think>x</think>one STOP two",
        prompt_ids=[1, 2],
        output_ids=[3],
        logps=[0.0],
        finish="length",
    )
    env.step(reply)
    env.step("two \ud800")
    facts = env.unwrapped.episode.finished().facts
    assert facts["ended"] == "answer", facts
    assert env.unwrapped.episode.finished().answer == repr(
        (["writer", "writer_0"], "one ", "stop", 3, "two \ufffd", 0)
    )


RUNS = count()


def stateful(problem: str, base_url: str, key: str) -> str:
    """Asks something else in every run."""
    client = Client(base_url, key)
    client.ask("writer", f"{problem} {next(RUNS)}")
    return client.ask("writer", "again")


def test_a_program_that_asks_something_else_when_it_is_run_again_is_found():
    workflow = OpenAIProgram(stateful, roles="writer", at_once=1)
    episode = start(workflow)
    twin = episode.fork()  # has the same log, and no run
    for copy in (episode, twin):
        copy.reply("writer_0", "1")
    advance(episode)
    with pytest.raises(DivergedError, match="asked writer"):
        advance(twin)
    episode.reply("writer_0", "2")  # which goes on
    advance(episode)
    assert episode.finished().answer == "2"


def test_what_replays_refuses_a_program_that_is_declared_as_not_repeatable():
    workflow = OpenAIProgram(stateful, roles="writer", at_once=1, repeatable=False)
    assert all(record.facts["ended"] == "answer" for record in records(workflow, 1))
    policy_map = PolicyMap({"writer": ScriptedPolicy(workflow, 1.0)})
    with pytest.raises(UsageError, match="not repeatable"):
        TreeRollout(workflow, policy_map)
    episode = start(workflow)
    twin = pickle.loads(pickle.dumps(episode))
    for copy in (episode, twin):
        copy.reply("writer_0", "1")
    advance(episode)
    with pytest.raises(UsageError, match="not repeatable"):
        advance(twin)


def test_tree_sampling_continues_copies_of_a_program():
    policy_map = PolicyMap(dict.fromkeys(("writer", "reviewer"), ScriptedPolicy(REVIEWED, 0.5)))
    sampler = TreeRollout(REVIEWED, policy_map, TreeSettings(candidates=2, value="rollout"))
    batch = sampler.sample([EpisodeJob(REVIEWED.task.problem(n)) for n in range(3)])
    assert [len(record.calls) for record in batch.records] == [2, 2, 2]
    assert len(batch.rows) == 12


def answers_in_turn(workflow: OpenAIProgram, count: int) -> list[str | None]:
    """Answers of episodes that are moved one after the other."""
    episodes = [Episode(workflow, workflow.task.problem(n), "e") for n in range(count)]
    for _ in range(2):
        for episode in episodes:
            advance(episode)
            episode.reply(episode.waiting[0].agent, "\\boxed{7}")
    return [advance(episode) or episode.finished().answer for episode in episodes]


def test_more_episodes_than_programs_that_may_run():
    few = replace(REVIEWED, max_open=2)
    assert records(few) == records(REVIEWED)
    assert answers_in_turn(few, 5) == ["7"] * 5  # each ends the run that another waits for


def test_a_run_that_waits_goes_on_where_there_is_room_for_it():
    # Of a program that is not repeatable an ended run is an error.
    once = replace(REVIEWED, max_open=12, repeatable=False)
    assert answers_in_turn(once, 12) == ["7"] * 12


COMMAND = """
import json, os, sys, urllib.request
def ask(model, text):
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    reply = json.load(urllib.request.urlopen(request))
    return reply["choices"][0]["message"]["content"]
problem = sys.stdin.read()
print(ask("reviewer", problem + "\\n\\n" + ask("writer", problem)))
"""


def test_a_command_plays_as_its_function(tmp_path):
    file = tmp_path / "an agent.py"
    file.write_text(COMMAND, encoding="utf-8")
    workflow = OpenAIProgram((sys.executable, str(file)), roles="writer,reviewer", at_once=1)
    assert f"program: {file}" in workflow.functions
    assert workflow.open_limit == 32
    command, function = play_together(workflow, REVIEWED)
    assert command.log == function.log


def test_a_function_is_named_with_its_roles_beside_it(tmp_path):
    file = tmp_path / "agent.py"
    file.write_text("ROLES = {'a': 2, 'b': 1}\nasync def solve(problem, base_url, api_key): ...\n")
    workflow = OpenAIProgram(f"{file}:solve")
    assert list(workflow.agents) == ["a_0", "a_1", "b_0"]
    assert list(workflow.functions) == [f"program={file}:solve"]
    assert pickle.loads(pickle.dumps(workflow)).program == workflow.program
    (episode,) = play_together(workflow)  # returns None, and asks nobody
    assert episode.finished().answer is None
    assert episode.finished().facts["ended"] == "answer"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run": 3}, "a program is a function, its name"),
        ({"run": ()}, "a program is a function, its name"),
        ({"run": "no-such-command --x"}, "command 'no-such-command' does not exist"),
        ({"run": "python 'x"}, "No closing quotation"),
        ({"run": "no_such_module:solve"}, "importing no_such_module raised"),
        ({"roles": ()}, "name the roles of the program"),
        ({"roles": {"writer": 0}}, "the number of writer"),
        ({"roles": "writer:two"}, "the number of writer"),
        ({"roles": "writer:1,writer:2"}, "roles give .writer. twice"),
        ({"roles": {"": 1}}, "expected the name of a role"),
        ({"at_once": 0}, "at_once"),
        ({"settle": -1}, "settle"),
        ({"seconds": 0}, "seconds"),
        ({"steps": 3}, "has no argument steps"),
    ],
)
def test_mistakes_in_settings(settings, message):
    with pytest.raises(UsageError, match=message):
        OpenAIProgram(**{"run": reviewed, "roles": "writer", **settings})


def test_words_of_a_setting():
    assert read_roles("generator:3, judge") == (("generator", 3), ("judge", 1))
    assert read_program(f"{sys.executable} 'my agent.py'") == (sys.executable, "my agent.py")
    assert asyncio.iscoroutinefunction(read_program(f"{__name__}:by_client").function)
