"""Checks of the PettingZoo and Gymnasium interfaces, with hostile replies."""

from __future__ import annotations

import contextlib
import io
from functools import partial

from flowzoo.envs.api.parallel import ParallelWorkflowEnv
from flowzoo.envs.api.solo import SoloEnv, own_agents
from flowzoo.envs.testing.playthrough import (
    HOSTILE,
    expert_roles,
    guard,
    require,
    sampled_reply,
    strict_warnings,
)
from flowzoo.envs.testing.slow_replies import time_limit
from flowzoo.envs.workflow import Workflow

STEP_S = 20.0  # CPU seconds that this process may take for a step after a hostile reply


def check_api(workflow: Workflow, cycles: int = 200) -> None:
    """PettingZoo's `api_test`, `seed_test` and `render_test`, warnings being errors."""
    from pettingzoo.test import api_test, render_test, seed_test

    with strict_warnings(workflow), contextlib.redirect_stdout(io.StringIO()):
        api_test(guard(workflow), num_cycles=cycles)
        seed_test(lambda: guard(workflow), num_cycles=cycles)
        # The stub says `() -> Env`, but render_test passes the render mode by keyword.
        render_test(partial(guard, workflow))  # type: ignore[arg-type]


def check_parallel(workflow: Workflow, cycles: int = 60) -> None:
    """PettingZoo's `parallel_api_test` and `parallel_seed_test`, if the workflow claims to fit."""
    if not workflow.simultaneous:
        return
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    with strict_warnings(workflow), contextlib.redirect_stdout(io.StringIO()):
        parallel_api_test(ParallelWorkflowEnv(workflow), num_cycles=cycles)
        parallel_seed_test(lambda: ParallelWorkflowEnv(workflow), num_cycles=cycles)


def check_solo(workflow: Workflow) -> None:
    """Gymnasium's `check_env` for the single-role view of every role that experts ever ask.

    What its steps pay adds up to the returns of the role's agents.
    """
    from gymnasium.utils.env_checker import check_env

    for role in sorted(expert_roles(workflow)):
        env = SoloEnv(workflow, role=role)
        with strict_warnings(workflow):
            check_env(env, skip_render_check=True)
        env.reset(seed=0)
        paid, over, count = 0.0, False, 0
        while not over:
            reply = sampled_reply(workflow, "solo", role, count)
            _, reward, terminated, truncated, _ = env.step(reply)
            paid, over, count = paid + reward, terminated or truncated, count + 1
        returns = env.record().returns
        earned = sum(returns[agent] for agent in own_agents(env.aec, role))
        require(abs(paid - earned) < 1e-9, f"the view of {role} paid {paid}, returns: {earned}")


def check_hostile(workflow: Workflow) -> None:
    """Hostile replies, from every agent and from one role alone, never raise: they are scored."""
    for role in (None, *workflow.role_counts()):
        for name, text in HOSTILE.items():
            env = guard(workflow)
            env.reset(seed=0)
            for number, agent in enumerate(env.agent_iter()):
                _, reward, terminated, truncated, _ = env.last()
                require(reward == reward and abs(reward) < 1e6, f"{name} reply: reward {reward}")
                hostile = role is None or workflow.agents[agent][0] == role
                reply = text if hostile else sampled_reply(workflow, "hostile", number)
                with time_limit(f"the step of {agent} after the hostile reply {name!r}", STEP_S):
                    env.step(None if terminated or truncated else reply)
