"""The policy of every role and agent, from `sharing`, and the learning rates of policies."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flowzoo.agents.policy_map import agent_names, role_of
from flowzoo.baselines.settings.by_policy import numbers_by_role, of_policy, written_values
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


class PolicyRate(NamedTuple):
    """The learning rate of one policy."""

    lr: float
    roles: Mapping[str, float]
    """Rates of single roles that differ, if it has several."""


def policy_rates(
    config: TrainConfig, mapping: Mapping[str, str], roles: Roles
) -> dict[str, PolicyRate]:
    """Resolve the rates of every policy that is trained."""
    of_policies = trained_roles(config, mapping, roles)
    named = written_values("lr", config.lr)
    single = numbers_by_role(config.role_lr, roles, "role_lr")
    for role, rate in single.items():
        if not 0 < rate < math.inf:
            raise UsageError(f"`role_lr {role}` must be greater than 0 and finite, got {rate}")
    for option in ("role_lr", "role_weights", "role_kl"):
        for role in numbers_by_role(getattr(config, option), roles, option):
            if not any(role in served for served in of_policies.values()):
                raise UsageError(
                    f"`{option}` names {role}, and no policy that is trained answers for it"
                )
    # A role's rate is that of the policies that answer for it alone; within a policy of several
    # roles it is one of theirs, which only sgd takes.
    rates: dict[str, PolicyRate] = {}
    for policy, served in of_policies.items():
        by_role = {role: rate for role, rate in single.items() if role in served}
        settings = of_policy(config, policy)
        assert settings.lr is not None
        if by_role and len(served) == 1:
            if policy in named:
                raise UsageError(
                    f"the learning rate of policy {policy} is given twice, by `lr` and by "
                    f"`role_lr` of its only role {next(iter(by_role))}: leave one out"
                )
            rates[policy] = PolicyRate(next(iter(by_role.values())), {})
            continue
        if by_role and settings.optimizer != "sgd":
            raise UsageError(
                f"`role_lr` within policy {policy}, which answers for "
                f"{', '.join(sorted(served))}, is for sgd, whose step is a sum over roles; "
                f"{settings.optimizer} takes one step for all: give roles policies of their "
                "own (`sharing`), or weigh them by `role_weights`"
            )
        rates[policy] = PolicyRate(settings.lr, by_role)
    return rates


def idle_weights(config: TrainConfig, mapping: Mapping[str, str], roles: Roles) -> list[str]:
    """List role weights without effect: of a policy's only role, except 0."""
    lines: list[str] = []
    weights = numbers_by_role(config.role_weights, roles, "role_weights")
    for policy, served in trained_roles(config, mapping, roles).items():
        role, optimizer = next(iter(served)), of_policy(config, policy).optimizer
        # Other optimizers than sgd divide the gradient by its own running size, so that a factor on
        # the whole loss of a policy cancels, but for `clip_norm` and `adam_eps`.
        idle = len(served) == 1 and weights.get(role, 1.0) not in (0.0, 1.0)
        if idle and optimizer != "sgd":
            lines.append(
                f"{policy}: role_weights {role}={weights[role]:g} does next to nothing, since it "
                f"is the policy's only role and the steps of {optimizer} do not "
                "depend on the scale of the loss: role_lr changes them"
            )
    return lines


def trained_roles(
    config: TrainConfig, mapping: Mapping[str, str], roles: Roles
) -> dict[str, set[str]]:
    """Roles that each trained policy answers for."""
    served: dict[str, set[str]] = {}
    for agent, policy in agent_policies(mapping, roles).items():
        if policy not in config.frozen:
            served.setdefault(policy, set()).add(role_of(agent))
    return served
