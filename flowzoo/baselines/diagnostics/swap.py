"""The policy-swap probe: what a workflow is worth with the policies of two roles exchanged."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from flowzoo.agents import Policy, PolicyMap
from flowzoo.agents.evaluation.summary import problem_scores
from flowzoo.agents.policy_map import Lengths, agent_names
from flowzoo.baselines.settings.policies import agent_policies
from flowzoo.baselines.stats import paired_gain
from flowzoo.envs import EpisodeRecord
from flowzoo.envs.workflow import Roles


class Swap(NamedTuple):
    """Two places of a workflow, and the policy map in which each has the other's policy."""

    roles: tuple[str, str]  # roles; or agents, if the agents of a role have several policies
    policies: tuple[str, str]  # their policies when nothing is exchanged
    policy_map: PolicyMap


def policy_slots(roles: Roles, mapping: Mapping[str, str]) -> dict[str, str]:
    """Role -> its policy; of a role whose agents have several, agent -> policy instead."""
    of_agent = agent_policies(mapping, roles)
    slots: dict[str, str] = {}
    for role, count in roles.items():
        agents = agent_names({role: count})
        names = {of_agent[agent] for agent in agents}
        slots |= (
            {role: names.pop()} if len(names) == 1 else {agent: of_agent[agent] for agent in agents}
        )
    return slots


def with_thinking_of(policy: Policy, like: Policy) -> Policy:
    """`policy` in the place of `like`: with that one's switch for thoughts."""
    switch = getattr(like, "thinking", None)
    if getattr(policy, "thinking", None) == switch:
        return policy
    return policy.thinking_as(switch)  # type: ignore[attr-defined] - all with a switch have it


def policy_swaps(
    roles: Roles,
    mapping: Mapping[str, str],
    policies: Mapping[str, Policy],
    lengths: Mapping[str, Lengths],
) -> list[Swap]:
    """A policy map for every pair of roles or agents with different policies."""
    held = policy_slots(roles, mapping)
    swaps: list[Swap] = []
    for first, second in combinations(held, 2):
        left, right = policies[held[first]], policies[held[second]]
        if left is right:
            continue
        entries = {slot: policies[name] for slot, name in held.items()}
        entries |= {first: with_thinking_of(right, left), second: with_thinking_of(left, right)}
        policy_map = PolicyMap(entries, lengths)
        policy_map.check(roles)
        swaps.append(Swap((first, second), (held[first], held[second]), policy_map))
    return swaps


SwapRow = Mapping[str, Any]
"""The mean score with the policies of two roles exchanged, and its change."""


def swap_probe(
    play: Callable[[PolicyMap], Sequence[EpisodeRecord]],
    roles: Roles,
    mapping: Mapping[str, str],
    policies: Mapping[str, Policy],
    lengths: Mapping[str, Lengths],
    before: Sequence[float],
    judge: Policy | None = None,
    names: Sequence[str] = (),
) -> list[SwapRow]:
    """Accuracy with the policies of two roles exchanged, for every pair of different policies."""
    # Token budgets, the switch for thoughts and the sampling noise stay with the role, so that the
    # difference is paired. `play` must play as many episodes of a problem as for `before`.
    rows: list[SwapRow] = []
    for swap in policy_swaps(roles, mapping, policies, lengths):
        policy_map = swap.policy_map if judge is None else swap.policy_map.with_judge(judge)
        scores = problem_scores(play(policy_map), names)
        places = {"roles": list(swap.roles), "policies": list(swap.policies)}
        change = {"accuracy": sum(scores) / len(scores), **paired_gain(before, scores)._asdict()}
        rows.append({**places, **change, "scores": scores})
    return rows
