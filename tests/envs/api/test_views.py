"""The parallel environment, and the one of a single role."""

import inspect
from collections.abc import Mapping
from typing import ClassVar

import pettingzoo
import pytest

import flowzoo
from flowzoo import writing_pair_v0
from flowzoo.envs import Ask, Outcome, Workflow, make_workflow
from flowzoo.envs.api.parallel import ParallelWorkflowEnv
from flowzoo.envs.api.registry import workflow_class
from flowzoo.envs.api.solo import SKIPS, SoloEnv
from flowzoo.envs.tasks.math import MathTask
from flowzoo.errors import UsageError
from tests.envs.playing import opened


def test_exactly_the_simultaneous_workflows_are_made_as_parallel():
    for name in flowzoo.envs.WORKFLOWS:
        base, _, version = name.replace("_", "-").rpartition("-")
        if not workflow_class(name).simultaneous:
            with pytest.raises(UsageError, match=f"not every agent of {name} acts in every step"):
                pettingzoo.make("parallel", f"flowzoo/{base}-{version}")
    env = pettingzoo.make("parallel", "flowzoo/writing-pair-v0", form="expansion")
    assert "background" in env.reset(seed=0)[0]["writer_0"]["messages"][0]["content"]


def test_it_pays_and_says_what_the_aec_environment_does():
    parallel, aec = writing_pair_v0.parallel_env(), writing_pair_v0.env()
    for seed in range(5):
        observations, infos = parallel.reset(seed=seed)
        aec.reset(seed=seed)
        respond = aec.unwrapped.workflow.responder(aec.unwrapped.episode.problem, 0.5, seed)
        paid = dict.fromkeys(aec.possible_agents, 0.0)
        final, actions = {}, {}
        for agent in aec.agent_iter():
            obs, reward, terminated, truncated, info = aec.last()
            paid[agent] += reward
            if terminated or truncated:
                final[agent] = info
                aec.step(None)
                continue
            assert obs == observations[agent]
            assert info == infos[agent]
            actions[agent] = respond("writer", obs["messages"])
            aec.step(actions[agent])
        _, rewards, terminations, truncations, infos = parallel.step(actions)
        assert rewards == paid
        assert infos == final
        assert all(terminations.values())
        assert not any(truncations.values())
        assert parallel.agents == []
        assert parallel.record() == aec.record()


async def test_a_step_can_be_awaited():
    env = writing_pair_v0.parallel_env()
    env.reset(seed=1)
    _, rewards, terminations, _, _ = await env.astep({"writer_0": "a", "writer_1": "b"})
    assert rewards == {"writer_0": 0.0, "writer_1": 0.0}
    assert all(terminations.values())


def test_mistakes_are_explained():
    with pytest.raises(UsageError, match="use its AEC environment"):
        ParallelWorkflowEnv(make_workflow("voting_v0"))
    env = writing_pair_v0.parallel_env()
    with pytest.raises(UsageError, match="call reset"):
        env.step({})
    env.reset(seed=0)
    with pytest.raises(UsageError, match=r"one action each for .*got \['writer_0'\]"):
        env.step({"writer_0": "a"})
    with pytest.raises(UsageError, match="must be a str, got NoneType"):
        env.step({"writer_0": "a", "writer_1": None})


def test_a_workflow_that_only_claims_to_be_simultaneous_is_found_out():
    class Claims(Workflow):
        name: ClassVar[str] = "claims_v0"
        roles: ClassVar[Mapping[str, int]] = {"writer": 2}
        simultaneous: ClassVar[bool] = True

        def play(self, problem):
            yield Ask("writer_0", problem.text)
            return Outcome(score=0.0)

    env = opened(ParallelWorkflowEnv(Claims(task=MathTask())))
    with pytest.raises(UsageError, match=r"asked only \['writer_0'\]"):
        env.step({"writer_0": "a", "writer_1": "b"})


def test_the_module_offers_all_three_constructors():
    assert not {"env", "parallel_env", "raw_env"} - vars(writing_pair_v0).keys()
    assert inspect.signature(writing_pair_v0.env).parameters["task"].default == "writing"


def gold_of(env: SoloEnv) -> str:
    return env.aec.unwrapped.episode.problem.gold


def test_the_reward_sums_all_agents_of_the_role_turns_and_dead_steps():
    env = opened(SoloEnv("voting_v0", role="generator"))
    gold = gold_of(env)
    rewards = [env.step(f"\\boxed{{{gold}}}")[1] for _ in range(2)]
    _, reward, terminated, truncated, info = env.step(f"\\boxed{{{gold}}}")
    assert (rewards, reward, terminated, truncated) == ([0.0, 0.0], 3.0, True, False)
    assert [row["agent"] for row in info["transcript"]][-1] == "aggregator_0"


