"""The AEC environment: resets, order of calls, its guard and its state."""

import asyncio
import copy
import importlib.util
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pettingzoo.utils.wrappers import OrderEnforcingWrapper

from flowzoo import voting_v0, writing_pair_v0
from flowzoo.envs import Ask, Episode, Grade, GradeResult, Guard, Outcome, Problem, WorkflowEnv
from flowzoo.envs.api.parallel import ParallelWorkflowEnv
from flowzoo.envs.api.registry import make_env, make_workflow
from flowzoo.envs.api.solo import SoloEnv
from flowzoo.envs.api.spaces import Turns
from flowzoo.envs.episode.faults import WorkflowError
from flowzoo.envs.episode.recording import record
from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.testing import advance, check_workflow
from flowzoo.errors import EnvironmentBusyError, UsageError
from tests.envs.playing import opened, toy

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

    env = opened(Guard(WorkflowEnv(toy(play))))
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
    env = opened(make_env("voting_v0"))
    with pytest.raises(UsageError, match=r"action of generator_0 must be a str"):
        env.step(action)
    env.step("fine")  # nothing was spoilt
    assert env.agent_selection == "generator_1"


def test_a_dead_step_takes_none_only():
    env = opened(make_env("single_v0"))
    env.step("x")
    with pytest.raises(UsageError, match=r"has ended: step\(None\), got str"):
        env.step("more")


def test_info_while_live_and_at_the_end_is_fresh_and_plain():
    env = opened(make_env("voting_v0"))
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
    env = opened(make_env("eval_opt_v0"))
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
    env = opened(make_env("orch_workers_v0"))
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
    env = opened(make_env("orch_workers_v0"))
    rows = drive(env, one_strategy)
    assert [agent for agent, _, dead in rows if dead] == env.possible_agents
    assert env.agents == []


def test_max_cycles_truncates_and_pays_nothing():
    env = opened(make_env("eval_opt_v0", max_cycles=1))
    rows = []
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        rows.append((agent, reward, terminated, truncated))
        env.step(None if truncated else "\\boxed{Incorrect}")
    assert rows[2:] == [("generator_0", 0.0, False, True), ("evaluator_0", 0.0, False, True)]
    assert env.record().truncated
    assert env.record().score == 0.0


def test_spaces_are_the_same_object_every_time_and_per_environment():
    env, other = make_env("voting_v0"), make_env("voting_v0")
    for agent in env.possible_agents:
        assert env.action_space(agent) is env.action_space(agent)
        assert env.action_space(agent) is not other.action_space(agent)
        assert env.observation_space(agent) is not other.observation_space(agent)
    agents = env.possible_agents
    assert len({id(env.action_space(agent)) for agent in agents}) == len(agents)


def test_sampling_a_forks_space_leaves_the_original_alone():
    """A fork has the spaces' state, not the spaces."""
    env = opened(make_env("voting_v0"))
    space = env.action_space("generator_0")
    space.seed(5)
    twin = env.fork().action_space("generator_0")
    others = [twin.sample() for _ in range(20)]
    assert [space.sample() for _ in range(20)] == others
    nested = env.observation_space("generator_0")
    assert env.fork().observation_space("generator_0")["messages"] is not nested["messages"]
    assert env.fork().observation_space("generator_0") == nested
    assert env.fork().state_space is not env.state_space


def test_a_seed_fixes_all_following_problems():
    def problems(seed: int | None, env: Any) -> list[str]:
        env.reset(seed=seed)
        ids = [env.unwrapped.episode.problem.id]
        for _ in range(4):
            env.reset()
            ids.append(env.unwrapped.episode.problem.id)
        return ids

    env = make_env("single_v0")
    assert problems(7, env) == problems(7, make_env("single_v0"))
    assert len(set(problems(7, env))) == 5
    assert problems(0, env) == problems(0, env) != problems(7, env)


