"""The policy of every role and agent, from `sharing`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowzoo.agents.policy_map import agent_names, role_of
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs.settings import read_named
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, unknown


def read_policy_map(sharing: tuple[str, ...], roles: Roles) -> dict[str, str]:
    """Read the policy by role or agent."""
    if sharing == ("shared",):
        return dict.fromkeys(roles, "shared")
    if sharing == ("isolated",):
        return {role: role for role in roles}
    # Agents of one role may have different policies, so a name is a role's or an agent's.
    agents = agent_names(roles)
    policies: dict[str, str] = {}
    for argument in sharing:
        role, equals, policy = argument.partition("=")
        if not equals or not policy:
            raise UsageError(
                f"`sharing` takes shared, isolated, or ROLE=POLICY for every role; got {argument!r}"
            )
        if role not in roles and role not in agents:
            raise unknown("role", role, [*roles, *agents])
        if role in policies:
            raise UsageError(f"`sharing` names {role} twice: leave one out")
        policies[role] = policy
    missing = [
        role
        for role, count in roles.items()
        if role not in policies
        and not all(agent in policies for agent in agent_names({role: count}))
    ]
    if missing:
        raise UsageError(
            f"the policy map misses role {', '.join(missing)}; the roles are {', '.join(roles)}"
        )
    return policies


def starting_models(config: TrainConfig, names: Sequence[str]) -> dict[str, str]:
    """Name the model that each policy starts from."""
    named = read_named(config.models, names, "models")
    return {name: named.get(name, config.model) for name in names}


def agent_policies(mapping: Mapping[str, str], roles: Roles) -> dict[str, str]:
    """Policy by agent, from a map of roles or agents; an agent's entry wins."""
    return {
        agent: mapping[agent] if agent in mapping else mapping[role_of(agent)]
        for agent in agent_names(roles)
    }
