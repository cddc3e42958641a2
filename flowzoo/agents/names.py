"""Names of agents: the role and a number, `generator_2`."""

from __future__ import annotations

from collections.abc import Mapping


def role_of(agent: str) -> str:
    """The role of an agent name: `generator_2` -> `generator`; a role stays itself."""
    role, cut, number = agent.rpartition("_")
    return role if cut and number.isdigit() else agent


def agent_names(roles: Mapping[str, int]) -> list[str]:
    """Every agent of a workflow whose `roles` maps role -> number of agents."""
    return [f"{role}_{slot}" for role, count in roles.items() for slot in range(count)]