def test_the_index_option_picks_a_problem_and_is_checked():
    env = make_env("single_v0", split="validation")
    with pytest.warns(UserWarning, match="reset\\(\\) ignores the unknown option 'whatever'"):
        env.reset(options={"index": 3, "whatever": 1, "options": 1})
    assert env.unwrapped.episode.problem == env.unwrapped.workflow.task.problem(3, "validation")
    for index in (-1, True, "3", 1.5):
        with pytest.raises(UsageError, match="must be an integer >= 0"):
            env.reset(options={"index": index})


@pytest.mark.parametrize(
    ("name", "meant"),
    [("indx", "index"), ("idx", "index"), ("Index", "index"), ("samples", "sample")],
)
def test_a_misspelt_option_is_an_error(name, meant):
    pair = ParallelWorkflowEnv(make_workflow("writing_pair_v0"))
    for env in (make_env("single_v0"), pair, SoloEnv("single_v0")):
        with pytest.raises(UsageError, match=f"no option '{name}': did you mean '{meant}'"):
            env.reset(options={name: 3})
        env.reset(options={meant: 3})


def test_an_index_beyond_a_file_names_its_size(tmp_path):
    rows = '{"question": "1+1?", "answer": "2\\n#### 2"}\n' * 2
    (tmp_path / "two.jsonl").write_text(rows)
    env = make_env("single_v0", data=str(tmp_path / "two.jsonl"), split="all")
    size = env.unwrapped.workflow.task.size("all")
    with pytest.raises(UsageError, match=f"must be below {size}, the size of split 'all'; got 9"):
        env.reset(options={"index": 9})


def test_a_closed_environment_needs_a_reset():
    env = opened(make_env("single_v0"))
    env.close()
    with pytest.raises(UsageError, match="no episode"):
        env.step("x")


FIELDS = ("agents", "agent_selection", "rewards", "terminations", "truncations", "infos")


@pytest.fixture
def env() -> Guard:
    return voting_v0.env()


def test_env_is_guarded_once_and_raw_env_is_not(env):
    assert isinstance(env, OrderEnforcingWrapper)
    assert type(env.env) is WorkflowEnv
    assert env.unwrapped is env.env
    assert type(voting_v0.raw_env()) is WorkflowEnv


@pytest.mark.parametrize("field", [*FIELDS, "num_agents"])
def test_fields_before_reset_are_an_error_that_says_so(env, field):
    with pytest.raises(AttributeError, match="before reset"):
        getattr(env, field)


def test_verbs_before_reset_are_an_error_that_says_so(env):
    for verb in (
        env.last,
        env.fork,
        lambda: env.transcript(),
        lambda: env.record(),
        lambda: env.step("x"),
        lambda: env.observe("generator_0"),
        lambda: env.agent_iter(),
        env.render,
    ):
        with pytest.raises((AttributeError, AssertionError), match=r"before reset|reset\(\)"):
            verb()


async def test_async_verbs_before_reset_are_an_error_that_says_so(env):
    for verb in (lambda: env.astep("x"), lambda: env.settle()):
        with pytest.raises(AttributeError, match="before reset"):
            await verb()


def test_what_is_known_before_reset_is_readable(env):
    assert env.possible_agents == ["generator_0", "generator_1", "generator_2", "aggregator_0"]
    assert env.metadata["name"] == "voting_v0"
    assert env.max_num_agents == 4
    assert env.render_mode is None


def test_a_turn_of_the_loop_without_a_step_is_an_error(env):
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"call step\(\) or reset\(\) in every turn"):
        for _ in env.agent_iter():
            pass


def test_agent_iter_stops_after_max_iter(env):
    env.reset(seed=0)
    agents = []
    for agent in env.agent_iter(max_iter=2):
        agents.append(agent)
        env.step("x")
    assert agents == ["generator_0", "generator_1"]


