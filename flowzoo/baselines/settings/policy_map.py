"""Arguments that give values to roles and policies: NAME=VALUE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flowzoo.agents.policy_map import agent_names, role_of
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, unknown


def per_policy(arguments: Sequence[str], names: Sequence[str], option: str) -> dict[str, str]:
    """Read NAME=VALUE arguments into a map over some of the policies `names`."""
    values: dict[str, str] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or not value:
            raise UsageError(f"`{option}` takes POLICY=VALUE, got {argument!r}")
        if name not in names:
            raise unknown("policy", name, names)
        if name in values:
            raise UsageError(
                f"`{option}` names policy {name} twice, with {values[name]} and {value}: leave one "
                "out"
            )
        values[name] = value
    return values


def numbers_by_policy(
    arguments: Sequence[str], names: Sequence[str], option: str
) -> dict[str, float]:
    """Read POLICY=NUMBER arguments for some of the policies `names`."""
    numbers: dict[str, float] = {}
    for name, text in per_policy(arguments, names, option).items():
        try:
            numbers[name] = float(text)
        except ValueError:
            raise UsageError(f"`{option} {name}` must be a number, got {text!r}") from None
    return numbers


def numbers_by_role(
    arguments: Sequence[str], roles: Iterable[str], option: str
) -> dict[str, float]:
    """Read ROLE=NUMBER arguments."""
    names = list(roles)
    numbers: dict[str, float] = {}
    for argument in arguments:
        role, _, text = argument.partition("=")
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"`{option}` takes ROLE=NUMBER, got {argument!r}.") from None
        if role not in names:
            raise unknown("role", role, names)
        if role in numbers:
            raise UsageError(f"`{option}` names role {role} twice: leave one out")
        numbers[role] = value
    return numbers


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


def agent_policies(mapping: Mapping[str, str], roles: Roles) -> dict[str, str]:
    """Policy by agent, from a map of roles or agents; an agent's entry wins."""
    return {
        agent: mapping[agent] if agent in mapping else mapping[role_of(agent)]
        for agent in agent_names(roles)
    }
