"""Names of agents: the role and a number, `generator_2`."""

from __future__ import annotations

from flowzoo.envs.workflow import Roles, agents_of


def role_of(agent: str) -> str:
    """The role of an agent name: `generator_2` -> `generator`; a role stays itself."""
    role, cut, number = agent.rpartition("_")
    return role if cut and number.isdigit() else agent


def agent_names(roles: Roles) -> list[str]:
    """Every agent of a workflow with these `roles`."""
    return [agent for role, agents in roles.items() for agent in agents_of(role, agents)]