async def test_a_step_after_the_end_only_warns_and_last_explains(env, caplog):
    """As in PettingZoo."""
    env.reset(seed=0)
    for _ in range(4):
        env.step("x")
    for _ in range(4):
        env.step(None)
    log = list(env.unwrapped.episode.log)
    env.step("x")
    await env.astep("x")
    assert caplog.text.count("step() called after all agents are terminated") == 2
    assert env.unwrapped.episode.log == log
    with pytest.raises(UsageError, match=r"every agent has left; call reset\(\)"):
        env.last()


def test_a_fork_stays_guarded_and_knows_whether_it_was_stepped(env):
    env.reset(seed=0)
    twin = env.fork()
    assert type(twin) is Guard
    assert twin.unwrapped is not env.unwrapped
    iterator = iter(env.agent_iter())
    next(iterator)
    with pytest.raises(UsageError, match="in every turn"):
        next(iter(env.fork().agent_iter()))
    twin.step("only here")
    assert (twin.agent_selection, env.agent_selection) == ("generator_1", "generator_0")


def test_the_private_rewards_of_pettingzoo_are_reachable(env):
    env.reset(seed=0)
    assert env._cumulative_rewards == dict.fromkeys(env.possible_agents, 0.0)


def test_the_state_is_the_transcript_so_far():
    env = voting_v0.env()
    with pytest.raises(AttributeError, match="before reset"):
        env.state()
    env.reset(seed=0)
    assert [turn["reply"] for turn in env.state()] == [None] * 3
    for text in ("a", "b", "c", "\\boxed{1}"):
        assert env.state_space.contains(env.state())
        env.step(text)
    assert [turn["reply"] for turn in env.state()] == ["a", "b", "c", "\\boxed{1}"]
    env.state()[0]["messages"].clear()
    assert env.state() == env.transcript()
    assert env.state()[0]["messages"]


def test_the_parallel_environment_has_the_same():
    env = opened(writing_pair_v0.parallel_env())
    env.step(dict.fromkeys(env.agents, "A summary."))
    assert env.state_space.contains(env.state())
    assert {turn["reply"] for turn in env.state()} == {"A summary."}


def test_the_space_of_transcripts():
    space = Turns(seed=1)
    turn = space.sample()[0]
    assert [] in space
    assert [turn] in space
    assert (turn,) not in space
    for broken in ({**turn, "reply": 3}, {**turn, "more": 1}, {**turn, "messages": "hi"}, "turn"):
        assert [broken] not in space
    assert space == Turns() != object()
    assert (hash(space), repr(space)) == (hash(Turns()), "Turns()")
    assert not space.is_np_flattenable
    with pytest.raises(ValueError, match="no mask"):
        space.sample(mask=[1])


PATH = Path(__file__).resolve().parents[3] / "examples" / "debate.py"


@pytest.fixture
def debate(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("debate_example", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "debate_example", module)  # pickling looks it up by name
    spec.loader.exec_module(module)
    return module.Debate(task=make_task("math"))


def test_the_example_is_at_most_forty_lines():
    assert len(PATH.read_text().splitlines()) <= 40


def test_the_example_passes_the_conformance_suite(debate):
    check_workflow(debate)


def test_the_example_plays_two_rounds_and_a_verdict(debate):
    problem = debate.task.problem(0)
    episode = Episode(debate, problem)
    questions = []
    while not episode.done:
        for turn in episode.waiting:
            questions.append(turn.agent)
            right = turn.agent == "judge_0" or turn.turn == 1
            episode.reply(turn.agent, f"\\boxed{{{problem.gold if right else '0.5'}}}")
        advance(episode)
    assert questions == ["debater_0", "debater_1", "debater_0", "debater_1", "judge_0"]
    finished = record(episode)
    assert (finished.score, finished.answer) == (1.0, problem.gold)
    assert [call.role_score for call in finished.calls] == [0.0, 0.0, 1.0, 1.0, 1.0]


@pytest.mark.full
def test_the_example_runs_as_a_script():
    done = subprocess.run([sys.executable, str(PATH)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "debater_0" in done.stdout
    assert "judge_0" in done.stdout
