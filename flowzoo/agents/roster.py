"""Which policy answers for which role.

A roster maps roles, or single agents, to policies. One policy for all roles is `shared`, one per
role is `isolated`; anything else (two roles share one, one is frozen, voters differ) is a map.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flowzoo.agents.policy import Policy
from flowzoo.errors import UsageError, unknown


def role_of(agent: str) -> str:
    """The role of an agent name: `generator_2` -> `generator`; a role stays itself."""
    role, cut, number = agent.rpartition("_")
    return role if cut and number.isdigit() else agent


def agent_names(roles: Mapping[str, int]) -> list[str]:
    """Every agent of a workflow whose `roles` maps role -> number of agents."""
    return [f"{role}_{slot}" for role, count in roles.items() for slot in range(count)]


class Roster:
    """Role or agent -> policy. An entry for an agent wins over the entry of its role."""

    def __init__(self, entries: Mapping[str, Policy]) -> None:
        """Keep `entries`, whose keys are roles (`generator`) or agents (`generator_0`).

        Raises:
            UsageError: no entries, or two different policies under one name.
        """
        if not entries:
            raise UsageError("a roster needs at least one entry: role or agent -> policy.")
        self._entries = dict(entries)
        self._policies: dict[str, Policy] = {}
        for key, policy in entries.items():
            if not isinstance(policy, Policy):
                raise UsageError(
                    f"roster entry {key!r} must be a policy (name, batching, generate, close), "
                    f"got {type(policy).__name__}; names of policies go through Roster.from_map."
                )
            if self._policies.setdefault(policy.name, policy) is not policy:
                raise UsageError(
                    f"two different policies are named {policy.name!r}; give each its own name."
                )

    @classmethod
    def shared(cls, policy: Policy, roles: Iterable[str]) -> Roster:
        """One policy for every role in `roles` (a workflow's `roles` will do)."""
        return cls(dict.fromkeys(roles, policy))

    @classmethod
    def from_map(cls, mapping: Mapping[str, str], policies: Mapping[str, Policy]) -> Roster:
        """A roster from role or agent -> name of a policy, and the policies by name.

        Raises:
            UsageError: a name that is not in `policies`.
        """
        for name in mapping.values():
            if name not in policies:
                raise unknown("policy", name, policies)
        return cls({key: policies[name] for key, name in mapping.items()})

    @property
    def policies(self) -> dict[str, Policy]:
        """The distinct policies by name, sorted."""
        return dict(sorted(self._policies.items()))

    @property
    def entries(self) -> dict[str, str]:
        """Role or agent -> name of its policy, for records."""
        return {key: policy.name for key, policy in self._entries.items()}

    def policy(self, name: str) -> Policy:
        """The policy of an agent or a role.

        Raises:
            UsageError: neither the agent nor its role has an entry.
        """
        found = self._entries.get(name) or self._entries.get(role_of(name))
        if found is None:
            raise unknown("role or agent", name, self._entries)
        return found

    def check(self, roles: Mapping[str, int]) -> None:
        """Compare the roster with a workflow's `roles` (role -> number of agents).

        Raises:
            UsageError: an entry that is no role and no agent of the workflow, or an agent that
                no entry covers.
        """
        agents = agent_names(roles)
        for key in self._entries:
            if key not in roles and key not in agents:
                raise unknown("role or agent", key, [*roles, *agents])
        uncovered = [
            agent
            for agent in agents
            if agent not in self._entries and role_of(agent) not in self._entries
        ]
        if uncovered:
            missing = sorted({role_of(agent) for agent in uncovered})
            raise UsageError(
                f"no policy for role {', '.join(missing)} ({', '.join(uncovered)}). The roster has "
                f"{', '.join(sorted(self._entries))}; the workflow's roles are {', '.join(roles)}."
            )

    def __repr__(self) -> str:
        """Entries by policy name, e.g. `Roster(generator=p0, aggregator=p1)`."""
        return f"Roster({', '.join(f'{key}={name}' for key, name in self.entries.items())})"
