"""Words of the command line that give roles and policies something: NAME=VALUE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from flowzoo.agents.names import agent_names, role_of
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, unknown


def per_policy(words: Sequence[str], names: Sequence[str], option: str) -> dict[str, str]:
    """Read NAME=VALUE words into a map over some of the policies `names`.

    Raises:
        UsageError: a word of another form, a policy that is not trained, or one named twice.
    """
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise UsageError(f"`{option}` takes POLICY=VALUE, got {word!r}")
        if name not in names:
            raise unknown("policy", name, names)
        if name in found:
            raise UsageError(
                f"`{option}` names policy {name} twice, with {found[name]} and {value}: leave one "
                "out"
            )
        found[name] = value
    return found


def numbers_by_role(words: Sequence[str], roles: Iterable[str], option: str) -> dict[str, float]:
    """Read ROLE=NUMBER words, as the command line has them.

    Raises:
        UsageError: a word of another form, or an unknown role.
    """
    known = list(roles)
    found: dict[str, float] = {}
    for word in words:
        role, _, text = word.partition("=")
        try:
            value = float(text)
        except ValueError:
            raise UsageError(f"`{option}` takes ROLE=NUMBER, got {word!r}.") from None
        if role not in known:
            raise unknown("role", role, known)
        found[role] = value
    return found


def read_policy_map(sharing: tuple[str, ...], roles: Roles) -> dict[str, str]:
    """Role or agent -> policy name.

    Raises:
        UsageError: an unknown word or role, or a role without a policy.
    """
    if sharing == ("shared",):
        return dict.fromkeys(roles, "shared")
    if sharing == ("isolated",):
        return {role: role for role in roles}
    agents = agent_names(roles)
    found: dict[str, str] = {}
    for word in sharing:
        role, equals, policy = word.partition("=")
        if not equals or not policy:
            raise UsageError(
                f"`sharing` takes shared, isolated, or ROLE=POLICY for every role; got {word!r}"
            )
        if role not in roles and role not in agents:
            raise unknown("role", role, [*roles, *agents])
        found[role] = policy
    missing = [
        role
        for role, count in roles.items()
        if role not in found and not all(agent in found for agent in agent_names({role: count}))
    ]
    if missing:
        raise UsageError(
            f"the policy map misses role {', '.join(missing)}; the roles are {', '.join(roles)}"
        )
    return found


def agent_policies(mapping: Mapping[str, str], roles: Roles) -> dict[str, str]:
    """Agent -> policy name, from a map of roles or agents; an agent's entry wins."""
    return {
        agent: mapping[agent] if agent in mapping else mapping[role_of(agent)]
        for agent in agent_names(roles)
    }
