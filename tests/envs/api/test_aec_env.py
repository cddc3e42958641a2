"""The AEC adapter: rules 5, 6, 9-14 and 16 of the design's core document."""

import asyncio
import copy
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flowzoo.envs import Ask, Grade, GradeResult, Guard, Outcome, Problem, WorkflowEnv
from flowzoo.envs.api.registry import make_env, make_workflow
from flowzoo.envs.episode.faults import WorkflowError
from flowzoo.envs.tasks.math import MathTask
from flowzoo.errors import EnvironmentBusyError, UsageError
from tests.envs.playing import toy

GATE = threading.Event()
GRADES = threading.Event()
"""A grader has reached the gate."""


@dataclass(frozen=True)
class SlowMath(MathTask):
    """Grading waits until the gate is open."""

    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        GRADES.set()
        assert GATE.wait(60)
        return super().grade_batch(problems, answers)


@pytest.fixture(autouse=True)
def gate() -> Iterator[None]:
    GATE.clear()
    GRADES.clear()
    yield
    GATE.set()


def graded_first(self, problem):
    before = yield Grade(problem.gold)
    draft = yield Ask("writer_0", f"worth {before.score}")
    grade = yield Grade(draft.text, of=draft)
    yield Ask("judge_0", "judge")
    return Outcome(draft.text, grade.score)


def drive(env: Any, reply: Callable[[str, int], str]) -> list[tuple[str, float, bool]]:
    """PettingZoo's loop; returns agent, reward and whether it was a dead step, per turn."""
    rows = []
    for number, agent in enumerate(env.agent_iter()):
        _, reward, terminated, truncated, _ = env.last()
        over = terminated or truncated
        rows.append((agent, reward, over))
        env.step(None if over else reply(agent, number))
    return rows


def right(env: Any) -> Callable[[str, int], str]:
    """Replies of experts that do their jobs rightly."""
    core = env.unwrapped
    respond = core.workflow.responder(core.episode.problem)
    roles = core.workflow.agents
    return lambda agent, number: respond(roles[agent][0], env.observe(agent)["messages"])


async def at_the_gate() -> None:
    """Wait until a grader stands at the gate."""
    end = time.monotonic() + 60
    while not GRADES.is_set():
        assert time.monotonic() < end, "nothing was graded"
        await asyncio.sleep(0.005)


async def started() -> Guard:
    """An environment at its first ask, whose next grading waits at the gate."""
    env = Guard(WorkflowEnv(toy(graded_first, SlowMath())))
    GATE.set()
    await env.areset(seed=0)
    GATE.clear()
    GRADES.clear()
    return env


async def test_areset_awaits_effects_before_the_first_ask():
    env = Guard(WorkflowEnv(toy(graded_first, SlowMath())))
    starting = asyncio.create_task(env.areset(seed=0))
    await at_the_gate()
    assert not starting.done()
    GATE.set()
    await starting
    assert env.last()[0] == {"messages": [{"role": "user", "content": "worth 1.0"}]}


async def test_astep_keeps_the_old_fields_until_it_is_done_and_refuses_other_use():
    env = await started()
    before = (env.agent_selection, copy.deepcopy(env.infos), env.observe("judge_0"))
    stepping = asyncio.create_task(env.astep("x"))
    await at_the_gate()
    assert (env.agent_selection, env.infos, env.observe("judge_0")) == before
    for use in (
        lambda: env.step("y"),
        env.last,
        env.fork,
        lambda: pickle.dumps(env),
        lambda: env.reset(seed=1),
    ):
        with pytest.raises(EnvironmentBusyError, match=r"under way"):
            use()
    with pytest.raises(EnvironmentBusyError, match="only one task may use an environment; await"):
        await env.astep("y")
    with pytest.raises(EnvironmentBusyError, match="`settle` is already in progress"):
        await env.settle()
    GATE.set()
    await stepping
    assert env.agent_selection == "judge_0"
    assert env.observe("judge_0")["messages"][0]["content"] == "judge"


async def test_a_cancelled_astep_is_repaired_by_settle_which_may_be_repeated():
    env = await started()
    gold = env.unwrapped.episode.problem.gold
    stepping = asyncio.create_task(env.astep(gold))
    await at_the_gate()
    stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    with pytest.raises(EnvironmentBusyError, match=r"await env.settle\(\)"):
        env.step("again")
    GATE.set()
    await env.settle()
    assert env.agent_selection == "judge_0"
    log = list(env.unwrapped.episode.log)
    await env.settle()
    assert env.unwrapped.episode.log == log
    env.step("ok")
    await env.settle()  # pays nobody twice
    rows = drive(env, lambda agent, number: "never asked")
    assert rows == [(agent, float(agent in ("writer_0", "judge_0")), True) for agent, *_ in rows]
    assert len(rows) == 4


