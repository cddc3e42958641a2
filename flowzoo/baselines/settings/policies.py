"""Policies of a run: values by policy, the policy of every role, learning rates, learner groups."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from flowzoo.agents.policy_map import agent_names, role_of
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.declared import declared_types, describe, read_text, takes_words, without_words
from flowzoo.envs.settings import read_named
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, unknown

OF_SAMPLING = ("temperature", "top_p", "top_k")
"""Settings that frozen policies have too; the others are of learners."""


@cache
def by_policy(settings: type) -> Mapping[str, Any]:
    """Type of a single value by setting, for the settings that may differ between policies."""
    return {
        name: without_words(kind)
        for name, kind in declared_types(settings).items()
        if takes_words(kind)
    }


def read_policies(config: TrainConfig, trained: Sequence[str]) -> dict[str, TrainConfig]:
    """Settings of every policy that is trained or frozen, with its values in place of words.

    Raises:
        UsageError: a word of none of these policies, or no value of the setting.
    """
    names = sorted({*trained, *config.frozen})
    for setting in by_policy(TrainConfig):
        policies = names if setting in OF_SAMPLING else trained
        written_values(setting, getattr(config, setting), policies)
    return {name: of_policy(config, name) for name in names}


def of_policy(config: TrainConfig, policy: str) -> TrainConfig:
    """Return `config` with the values of one policy in place of words.

    Raises:
        UsageError: a value that is of another type, or out of the range of a plain value.
    """
    values = values_of(config, policy)
    return replace(config, **values) if values else config


def values_of(settings: object, policy: str) -> dict[str, Any]:
    """Values of one policy by setting, for the settings that are written as words."""
    return {
        name: value_of(name, getattr(settings, name), policy)
        for name in by_policy(type(settings))
        if isinstance(getattr(settings, name), tuple)
    }


def value_of(setting: str, written: object, policy: str) -> Any:
    """Value of one policy from what is written for a setting: its own, or that of the others."""
    values = written_values(setting, written)
    return values.get(policy, values[""])


def written_values(
    setting: str, written: object, policies: Sequence[str] | None = None
) -> dict[str, Any]:
    """Values by policy of what is written for a setting of a run; the others' is named "".

    Raises:
        UsageError: a word of none of these policies, or no value of the setting.
    """
    if not isinstance(written, list | tuple):
        return {"": written}
    texts = read_named(written, policies, setting, plain=True)
    kind = by_policy(TrainConfig)[setting]
    return {"": getattr(TrainConfig, setting)} | {
        name: read_value(text, kind, f"{setting} {name}".strip()) for name, text in texts.items()
    }


def with_values(config: TrainConfig, setting: str, values: Mapping[str, object]) -> TrainConfig:
    """Give a setting these values of the policies whose value is open.

    They are written as one value for all policies where no other is written or needed.
    """
    given = getattr(config, setting)
    texts = read_named(given, None, setting, plain=True) if isinstance(given, tuple) else {}
    named = {name: text for name, text in texts.items() if name not in values and text != str(None)}
    first = next(iter(values.values()))
    plain = named.pop("", repr(first))
    named |= {name: repr(value) for name, value in values.items() if repr(value) != plain}
    written = (plain, *(f"{name}={text}" for name, text in named.items()))
    changed: dict[str, Any] = {setting: written if named else first}
    return replace(config, **changed)


def read_value(text: str, kind: object, label: str) -> Any:
    """Read the text of a word as a value of the type `kind`; messages name it `label`."""
    try:
        return read_text(text, kind)
    except ValueError:
        raise UsageError(f"`{label}` must be {describe(kind)}, got {text!r}") from None


def numbers_by_role(
    arguments: Iterable[str], roles: Iterable[str], option: str
) -> dict[str, float]:
    """Read ROLE=NUMBER words for some of `roles`."""
    return {
        role: read_value(text, float, f"{option} {role}")
        for role, text in read_named(arguments, roles, option, "role").items()
    }


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


class LearnerGroupPlan(NamedTuple):
    """Policies that learn in one learner group, one after another."""

    policies: tuple[str, ...]
    workers: int


def plan_learner_groups(
    config: TrainConfig, policy_settings: Mapping[str, TrainConfig], starts: Mapping[str, str]
) -> tuple[LearnerGroupPlan, ...]:
    """Plan the learner groups of a run, for `starts`, the starting model by policy.

    One number makes one learner group of all policies; with one for each policy every policy with
    full weights has a separate learner group, and so has every base of adapters.
    """
    trained = tuple(name for name in starts if name not in config.frozen)
    workers = config.learner_workers
    if isinstance(workers, int):
        groups = (LearnerGroupPlan(trained, workers),) if workers else ()
    else:
        groups = _apart(policy_settings, _numbers(config, workers, trained), starts)
    for group in groups:
        if group.workers > 1 and config.learner_gpus not in (0, 1):
            raise UsageError(
                f"each of {group.workers} learner workers of {', '.join(group.policies)} computes "
                "on one GPU of its own, or on the CPU, got `learner_gpus` "
                f"{config.learner_gpus:g}: set it to 1 or 0 (one learner worker alone may share: "
                "0.5)"
            )
    return groups


def _numbers(
    config: TrainConfig, arguments: tuple[str, ...], trained: tuple[str, ...]
) -> dict[str, int]:
    frozen = [argument for argument in arguments if argument.partition("=")[0] in config.frozen]
    if frozen:
        raise UsageError(
            f"policy {frozen[0].partition('=')[0]} is frozen and has no learner: leave "
            f"{frozen[0]} out of `learner_workers`"
        )
    numbers = read_named(arguments, trained, "learner_workers")
    for name, number in numbers.items():
        if not number.isdecimal() or not int(number):
            raise UsageError(
                f"`learner_workers` takes POLICY=NUMBER, 1 or more, got {name}={number}"
            )
    missing = [name for name in trained if name not in numbers]
    if missing:
        raise UsageError(
            f"with `learner_workers` for each policy there are none for {', '.join(missing)}: add "
            f"{' '.join(f'{name}=N' for name in missing)}, or give one number for "
            "all policies together"
        )
    return {name: int(numbers[name]) for name in trained}


def _apart(
    policy_settings: Mapping[str, TrainConfig],
    numbers: Mapping[str, int],
    starts: Mapping[str, str],
) -> tuple[LearnerGroupPlan, ...]:
    together: dict[tuple[str, ...], list[str]] = {}
    for name in numbers:
        # Adapters of one base share its weights, and so the processes that hold them.
        key = ("base", starts[name]) if policy_settings[name].lora_rank else ("policy", name)
        together.setdefault(key, []).append(name)
    for names in together.values():
        if len({numbers[name] for name in names}) > 1:
            raise UsageError(
                f"{', '.join(names)} are adapters on one base ({starts[names[0]]}), and learn on "
                "it in one group: give them the same number in `learner_workers`, that of this "
                f"group, got {' '.join(f'{name}={numbers[name]}' for name in names)}"
            )
    return tuple(LearnerGroupPlan(tuple(names), numbers[names[0]]) for names in together.values())
