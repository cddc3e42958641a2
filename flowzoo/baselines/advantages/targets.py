"""The scalar target of each row."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flowzoo.baselines.advantages.columns import CallColumns, Groups
from flowzoo.baselines.advantages.grouped_targets import EPISODE
from flowzoo.baselines.advantages.segments import Floats, to_go
from flowzoo.baselines.advantages.spec import AdvantageSpec
from flowzoo.errors import UsageError

_SAMPLING = {"candidate": "tree", "node": "joint"}
"""Targets that read `Call.value` -> the sampling that fills it."""

_READ: dict[str, tuple[str, ...]] = {
    "row": ("reward", "share", "abstained"),
    "return_to_go": ("share", "immediate", "abstained", "executed", "agent", "turn"),
    "episode": ("team", "abstained"),
    "node": ("value",),
    "candidate": ("value",),
}
"""Target -> the columns it is made of."""


def columns_for(spec: AdvantageSpec) -> set[str]:
    """The columns that `compute` reads under `spec`."""
    return {*EPISODE, "role", *spec.mean_group, *spec.std_group, *_READ[spec.target]}


def targets_of(
    groups: Groups, spec: AdvantageSpec, returns: Mapping[str, float] | None = None
) -> Floats:
    """The scalar target of each row, (rows,).

    Raises:
        UsageError: an episode has no return, a target needs another sampling, or a value is not
            finite.
    """
    columns = groups.columns
    if spec.target == "row":
        values = own_rewards(groups, spec)
    elif spec.target == "return_to_go":
        values = returns_to_go(groups, spec)
    elif spec.target == "episode":
        values = team_returns(groups) if returns is None else given_returns(groups, returns)
    else:
        values = node_values(columns, spec.target)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise UsageError(
            f"the {spec.target} reward of {columns.where(int(bad[0]))} is {values[bad[0]]}: "
            "rewards must be finite."
        )
    return values


def own_values(groups: Groups, spec: AdvantageSpec, targets: Floats) -> Floats:
    """Earned part of each row's target, (rows,): replies that abstained do not earn the outcome.

    It has earned its own part `team`, what no answer is paid, and at most the lowest outcome that
    its group has. Only an episode's return is shared by rows that may not have earned it: baseline
    and scale are still computed from the episodes; only the row's own value differs.
    """
    if spec.target != "episode" or not groups.columns.flags("abstained").any():
        return targets
    lowest = lowest_read(groups, spec, targets)
    return np.where(
        groups.columns.flags("abstained"),
        np.fmin(groups.columns.numbers("team"), lowest),
        targets,
    )


def lowest_read(groups: Groups, spec: AdvantageSpec, values: Floats) -> Floats:
    """The lowest of `values` among the replies of each row's group that did not abstain, (rows,).

    The group is that of the baseline; infinite where all of it abstained.
    """
    codes, first = groups.by(spec.mean_group)
    read = ~groups.columns.flags("abstained")
    lowest = np.full(len(first), np.inf)
    np.minimum.at(lowest, codes[read], values[read])
    return lowest[codes]


def team_shares(groups: Groups, spec: AdvantageSpec) -> Floats:
    """Each row's share of its team's outcome, (rows,): of one that abstained the lowest at most."""
    columns = groups.columns
    shares, abstained = columns.numbers("share"), columns.flags("abstained")
    if not abstained.any():
        return shares
    return np.where(abstained, np.minimum(shares, lowest_read(groups, spec, shares)), shares)


def own_rewards(groups: Groups, spec: AdvantageSpec) -> Floats:
    """The row's own reward, (rows,), with its share of the outcome as `team_shares` has it."""
    columns = groups.columns
    rewards, shares = columns.numbers("reward"), columns.numbers("share")
    held = team_shares(groups, spec)
    return rewards if held is shares else np.where(held < shares, rewards - shares + held, rewards)


def lowest_outcome(groups: Groups, spec: AdvantageSpec, earned: Floats) -> float:
    """The lowest outcome of the batch: of what rows have earned, their team's share alone."""
    shared = spec.target in ("row", "return_to_go")
    outcomes = team_shares(groups, spec) if shared else earned
    return float(outcomes.min()) if len(outcomes) else 0.0


def given_returns(groups: Groups, returns: Mapping[str, float]) -> Floats:
    """The return of each row's episode, (rows,)."""
    episodes = groups.columns.ids("episode")
    lost = [episode for episode in episodes if episode not in returns]
    if lost:
        raise UsageError(f"`returns` has no entry for the episodes {lost[:5]} of the calls.")
    values = np.array([returns[episode] for episode in episodes], np.float64)  # type: ignore[index]
    return values[groups.codes("episode")]


def team_returns(groups: Groups) -> Floats:
    """The `team` part of each row's episode, (rows,); replies that abstained do not say it.

    An episode in which every reply abstained has the return of no answer.
    """
    columns = groups.columns
    team, abstained = columns.numbers("team"), columns.flags("abstained")
    unknown = np.flatnonzero(np.isnan(team))
    if unknown.size:
        raise UsageError(
            f"the call of {columns.where(int(unknown[0]))} has no reward part `team`: pass "
            "`returns` (episode id -> return) to `compute`."
        )
    codes, first = groups.by(EPISODE)
    if not abstained.any():
        returns, rows = team[first], slice(None)
    else:
        returns, rows = team[first], np.flatnonzero(~abstained)
        returns[codes[rows]] = team[rows]
    values = returns[codes]
    differs = np.flatnonzero(values[rows] != team[rows])
    if differs.size:
        row = np.arange(len(team))[rows][differs[0]]
        raise UsageError(
            "the calls of one episode have different reward parts `team`, one of them "
            f"{columns.where(int(row))}: episode ids must be unique within a batch."
        )
    return values


def returns_to_go(groups: Groups, spec: AdvantageSpec) -> Floats:
    """Return of each row's agent from that call on, (rows,).

    `immediate` rewards are summed with gamma per turn. The row's share of the team's outcome (its
    reward less `immediate`) is counted once, not once per later call, and discounted by the turns
    to the agent's last call.
    """
    columns = groups.columns
    if not columns.flags("executed").all():
        raise UsageError(
            "target 'return_to_go' follows an episode, and some of these calls are candidates that "
            "it did not go on from: take target 'candidate' or 'node', or sampling=\"episodes\"."
        )
    grouping = groups.by((*EPISODE, "agent"))
    turns = np.array(columns.ids("turn"), np.int64)[groups.codes("turn")]
    places = groups.by((*EPISODE, "agent", "turn"))
    if len(places.first) < len(columns):
        twice = int(np.flatnonzero(np.bincount(places.codes) > 1)[0])
        where = columns.where(int(places.first[twice]))
        raise UsageError(f"two calls have one place in their episode: {where}.")
    immediate = columns.numbers("immediate")
    shares = team_shares(groups, spec)
    return to_go(immediate, shares, turns, grouping, spec.gamma)


def node_values(columns: CallColumns, target: str) -> Floats:
    """Value of each row under tree sampling, (rows,)."""
    values = columns.numbers("value")
    unknown = np.flatnonzero(np.isnan(values))
    if unknown.size:
        raise UsageError(
            f"target {target!r} needs every call's `value`, and that of "
            f"{columns.where(int(unknown[0]))} was never found: set "
            f'sampling="{_SAMPLING[target]}", or take another target.'
        )
    return values