async def test_a_cancelled_first_areset_is_repaired_by_settle():
    env = Guard(WorkflowEnv(toy(graded_first, SlowMath())))
    starting = asyncio.create_task(env.areset(seed=0))
    await at_the_gate()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    GATE.set()
    await env.settle()
    assert env.agent_selection == "writer_0"


async def test_astep_and_step_give_the_same_episode():
    GATE.set()
    records = []
    for asynchronous in (False, True):
        env = make_env("voting_v0")
        env.reset(seed=4)
        respond = right(env)
        while not any(env.terminations.values()):
            text = respond(env.agent_selection, 0)
            if asynchronous:
                await env.astep(text)
            else:
                env.step(text)
        records.append(env.record())
    assert records[0] == records[1]


class Broken(MathTask):
    def grade_batch(
        self, problems: Sequence[Problem], answers: Sequence[str | None]
    ) -> list[GradeResult]:
        raise OSError("the grader is gone")


async def test_a_broken_grader_leaves_an_environment_that_needs_a_reset():
    """The same by step and by astep, never stuck busy."""
    env = WorkflowEnv(make_workflow("single_v0", Broken()))
    for use in ("step", "astep"):
        env.reset(seed=0)
        if use == "step":
            with pytest.raises(OSError, match="grader is gone"):
                env.step("x")
        else:
            with pytest.raises(OSError, match="grader is gone"):
                await env.astep("x")
        with pytest.raises(UsageError, match=r"call reset\(\)"):
            env.step("x")


def test_a_workflow_error_needs_a_reset_and_a_reset_heals_it():
    def play(self, problem):
        reply = yield Ask("writer_0", "write")
        if reply.text == "bad":
            raise RuntimeError("cannot go on")
        return Outcome(score=1.0)

    env = Guard(WorkflowEnv(toy(play)))
    env.reset(seed=0)
    with pytest.raises(WorkflowError, match="cannot go on") as caught:
        env.step("bad")
    assert caught.value.transcript[0]["reply"] == "bad"
    with pytest.raises(UsageError, match=r"no episode: call reset\(\) first"):
        env.step("good")
    env.reset(seed=0)
    env.step("good")
    assert env.record().score == 1.0


@pytest.mark.parametrize("action", [None, 7, b"text", ["text"]])
def test_an_action_that_is_no_str_is_an_error_at_once(action):
    env = make_env("voting_v0")
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"action of generator_0 must be a str"):
        env.step(action)
    env.step("fine")  # nothing was spoilt
    assert env.agent_selection == "generator_1"


def test_a_dead_step_takes_none_only():
    env = make_env("single_v0")
    env.reset(seed=0)
    env.step("x")
    with pytest.raises(UsageError, match=r"has ended: step\(None\), got str"):
        env.step("more")


def test_info_while_live_and_at_the_end_is_fresh_and_plain():
    env = make_env("voting_v0")
    env.reset(seed=0)
    problem = env.unwrapped.episode.problem
    keys, names = list(env.infos["aggregator_0"]), ("role", "phase", "slot", "turn", "acted")
    for agent, info in env.infos.items():
        assert list(info) == keys
        assert (info["problem"], info["index"]) == (problem.id, problem.index)
        assert info["episode_key"] == f"{problem.id}#0"
        assert agent.startswith(info["role"])
    assert [env.infos["aggregator_0"][name] for name in names] == ["aggregator", -1, -1, -1, False]
    assert [env.last()[4][name] for name in names] == ["generator", 0, 0, 0, True]
    drive(env, right(env))
    env.reset(seed=0)
    reply = right(env)
    info, before = env.last()[4], copy.deepcopy(env.last()[4])
    while not env.terminations[env.agent_selection]:
        env.step(reply(env.agent_selection, 0))
    assert info == before
    assert all(list(info) == keys for info in env.infos.values())
    info = env.infos["aggregator_0"]
    assert info["role_scores"] == [1.0]
    assert info["parts"] == [{"team": 1.0, "local": 1.0}]
    assert info["facts"]["all_correct"] is True
    assert (info["acted"], info["score"], info["return"], info["strict"]) == (
        True,
        1.0,
        1.0,
        [True],
    )
    info["facts"]["all_correct"] = "changed"
    assert env.infos["generator_0"]["facts"]["all_correct"] is True
    assert env.record().facts["all_correct"] is True

    def check(value: Any) -> None:
        assert isinstance(value, (str, int, float, list, dict, type(None)))
        for inner in value.values() if isinstance(value, dict) else ():
            check(inner)
        for inner in value if isinstance(value, list) else ():
            check(inner)

    check(dict(env.infos))


