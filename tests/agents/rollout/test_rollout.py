"""The rollout engine: equal records however it is driven, batches, failures, later turns."""

import asyncio
import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import pytest
import torch
from pettingzoo import AECEnv
from policies import Replies
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

from flowzoo.agents import Completion, Policy, PolicyMap, Request, Sampling
from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.policy import Batching
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.rollout.tree import TreeRollout, TreeSettings
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import (
    Ask,
    Call,
    EpisodeRecord,
    GradeResult,
    Outcome,
    Problem,
    Workflow,
    WorkflowError,
)
from flowzoo.envs.api.registry import WORKFLOWS, make_env, make_workflow
from flowzoo.envs.tasks.code.task import CodeTask
from flowzoo.envs.tasks.math import MathTask
from flowzoo.errors import UsageError

SIZES: list[int] = []
THREADS: set[int] = set()


@dataclass(frozen=True)
class WatchedMath(MathTask):
    """Notes the size of every batch it grades, and on which thread."""

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        SIZES.append(len(answers))
        THREADS.add(threading.get_ident())
        return super().grade_batch(problems, answers)


class Recorded(Replies):
    """Replies with the length of the agent's name, after a while if `slow`.

    It answers nothing before `together` calls are under way at once.
    """

    def __init__(
        self,
        batching: Batching = "static",
        name: str = "recorded",
        slow: bool = False,
        together: int = 1,
    ) -> None:
        super().__init__(self.complete, name, batching)
        self.slow, self.together = slow, together
        self.flying = self.most = 0
        self.enough = asyncio.Event()

    def complete(self, request: Request) -> Completion:
        return Completion(f"\\boxed{{{len(request.agent)}}}", (1, 2), (3,), (-0.5,))

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        replies = await super().generate(requests)
        self.flying += 1
        self.most = max(self.most, self.flying)
        if self.most >= self.together:
            self.enough.set()
        await asyncio.wait_for(self.enough.wait(), 60)
        if self.slow:
            await asyncio.sleep(random.random() / 200)
        self.flying -= 1
        return replies


def jobs(workflow: Workflow, count: int, samples: int = 1) -> list[EpisodeJob]:
    return [
        EpisodeJob(workflow.task.problem(index), sample)
        for index in range(count)
        for sample in range(samples)
    ]


def started(workflow: Workflow, indices: Sequence[int]) -> list[Any]:
    """AEC environments that stand at the beginning of these problems."""
    envs = [make_env(workflow) for _ in indices]
    for env, index in zip(envs, indices, strict=True):
        env.reset(options={"index": index})
    return envs


def scripted(workflow: Workflow, skill: float = 0.6) -> PolicyMap:
    return PolicyMap.shared(ScriptedPolicy(workflow, skill), workflow.role_counts())


def with_policy(workflow: Workflow, policy: Policy, **options: Any) -> Rollout:
    """A rollout in which a policy plays every role."""
    return Rollout(workflow, PolicyMap.shared(policy, workflow.roles), **options)


def rolled(name: str, count: int = 8, **options: Any) -> list[EpisodeRecord]:
    workflow = make_workflow(name)
    return Rollout(workflow, scripted(workflow), **options).run(jobs(workflow, count, 2))