def test_one_agent_of_a_role_may_be_played_alone():
    """The mates of the same role are played too."""
    env = SoloEnv("voting_v0", role="generator_1")
    _, info = env.reset(seed=0)
    assert [info[name] for name in ("role", "phase", "slot", "turn")] == ["generator", 0, 1, 0]
    _, reward, terminated, _, info = env.step("nothing")
    assert terminated
    assert reward == 0.0  # abstained, although the team was right
    assert info["score"] == 1.0


def test_own_turns_come_one_after_another():
    env = SoloEnv("eval_opt_v0", role="generator", max_rounds=2)
    obs, _ = env.reset(seed=0)
    again, reward, terminated, _, info = env.step("\\boxed{0.5}")
    assert (reward, terminated, info["turn"]) == (0.0, False, 1)
    assert len(again["messages"]) == 3
    assert again["messages"][0] == obs["messages"][0]
    _, reward, terminated, _, info = env.step(f"\\boxed{{{gold_of(env)}}}")
    assert (reward, terminated) == (1.0, True)
    assert info["facts"]["recovered"] is True
    with pytest.raises(UsageError, match=r"ended: call reset\(\)"):
        env.step("more")


def others_for_worker_2(strategies_of: int):
    """An orchestrator that names three strategies for problems whose text is a multiple only."""

    def reply(role, messages):
        if role != "orchestrator":
            return "\\boxed{1}"
        enough = sum(map(ord, messages[0]["content"])) % strategies_of == 0
        return "\n".join(f"STRATEGY {k}: try" for k in range(1, 4 if enough else 2))

    return reply


def test_episodes_that_never_ask_the_role_are_skipped_deterministically():
    built = [
        SoloEnv("orch_workers_v0", role="worker_2", others=others_for_worker_2(3)) for _ in "ab"
    ]
    traces = []
    for env in built:
        seen = []
        for number in range(8):
            obs, info = env.reset(seed=2 if number == 0 else None)
            assert info["slot"] == 2
            seen.append(obs["messages"][0]["content"])
        traces.append((seen, env.aec.unwrapped._resets))
    assert traces[0] == traces[1]
    assert traces[0][1] > 8


def test_skipping_from_an_index_takes_the_following_problems():
    env = SoloEnv("orch_workers_v0", role="worker_2", others=others_for_worker_2(3))
    results = []
    for index in range(6):
        env.reset(options={"index": index})
        results.append(env.aec.unwrapped.episode.problem.index)
    assert results == sorted(results)
    assert all(number >= index for index, number in enumerate(results))
    assert results != list(range(6))


def test_a_role_that_is_never_asked_is_an_error_after_a_hundred_episodes():
    env = SoloEnv("orch_workers_v0", role="worker_2", others=lambda role, messages: "STRATEGY 1: a")
    with pytest.raises(UsageError, match=f"was not asked in {SKIPS} episodes in a row"):
        env.reset(seed=0)
    assert env.aec.unwrapped._resets == SKIPS == 100


def test_truncation_is_told():
    env = opened(SoloEnv("eval_opt_v0", role="generator", max_cycles=1))
    _, reward, terminated, truncated, info = env.step("\\boxed{0.5}")
    assert (reward, terminated, truncated, info["truncated"]) == (0.0, False, True, True)


def test_others_may_be_given_by_role_and_are_checked():
    calls = []

    def answer(role, messages):
        calls.append(role)
        return "\\boxed{1}"

    opened(SoloEnv("voting_v0", role="aggregator", others={"generator": answer}))
    assert calls == ["generator"] * 3
    with pytest.raises(UsageError, match="`others` has no entry for role aggregator"):
        SoloEnv("voting_v0", role="generator", others={})
    with pytest.raises(UsageError, match=r"unknown role in `others` 'generatr'"):
        SoloEnv("voting_v0", role="aggregator", others={"generatr": answer})
    with pytest.raises(UsageError, match="`others` must be callable, got str"):
        SoloEnv("voting_v0", role="aggregator", others="scripted")  # type: ignore[arg-type]


def test_unknown_roles_name_the_valid_ones():
    with pytest.raises(
        UsageError, match=r"unknown role or agent 'aggregatr'. Did you mean 'aggregator'"
    ):
        SoloEnv("voting_v0", role="aggregatr")


def test_the_default_role_is_the_first_and_the_default_others_are_experts():
    env = SoloEnv("eval_opt_v0")
    _, info = env.reset(seed=0)
    assert info["role"] == "generator"
    _, reward, terminated, _, _ = env.step(f"\\boxed{{{gold_of(env)}}}")
    assert (reward, terminated) == (1.0, True)


def test_ansi_rendering_shows_the_episode():
    env = opened(SoloEnv("single_v0", render_mode="ansi"))
    env.step("\\boxed{1}")
    assert "> \\boxed{1}" in env.render()
    env.close()