def test_observe_gives_a_fresh_copy_of_the_latest_prompt_or_nothing():
    env = make_env("eval_opt_v0")
    env.reset(seed=0)
    assert env.observe("evaluator_0") == {"messages": []}
    assert env.observation_space("evaluator_0").contains(env.observe("evaluator_0"))
    first = copy.deepcopy(env.observe("generator_0"))
    env.observe("generator_0")["messages"][0]["content"] = "spoilt"
    assert env.observe("generator_0") == first
    env.step("\\boxed{0}")
    assert env.observe("generator_0") == first
    env.step("Wrong. \\boxed{Incorrect}")
    assert len(env.observe("generator_0")["messages"]) == 3
    with pytest.raises(UsageError, match=r"unknown agent 'generator_9'.*'generator_0'"):
        env.observe("generator_9")


def one_strategy(agent: str, number: int) -> str:
    return "STRATEGY 1: count" if agent == "orchestrator_0" else "\\boxed{x}"


def test_agents_that_do_not_act_stay_and_get_one_dead_step_without_reward():
    env = make_env("orch_workers_v0")
    env.reset(seed=0)
    gold = env.unwrapped.episode.problem.gold
    infos: dict[str, Any] = {}
    rows = []
    for agent in env.agent_iter():
        assert "worker_2" in env.agents
        _, reward, terminated, _, info = env.last()
        rows.append((agent, reward, terminated))
        if terminated:
            infos[agent] = info
        text = one_strategy(agent, 0) if agent == "orchestrator_0" else f"\\boxed{{{gold}}}"
        env.step(None if terminated else text)
        if agent == "worker_2":
            break
    assert [agent for agent, _, dead in rows if not dead] == [
        "orchestrator_0",
        "worker_0",
        "synthesizer_0",
    ]
    assert rows[-2:] == [("worker_1", 0.0, True), ("worker_2", 0.0, True)]
    assert infos["worker_1"]["acted"] is False
    assert infos["worker_0"]["acted"] is True
    calls = env.record().calls
    assert [call.agent for call in calls] == ["orchestrator_0", "worker_0", "synthesizer_0"]


def test_the_dead_steps_come_in_the_order_of_the_agents():
    env = make_env("orch_workers_v0")
    env.reset(seed=0)
    rows = drive(env, one_strategy)
    assert [agent for agent, _, dead in rows if dead] == env.possible_agents
    assert env.agents == []


def test_the_outcome_is_paid_once_per_agent_and_to_every_call():
    env = make_env("eval_opt_v0")
    env.reset(seed=0)
    gold = env.unwrapped.episode.problem.gold
    texts = ["\\boxed{0.5}", "\\boxed{Incorrect}", f"\\boxed{{{gold}}}", "\\boxed{Correct}"]
    rows = drive(env, lambda agent, number: texts[number])
    paid: dict[str, float] = {}
    for agent, reward, _ in rows:
        paid[agent] = paid.get(agent, 0.0) + reward
    assert paid == {"generator_0": 1.0, "evaluator_0": 1.0}
    assert [call.reward for call in env.record().calls] == [1.0] * 4
    assert all(reward == 0.0 for _, reward, dead in rows if not dead)


def test_max_cycles_truncates_and_pays_nothing():
    env = make_env("eval_opt_v0", max_cycles=1)
    env.reset(seed=0)
    rows = []
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        rows.append((agent, reward, terminated, truncated))
        env.step(None if truncated else "\\boxed{Incorrect}")
    assert rows[2:] == [("generator_0", 0.0, False, True), ("evaluator_0", 0.0, False, True)]
    assert env.record().truncated
    assert env.record().score == 0.0


def test_nothing_of_mates_shows_before_the_phase_closes():
    envs = [make_env("voting_v0") for _ in range(2)]
    for env, text in zip(envs, ("\\boxed{1}", "utterly different"), strict=True):
        env.reset(seed=1)
        env.step(text)
        env.step(text)
    first, second = envs
    assert first.last() == second.last()
    assert first.infos == second.infos
    assert [first.observe(a) for a in first.agents] == [second.observe(a) for a in second.agents]


@pytest.mark.parametrize("left", range(5))
def test_a_pickle_of_a_finished_episode_knows_how_many_agents_have_left(left):
    env = make_env("voting_v0")
    env.reset(seed=0)
    reply = right(env)
    while not env.terminations[env.agent_selection]:
        env.step(reply(env.agent_selection, 0))
    for _ in range(left):
        env.step(None)
    twins = [env.fork(), pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    rest = drive(env, reply)
    assert len(rest) == 4 - left
    for twin in twins:
        assert drive(twin, reply) == rest
        assert (twin.record(), twin.infos) == (env.record(), env.infos)