@pytest.mark.usual(10)
@pytest.mark.parametrize("name", WORKFLOWS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_episodes_and_aec_environments_give_equal_records(name, deterministic):
    workflow = make_workflow(name)
    policy_map = scripted(workflow)
    problems = [workflow.task.problem(index) for index in range(8)]
    engine = Rollout(workflow, policy_map, seed=3, deterministic=deterministic)
    direct = engine.run([EpisodeJob(problem, number) for number, problem in enumerate(problems)])
    assert asyncio.run(engine.arun_envs(started(workflow, range(8)))) == direct
    assert len({str(record.facts) for record in direct}) >= 2


def test_phases_are_generated_at_once_through_episodes_and_in_turn_through_aec():
    """Voting takes 2 batches; AEC order takes 4."""
    workflow = make_workflow("voting_v0")
    policy = Recorded()
    engine = with_policy(workflow, policy)
    engine.run(jobs(workflow, 5))
    assert [len(batch) for batch in policy.batches] == [15, 5]
    policy.batches.clear()
    asyncio.run(engine.arun_envs(started(workflow, range(5))))
    assert [len(batch) for batch in policy.batches] == [5, 5, 5, 5]


def test_deterministic_batches_are_in_canonical_order():
    workflow = make_workflow("voting_v0")
    built = []
    for shuffle in (0, 1):
        policy = Recorded()
        order = jobs(workflow, 12, 2)
        random.Random(shuffle).shuffle(order)
        with_policy(workflow, policy).run(order)
        built.append([[request.key for request in batch] for batch in policy.batches])
    assert built[0] == built[1]
    assert built[0][0] == sorted(built[0][0])
    assert len(set(built[0][0])) == 72


@pytest.mark.usual(4)
@pytest.mark.parametrize("name", WORKFLOWS)
def test_records_do_not_depend_on_episodes_in_flight_or_arrival_order(name):
    """With policies whose replies are a function of the request's key.

    (A model's floats may depend on what shares its batch, and batches on `in_flight`.)
    """
    expected = rolled(name)
    assert rolled(name, in_flight=1) == expected
    assert rolled(name, in_flight=7) == expected
    assert rolled(name, deterministic=False) == expected
    assert rolled(name, deterministic=False, in_flight=3) == expected
    assert rolled(name, seed=1) != expected


@pytest.mark.parametrize("batching", ["static", "stream"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_slow_policies_that_finish_out_of_order_change_nothing(batching, deterministic):
    workflow = make_workflow("voting_v0")
    order = jobs(workflow, 10)
    records = []
    for slow in (False, True):
        policy = Recorded(batching, slow=slow)
        records.append(with_policy(workflow, policy, deterministic=deterministic).run(order))
    assert records[0] == records[1]


def test_stream_policies_get_requests_as_they_come():
    workflow = make_workflow("voting_v0")
    policy = Recorded("stream", slow=True, together=21)
    with_policy(workflow, policy, deterministic=False).run(jobs(workflow, 20))
    assert {len(batch) for batch in policy.batches} == {1}
    assert policy.most > 20


def test_a_static_policy_is_never_called_twice_at_a_time():
    workflow = make_workflow("eval_opt_v0")
    policy = Recorded("static", slow=True)
    with_policy(workflow, policy, deterministic=False).run(jobs(workflow, 20))
    assert policy.most == 1


def test_thousands_of_episodes_in_flight():
    """Admitted through `in_flight`, graded in chunks, off the loop."""
    workflow = make_workflow("voting_v0", WatchedMath())
    SIZES.clear()
    THREADS.clear()
    policy = Recorded()
    engine = with_policy(workflow, policy, in_flight=2000)
    records = engine.run(jobs(workflow, 2000))
    assert len(records) == 2000
    assert [len(batch) for batch in policy.batches] == [6000, 2000]
    assert sum(SIZES) == 6000
    assert 250 < max(SIZES) <= 260
    assert threading.get_ident() not in THREADS


def test_in_flight_bounds_the_open_episodes():
    workflow = make_workflow("single_v0")
    policy = Recorded()
    engine = with_policy(workflow, policy, in_flight=3)
    assert len(engine.run(jobs(workflow, 10))) == 10
    assert [len(batch) for batch in policy.batches] == [3, 3, 3, 1]
    with pytest.raises(UsageError, match="`in_flight` must be >= 1, got 0"):
        with_policy(workflow, policy, in_flight=0)


def test_jobs_are_taken_lazily():
    workflow = make_workflow("single_v0")
    chosen: list[int] = []

    def endless():
        for index in range(10**9):
            chosen.append(index)
            if index == 5:
                raise RuntimeError("stop here")
            yield EpisodeJob(workflow.task.problem(index))

    policy = Recorded()
    engine = with_policy(workflow, policy, in_flight=2)
    with pytest.raises(RuntimeError, match="stop here"):
        engine.run(endless())
    assert chosen == [0, 1, 2, 3, 4, 5]


def test_calls_carry_what_the_engine_reported_and_who_answered():
    workflow = make_workflow("voting_v0")
    item, two = Recorded(name="one"), Recorded(name="two")
    policy_map = PolicyMap({"generator": item, "aggregator": two, "generator_1": two})
    (record,) = Rollout(workflow, policy_map).run(jobs(workflow, 1))
    assert [call.policy for call in record.calls] == ["one", "two", "one", "two"]
    for call in record.calls:
        assert (call.prompt_ids, call.output_ids, call.logps) == ((1, 2), (3,), (-0.5,))
        assert call.episode == record.episode == f"{record.problem}#0"
    assert json.loads(json.dumps(record.to_json()))["calls"][0]["reply"] == "\\boxed{11}"


def test_samples_of_one_problem_have_ids_and_keys_of_their_own():
    workflow = make_workflow("single_v0")
    policy = Recorded()
    records = with_policy(workflow, policy, seed=9).run(
        [EpisodeJob(workflow.task.problem(4), sample) for sample in range(3)]
    )
    assert len({record.episode for record in records}) == 3
    problem = workflow.task.problem(4).id
    keys = [request.key for request in policy.batches[0]]
    assert keys == [(9, problem, sample, "generator_0", 0) for sample in range(3)]


def test_requests_never_hold_the_gold_answer():
    workflow = make_workflow("voting_v0")
    policy = Recorded()
    gold = "GOLD-4711"
    planted = [replace(workflow.task.problem(index), gold=gold) for index in range(3)]
    with_policy(workflow, policy).run([EpisodeJob(p) for p in planted])
    assert policy.batches
    assert gold not in repr(policy.batches)


def test_on_episode_is_told_of_every_episode_and_run_keeps_the_order_of_the_jobs():
    seen: list[str] = []
    workflow = make_workflow("eval_opt_v0")
    records = Rollout(
        workflow, scripted(workflow), on_episode=lambda record: seen.append(record.episode)
    ).run(jobs(workflow, 30))
    ids = [record.episode for record in records]
    assert ids == [job.key for job in jobs(workflow, 30)]
    assert sorted(seen) == sorted(ids) != seen


class Fragile(Workflow):
    """Fails on odd problems after its reply, on problem 4 before its first ask."""

    name: ClassVar[str] = "fragile_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}

    def play(self, problem):
        if problem.index == 4:
            raise LookupError("no prompt")
        reply = yield Ask("writer_0", f"write \ud800 {problem.index}")
        if problem.index % 2:
            raise ZeroDivisionError("odd")
        return Outcome(reply.text, 1.0)


def test_a_failing_script_stops_the_rollout_by_default():
    workflow = Fragile(task=MathTask())
    with pytest.raises(WorkflowError, match="ZeroDivisionError"):
        with_policy(workflow, Recorded()).run(jobs(workflow, 4))


def test_failures_are_counted_and_saved_with_their_transcript_when_told(tmp_path):
    workflow = Fragile(task=MathTask())
    path = tmp_path / "deep" / "failures.jsonl"
    engine = with_policy(workflow, Recorded(), on_error="count", failures=path)
    records = engine.run(jobs(workflow, 6))
    assert [record.problem for record in records] == [
        workflow.task.problem(index).id for index in (0, 2)
    ]
    assert engine.failed == 4
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    by_problem = {line["problem"]: line for line in lines}
    assert set(by_problem) == {workflow.task.problem(index).id for index in (1, 3, 4, 5)}
    item = by_problem[workflow.task.problem(1).id]
    assert item["episode"] == f"{item['problem']}#0"
    assert "ZeroDivisionError" in item["error"]
    assert item["transcript"][0]["reply"] == "\\boxed{8}"
    assert "\ud800" in item["transcript"][0]["messages"][0]["content"]
    four = by_problem[workflow.task.problem(4).id]
    assert (four["episode"], four["transcript"]) == (f"{four['problem']}#0", [])


class Crashing(Recorded):
    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        raise ConnectionError("engine lost")


class Forgetful(Recorded):
    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return (await super().generate(requests))[:-1]


@pytest.mark.parametrize("on_error", ["raise", "count"])
def test_a_broken_engine_always_stops_the_rollout(on_error):
    workflow = make_workflow("voting_v0")
    for policy, error, message in (
        (Crashing(), ConnectionError, "engine lost"),
        (Forgetful(), UsageError, "returned 14 completions for 15 requests"),
    ):
        engine = with_policy(workflow, policy, on_error=on_error)
        with pytest.raises(error, match=message):
            engine.run(jobs(workflow, 5))


async def test_run_inside_a_loop_says_what_to_do_and_arun_works():
    workflow = make_workflow("single_v0")
    engine = Rollout(workflow, scripted(workflow))
    with pytest.raises(UsageError, match=r"await rollout.arun\(jobs\)"):
        engine.run(jobs(workflow, 1))
    assert len(await engine.arun(jobs(workflow, 2))) == 2


async def test_a_cancelled_rollout_leaves_no_task_behind():
    requested = asyncio.Event()

    class Stuck(Recorded):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            requested.set()
            await asyncio.Event().wait()
            return []

    workflow = make_workflow("single_v0")
    engine = with_policy(workflow, Stuck())
    running = asyncio.create_task(engine.arun(jobs(workflow, 2)))
    await asyncio.wait_for(requested.wait(), 60)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Echo(AECEnv):
    """Two agents that each say two things; the observation is a plain string."""

    metadata: ClassVar[dict[str, Any]] = {"name": "echo_v0"}

    def __init__(self, end: Literal["terminated", "truncated"] = "terminated") -> None:
        super().__init__()
        self.possible_agents = ["left_0", "right_0"]
        self.end = end
        self.reset()

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        self.agents = list(self.possible_agents)
        self.said = []
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "left_0"

    def observe(self, agent: str) -> Any:
        return " ".join(self.said)

    def step(self, action: str | None) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.said.append(str(action))
        self.rewards[agent] = 1.0 if agent == "left_0" else 0.25
        if len(self.said) == 4:
            over = self.terminations if self.end == "terminated" else self.truncations
            over.update(dict.fromkeys(self.agents, True))
        self.agent_selection = self.possible_agents[len(self.said) % 2]
        self._accumulate_rewards()


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_environments_of_others_are_driven_by_their_api(end):
    policy = Recorded()
    env = Echo(end)
    engine = Rollout(None, PolicyMap({"left": policy, "right": policy}))
    (record,) = asyncio.run(engine.arun_envs([env]))
    assert [call.agent for call in record.calls] == ["left_0", "right_0"] * 2
    assert record.calls[1].messages == ({"role": "user", "content": "\\boxed{6}"},)
    assert record.returns == {"left_0": 2.0, "right_0": 0.5}
    assert (record.score, record.truncated) == (1.25, end == "truncated")
    assert [call.reward for call in record.calls] == [2.0, 0.5, 2.0, 0.5]


def test_an_environment_of_others_that_does_not_end_is_stopped():
    engine = Rollout(None, PolicyMap({"left": (policy := Recorded()), "right": policy}))
    for limit in (4, 3):
        env = Echo()
        run = engine.arun_envs([env], max_calls=limit)
        if limit == 4:  # as many as it takes
            assert len(asyncio.run(run)[0].calls) == 4
            continue
        with pytest.raises(WorkflowError, match=r"answered 3 times and goes on: .* max_calls=N"):
            asyncio.run(run)


def test_an_observation_that_is_no_chat_says_what_to_pass():
    class Numbers(Echo):
        def observe(self, agent: str) -> Any:
            return 7

    policy = Recorded()
    engine = Rollout(None, PolicyMap({"left": policy, "right": policy}))
    env = Numbers()
    with pytest.raises(UsageError, match=r"type int as chat messages: .*`observe` of arun_envs"):
        asyncio.run(engine.arun_envs([env]))
    output = engine.arun_envs([env], lambda obs: [{"role": "user", "content": str(obs)}])
    assert asyncio.run(output)[0].calls[0].messages[0]["content"] == "7"


def test_an_agent_without_a_policy_and_jobs_without_a_workflow_are_errors():
    engine = Rollout(None, PolicyMap({"left": Recorded()}))
    env = Echo()
    with pytest.raises(UsageError, match=r"unknown role or agent 'right_0'.*left"):
        asyncio.run(engine.arun_envs([env]))
    with pytest.raises(UsageError, match="jobs need a workflow"):
        engine.run([EpisodeJob(MathTask().problem(0))])


# -- programs run off the event loop ---------------------------------------------------------------


GRADES, OTHERS_ARE_DONE = threading.Event(), threading.Event()


@dataclass(frozen=True)
class Held(CodeTask):
    """Grades the first problem once the episodes of the others are over."""

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        if any(problem.index == 0 for problem in problems):
            GRADES.set()
            assert OTHERS_ARE_DONE.wait(60), "the others were held up"
        return super().grade_batch(problems, answers)


class Loops:
    """Writes a program that never ends for one problem, and the right one for the others.

    The others get theirs when the first is being graded, for which the loop has to be free.
    """

    name = "loops"
    batching: Batching = "stream"

    def __init__(self, oracle: ScriptedPolicy, slow: str) -> None:
        self.oracle, self.slow = oracle, slow

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        if requests[0].problem == self.slow:
            text = "```python\nwhile True:\n    pass\n```"
            return [Completion(text, finish="scripted")]
        while not GRADES.is_set():
            await asyncio.sleep(0.005)
        return await self.oracle.generate(requests)

    async def close(self) -> None:
        pass


async def test_a_program_that_never_ends_holds_up_neither_the_loop_nor_the_others():
    GRADES.clear()
    OTHERS_ARE_DONE.clear()
    workflow = make_workflow("single_v0", Held(cpu_s=0.5))
    problems = [workflow.task.problem(index) for index in range(3)]
    done: list[str] = []

    def note(record: EpisodeRecord) -> None:
        done.append(record.problem)
        if len(done) == 2:
            OTHERS_ARE_DONE.set()

    policy = Loops(ScriptedPolicy(workflow, 1.0), problems[0].id)
    rollout = Rollout(
        workflow, PolicyMap({"generator": policy}), deterministic=False, on_episode=note
    )
    records = await rollout.arun([EpisodeJob(problem) for problem in problems])
    assert [record.score for record in records] == [0.0, 1.0, 1.0]
    assert records[0].facts["status"] == "TLE"
    assert done[-1] == problems[0].id


TASK = MathTask()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@dataclass(frozen=True)
class Talk(Workflow):
    """A writer is asked three times in one chat, with a reader between."""

    name: ClassVar[str] = "talk_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1, "reader": 1}

    def play(self, problem):
        chat = [user(f"Write {problem.index}.")]
        for _ in range(3):
            reply = yield Ask("writer_0", chat)
            read = yield Ask("reader_0", [user(reply.text)])
            chat = [*chat, reply.message(), user(read.text)]
        return Outcome(reply.text, 1.0)


@dataclass(frozen=True)
class Edited(Workflow):
    """A writer whose first reply is shortened before its second turn; the third goes on."""

    name: ClassVar[str] = "edited_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}

    def play(self, problem):
        first = yield Ask("writer_0", [user("Write.")])
        short = {"role": "assistant", "content": f"I wrote {len(first.text)} letters."}
        chat = [user("Write."), short, user("More.")]
        second = yield Ask("writer_0", chat)
        third = yield Ask("writer_0", [*chat, second.message(), user("More.")])
        return Outcome(third.text, 1.0)


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    """A model that samples bytes at random, so that few replies are how a tokenizer splits them."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(pocket_path("math"))
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    return TransformersPolicy(model, tokenizer, sampling=Sampling(max_tokens=12))


def talks(count: int = 4) -> list[EpisodeJob]:
    return [EpisodeJob(TASK.problem(index)) for index in range(count)]


def body(call: Call) -> tuple[int, ...]:
    return tuple(call.output_ids[: -1 if call.finish == "stop" else None])


def begins_with(later: Call, call: Call, policy: TransformersPolicy) -> bool:
    """Whether a prompt begins with an earlier one and its reply; asserts that it should.

    A reply with a special token in it is not what the template writes of it.
    """
    begin = (*call.prompt_ids, *body(call))
    begins = tuple(later.prompt_ids[: len(begin)]) == begin
    assert begins != bool({*body(call)} & {*policy.tokenizer.added_tokens_decoder})
    return begins


def plain(policy: TransformersPolicy, call: Call) -> tuple[int, ...]:
    """The prompt of a call as the chat template and the tokenizer write it."""
    return tuple(policy.tokenizer.apply_chat_template(
        list(call.messages), add_generation_prompt=True, return_dict=False
    ))  # fmt: skip


def test_a_later_prompt_begins_with_the_sampled_tokens(policy):
    workflow = Talk(task=TASK)
    records = Rollout(workflow, PolicyMap.shared(policy, workflow.roles)).run(talks())
    split_otherwise = 0
    for record in records:
        first, second, third = (call for call in record.calls if call.role == "writer")
        for later, call in ((second, first), (third, second)):
            kept = begins_with(later, call, policy)
            assert policy.tokenizer.decode(later.prompt_ids) == (
                policy.tokenizer.decode(plain(policy, later))
            )
            split_otherwise += kept and tuple(later.prompt_ids) != plain(policy, later)
        assert all(
            tuple(call.prompt_ids) == plain(policy, call)
            for call in record.calls
            if call.role == "reader"
        )
    assert split_otherwise > 3


def test_an_edited_turn_is_rendered_and_the_later_ones_go_on_from_it(policy):
    workflow, kept = Edited(task=TASK), 0
    for record in Rollout(workflow, PolicyMap.shared(policy, workflow.roles)).run(talks()):
        first, second, third = record.calls
        assert tuple(second.prompt_ids) == plain(policy, second) != first.prompt_ids
        kept += begins_with(third, second, policy)
    assert kept > 2


def test_candidates_go_on_from_the_reply_that_was_executed(policy):
    workflow = Talk(task=TASK)
    settings = TreeSettings(candidates=2, value="rollout", value_rollouts=1, select="best")
    policies = PolicyMap.shared(policy, workflow.roles)
    batch, kept = TreeRollout(workflow, policies, settings).sample(talks(2)), 0
    for record in batch.records:
        executed = [call for call in record.calls if call.role == "writer"]
        rows = [row for row in batch.rows if row.episode == record.episode]
        for before, turn in zip(executed, (1, 2), strict=False):
            later = [row for row in rows if row.role == "writer" and row.turn == turn]
            assert len(later) == 2
            kept += sum(begins_with(row, before, policy) for row in later)
    assert kept > 3


def test_an_environment_is_played_with_the_tokens_of_the_script(policy):
    workflow = Talk(task=TASK)
    rollout = Rollout(workflow, PolicyMap.shared(policy, workflow.roles))
    (played,) = rollout.run(talks(1))
    env = make_env(workflow)
    env.reset(options={"index": 0})
    (driven,) = asyncio.run(rollout.arun_envs([env]))
    ids = [[call.prompt_ids for call in record.calls] for record in (played, driven)]
    assert ids[0] == ids[1]
