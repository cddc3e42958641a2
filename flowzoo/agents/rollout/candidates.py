"""Immediate value of a candidate in tree sampling: pure functions of its branch.

The sum is alpha * team + local + format (under `credit="local"` without the team's share), over
the parts that all candidates of a decision know once the effects after their replies are done. If
neither team nor local is known, it is an error, never a zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowzoo.agents.rollout.drivers import OpenTurn
from flowzoo.envs import Episode, Workflow
from flowzoo.envs.episode.credit import abstains, reward_parts
from flowzoo.errors import UsageError


def known_parts(workflow: Workflow, branch: Episode, call: int) -> dict[str, float]:
    """The reward parts of `call` that a branch knows at once: `team` and `local` if it does."""
    team = branch.finished().score if branch.done else branch.interim_score
    reply = branch.turns[call].reply
    readable = reply is not None and reply.strict is not None
    role_score, form = branch.role_scores.get(call), branch.forms.get(call)
    parts = reward_parts(workflow, team or 0.0, readable, role_score, form)
    if team is None:
        del parts["team"]
    return parts


def immediate_values(
    workflow: Workflow, turn: OpenTurn, branches: Sequence[Episode]
) -> list[float]:
    """Values of the candidates of one turn, from the parts that their branches know at once.

    Raises:
        UsageError: the role has no immediate reward.
    """
    parts = [known_parts(workflow, branch, turn.call) for branch in branches]
    phase = branches[0].turns[turn.call].phase
    # A standing from before the reply is the same for every candidate and says nothing of it.
    fresh = any(branch.done or branch.interim_phase > phase for branch in branches)
    weights = {"format": 1.0}
    if all("local" in part for part in parts):
        weights["local"] = 1.0
    if workflow.credit != "local" and fresh and all("team" in part for part in parts):
        weights["team"] = workflow.alpha
    if weights.keys() == {"format"}:
        raise UsageError(
            f"candidates of role {turn.role!r} in {workflow.name} cannot be valued at once: "
            "neither their role score nor a team reward is known before others have answered. "
            'Take TreeSettings(value="rollout"), which plays every candidate to its end.'
        )
    return [sum(weights.get(name, 0.0) * x for name, x in part.items()) for part in parts]


def held_down(
    values: Sequence[float], shares: Sequence[float], abstained: Sequence[bool]
) -> list[float]:
    """Values of one decision's candidates, with no candidate paid for abstaining.

    `shares` are the parts of `values` that come from the team's outcome. A candidate that abstained
    gets at most the lowest share of the readable ones.
    """
    read = [share for share, silent in zip(shares, abstained, strict=True) if not silent]
    lowest = min(read, default=math.inf)
    rows = zip(values, shares, abstained, strict=True)
    return [value - max(0.0, share - lowest) if silent else value for value, share, silent in rows]


def call_fields(workflow: Workflow, branch: Episode, call: int, value: float) -> dict[str, Any]:
    """The fields of the `Call` of a candidate that was not executed, from its branch."""
    turn = branch.turns[call]
    readable = turn.reply is not None and turn.reply.strict is not None
    parts = known_parts(workflow, branch, call)
    return {
        "reply": turn.said,
        "strict": readable,
        "lenient": turn.reply is not None and turn.reply.lenient is not None,
        "role_score": branch.role_scores.get(call),
        "parts": parts,
        "reward": value,
        "immediate": parts.get("local", 0.0) + parts.get("format", 0.0),
        "abstained": abstains(workflow, readable),
    }
