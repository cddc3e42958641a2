"""Rewards of calls and returns of agents at the end of an episode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from flowzoo.envs.settings import plain_setting
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError
from flowzoo.functions import FunctionSetting


def abstains(workflow: Workflow, readable: bool) -> bool:
    """True if an unreadable reply does not get the team's outcome (preset `strict`)."""
    return workflow.preset == "strict" and not readable


def reward_parts(
    workflow: Workflow,
    score: float,
    readable: bool,
    role_score: float | None,
    form: float | None = None,
    unanswered: float = 0.0,
) -> dict[str, float]:
    """Reward parts of one call: `team`, `local` and `format`.

    `form` replaces `readable` in the local part; `unanswered` is the score of an episode without an
    answer, which a reply that abstained gets, and never more than its team.
    """
    # `local` is absent without a role score; an environment that pays its agents (`Payoffs`)
    # replaces it with the agent's return.
    team = min(unanswered, score) if abstains(workflow, readable) else score
    parts = {"team": team}
    if role_score is not None:
        for_form, for_role = workflow.local_weights
        parts["local"] = for_form * (readable if form is None else form) + for_role * role_score
    if workflow.format_penalty:
        parts["format"] = 0.0 if readable else -workflow.format_penalty
    return parts


def combine(
    workflow: Workflow, role: str, parts: Mapping[str, float], outcome: float | None = None
) -> float:
    """The reward of one call under the credit rule; `outcome` replaces the part `team`."""
    rule = workflow.credit
    if callable(rule):
        reward = rule(parts if outcome is None else {**parts, "team": outcome})
        return finite_number(f"{workflow.name}: credit {function_name(rule)}", reward)
    if outcome is None:
        outcome = parts["team"]
    if rule == "team":
        return outcome + parts.get("format", 0.0)
    if "local" not in parts:
        raise UsageError(
            f"credit={rule!r} needs the role score of every reply, and {workflow.name} recorded "
            f'none for role {role!r}: use credit="team", or yield RoleScore(reply, value) in play.'
        )
    team = workflow.alpha * outcome if rule == "mix" else 0.0
    return team + parts["local"] + parts.get("format", 0.0)


def function_name(function: object) -> str:
    """Name of a function for messages: the text of its setting, or the function's own name."""
    if isinstance(function, FunctionSetting):
        return function.name
    return str(plain_setting(function))


def finite_number(function: str, value: Any) -> float:
    """The value of a user's function as a float."""
    if not isinstance(value, Real):
        came = f"{type(value).__name__} {value!r:.60}"
        raise UsageError(f"{function} must return a number, got {came}")
    if not math.isfinite(value):
        raise UsageError(f"{function} must return a finite number, got {value}")
    return float(value)


def immediate(workflow: Workflow, role: str, parts: Mapping[str, float]) -> float:
    """Reward of a call if the team's outcome were 0."""
    # The rest of the reward is the call's share of the outcome.
    return combine(workflow, role, parts, 0.0)


def agent_returns(agents: Iterable[str], rewards: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Mean reward per agent over its calls; 0 for an agent that was never asked."""
    # The mean, not the sum: the outcome is paid once, however often an agent was asked.
    sums = dict.fromkeys(agents, 0.0)
    counts: dict[str, int] = {}
    for agent, reward in rewards:
        sums[agent] += reward
        counts[agent] = counts.get(agent, 0) + 1
    for agent, count in counts.items():
        if count > 1:
            sums[agent] /= count
    return sums
