"""Token budgets per role: how long a prompt and a reply may be.

On a command line: `ROLE=PROMPT/REPLY`, either number may be left out (`aggregator=15360/5120`,
`generator=/512`). A role without an entry has the policy's own limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowzoo.agents.names import agent_names, role_of
from flowzoo.envs.workflow import Roles
from flowzoo.errors import UsageError, unknown

_WORD = re.compile(r"(?P<role>\w+)=(?P<prompt>\d*)(?:/(?P<reply>\d*))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Budgets of one role, in tokens; None leaves the policy's own.

    Raises:
        UsageError: a budget below 1.
    """

    prompt: int | None = None
    """Most tokens of a prompt; a longer one is shortened (`flowzoo.agents.chat.shorten`)."""
    reply: int | None = None
    """Most tokens of a reply."""

    def __post_init__(self) -> None:
        for name in ("prompt", "reply"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"the {name} budget of a role must be at least 1, got {value}")


def read_lengths(args: Sequence[str], roles: Roles) -> dict[str, Lengths]:
    """Read `ROLE=PROMPT/REPLY` words.

    Args:
        args: e.g. `("generator=30720/5120", "aggregator=/512")`.
        roles: the workflow's, role -> its agents; entries name roles or agents.

    Raises:
        UsageError: a word of another form, an unknown role, or one given twice.
    """
    agents = agent_names(roles)
    lengths: dict[str, Lengths] = {}
    for word in args:
        match = _WORD.fullmatch(word)
        if match is None or not (match["prompt"] or match["reply"]):
            raise UsageError(
                f"lengths are given as ROLE=PROMPT/REPLY, e.g. generator=4096/512 or "
                f"generator=/512, got {word!r}"
            )
        role = match["role"]
        if role not in roles and role not in agents:
            raise unknown("role", role, [*roles, *agents])
        if role in lengths:
            raise UsageError(f"lengths give {role!r} twice")
        prompt, reply = (int(match[name]) if match[name] else None for name in ("prompt", "reply"))
        lengths[role] = Lengths(prompt, reply)
    return lengths


def with_default(
    lengths: Mapping[str, Lengths], roles: Roles, reply: int
) -> tuple[dict[str, Lengths], int]:
    """`lengths` with a reply budget in every role, and the longest: what policies must allow.

    A policy has one limit for all roles that it plays, and a request can only tighten it: the
    policy's must be the longest, and the roles that were given none get `reply`.
    """
    full = {role: lengths.get(role, Lengths()) for role in roles}
    full = {role: Lengths(entry.prompt, entry.reply or reply) for role, entry in full.items()}
    for agent, entry in lengths.items():
        if agent not in roles:
            role = full[role_of(agent)]
            full[agent] = Lengths(entry.prompt or role.prompt, entry.reply or role.reply)
    return full, max(entry.reply or reply for entry in full.values())
