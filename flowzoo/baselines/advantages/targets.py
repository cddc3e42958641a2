"""The scalar target of each row, and its statistics by group."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from flowzoo.aliases import Floats
from flowzoo.baselines.advantages.columns import CallColumns, Groups
from flowzoo.baselines.advantages.segments import Bools, Codes, GroupStats, reduce, to_go, widen
from flowzoo.baselines.advantages.spec import AdvantageSpec, Weight
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError

EPISODE = ("problem", "episode")
"""Columns that identify an episode: ids are unique within a problem only."""


class GroupedTargets(NamedTuple):
    """Groups of rows with the statistics of their targets."""

    codes: Codes  # group of each row, (rows,)
    segments: GroupStats  # statistics of each group, (groups,)
    items: Floats
    """Value of the row's item, (rows,): its target, or its episode's mean target."""

    def rows(self, groups: Bools) -> Bools:
        """Mask of the rows in `groups`, (rows,)."""
        if not groups.any():
            return np.zeros(len(self.codes), np.bool_)
        return groups[self.codes]


class GroupedTargetsCache:
    """The pools of one computation, each found once."""

    def __init__(self, groups: Groups, targets: Floats) -> None:
        self.groups, self.targets = groups, targets
        self._found: dict[tuple[frozenset[str], Weight], GroupedTargets] = {}

    def of(self, columns: Sequence[str], weight: Weight) -> GroupedTargets:
        """Groups of rows that share `columns`, with each call or each episode counted once."""
        key = (frozenset(columns), weight)
        if key not in self._found:
            codes, first = self.groups.by(columns)
            if weight == "call":
                stats, items = reduce(codes, self.targets, len(first)), self.targets
            else:
                episode_codes, firsts = self.groups.by((*columns, *EPISODE))
                means = reduce(episode_codes, self.targets, len(firsts)).mean
                stats = reduce(codes[firsts], means, len(first))
                items = means[episode_codes]
            self._found[key] = GroupedTargets(codes, stats, items)
        return self._found[key]

    def widened(self, columns: Sequence[str], weight: Weight) -> GroupedTargets:
        """The same, where the rows of a group of one take the group without the last column."""
        pool = self.of(columns, weight)
        for width in range(len(columns) - 1, 0, -1):
            counts = pool.segments.counts
            lone = pool.rows(counts < 2)
            if not lone.any():
                break
            wider = self.of(columns[:width], weight)
            # One table of both kinds of group: the narrower ones, then the wider ones.
            tables = zip(pool.segments, wider.segments, strict=True)
            segments = GroupStats(*(np.concatenate(table) for table in tables))
            items = np.where(lone, wider.items, pool.items)
            pool = GroupedTargets(widen(pool.codes, counts, wider.codes), segments, items)
        return pool


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
    """The scalar target of each row, (rows,)."""
    columns = groups.columns
    if spec.target == "row":
        values = own_rewards(groups, spec)
    elif spec.target == "return_to_go":
        values = _returns_to_go(groups, spec)
    elif spec.target == "episode":
        values = _team_returns(groups) if returns is None else _given_returns(groups, returns)
    else:
        values = _node_values(columns, spec.target)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise UsageError(
            f"the {spec.target} reward of {columns.where(int(bad[0]))} is {values[bad[0]]}: "
            "rewards must be finite."
        )
    return values


def lowest_groups(
    calls: Sequence[Call], spec: AdvantageSpec, returns: Mapping[str, float], share: float
) -> Bools:
    """Mask of the rows, (rows,), in the lowest `share` of the baseline's groups by mean target.

    The number of groups is rounded down; of equal ones the first is lower.
    """
    groups = Groups(CallColumns(calls, columns_for(spec)))
    targets = GroupedTargetsCache(groups, targets_of(groups, spec, returns))
    pool = targets.of(spec.mean_group, spec.mean_weight)
    order = np.argsort(pool.segments.mean, kind="stable")
    lowest = np.zeros(len(order), np.bool_)
    lowest[order[: int(share * len(order))]] = True
    return pool.rows(lowest)


def own_values(groups: Groups, spec: AdvantageSpec, targets: Floats) -> Floats:
    """Earned part of each row's target, (rows,): replies that abstained do not earn the outcome."""
    # They have earned their own part `team`, what no answer is paid, and at most the lowest outcome
    # of their group. Baseline and scale are still computed from the episodes.
    if spec.target != "episode" or not groups.columns.flags("abstained").any():
        return targets
    lowest = _lowest_read(groups, spec, targets)
    return np.where(
        groups.columns.flags("abstained"), np.fmin(groups.columns.numbers("team"), lowest), targets
    )


def _lowest_read(groups: Groups, spec: AdvantageSpec, values: Floats) -> Floats:
    codes, first = groups.by(spec.mean_group)
    read = ~groups.columns.flags("abstained")
    lowest = np.full(len(first), np.inf)
    np.minimum.at(lowest, codes[read], values[read])
    return lowest[codes]


def _team_shares(groups: Groups, spec: AdvantageSpec) -> Floats:
    columns = groups.columns
    shares, abstained = columns.numbers("share"), columns.flags("abstained")
    if not abstained.any():
        return shares
    return np.where(abstained, np.minimum(shares, _lowest_read(groups, spec, shares)), shares)


def own_rewards(groups: Groups, spec: AdvantageSpec) -> Floats:
    """The row's own reward, (rows,), with its share of the outcome as `_team_shares` has it."""
    columns = groups.columns
    rewards, shares = columns.numbers("reward"), columns.numbers("share")
    held = _team_shares(groups, spec)
    return rewards if held is shares else np.where(held < shares, rewards - shares + held, rewards)


def lowest_outcome(groups: Groups, spec: AdvantageSpec, earned: Floats) -> float:
    """The lowest outcome of the batch: of what rows have earned, their team's share alone."""
    shared = spec.target in ("row", "return_to_go")
    outcomes = _team_shares(groups, spec) if shared else earned
    return float(outcomes.min()) if len(outcomes) else 0.0


def _given_returns(groups: Groups, returns: Mapping[str, float]) -> Floats:
    episodes = groups.columns.ids("episode")
    lost = [episode for episode in episodes if episode not in returns]
    if lost:
        raise UsageError(f"`returns` has no entry for the episodes {lost[:5]} of the calls.")
    values = np.array([returns[episode] for episode in episodes], np.float64)  # type: ignore[index]
    return values[groups.columns.codes("episode")]


def _team_returns(groups: Groups) -> Floats:
    # An episode in which every reply abstained has the return of no answer.
    columns = groups.columns
    team, abstained = columns.numbers("team"), columns.flags("abstained")
    unknown = np.flatnonzero(np.isnan(team))
    if unknown.size:
        raise UsageError(
            f"the call of {columns.where(int(unknown[0]))} has no reward part `team`: pass "
            "`returns` (episode id -> return) to `compute`."
        )
    codes, first = groups.by(EPISODE)
    returns, read = team[first], np.flatnonzero(~abstained)
    returns[codes[read]] = team[read]
    values = returns[codes]
    differs = read[values[read] != team[read]]
    if differs.size:
        raise UsageError(
            "the calls of one episode have different reward parts `team`, one of them "
            f"{columns.where(int(differs[0]))}: episode ids must be unique within a batch."
        )
    return values


def _returns_to_go(groups: Groups, spec: AdvantageSpec) -> Floats:
    # The row's share of the team's outcome is counted once, not once per later call, and discounted
    # by the turns to the agent's last call.
    columns = groups.columns
    if not columns.flags("executed").all():
        raise UsageError(
            "target 'return_to_go' follows an episode, and some of these calls are candidates that "
            "it did not go on from: take target 'candidate' or 'node', or sampling=\"episodes\"."
        )
    grouping = groups.by((*EPISODE, "agent"))
    turns = np.array(columns.ids("turn"), np.int64)[columns.codes("turn")]
    places = groups.by((*EPISODE, "agent", "turn"))
    if len(places.first) < len(columns):
        twice = int(np.flatnonzero(np.bincount(places.codes) > 1)[0])
        where = columns.where(int(places.first[twice]))
        raise UsageError(f"two calls have one place in their episode: {where}.")
    immediate = columns.numbers("immediate")
    shares = _team_shares(groups, spec)
    return to_go(immediate, shares, turns, grouping, spec.gamma)


def _node_values(columns: CallColumns, target: str) -> Floats:
    values = columns.numbers("value")
    unknown = np.flatnonzero(np.isnan(values))
    if unknown.size:
        raise UsageError(
            f"target {target!r} needs every call's `value`, and that of "
            f"{columns.where(int(unknown[0]))} was never found: set "
            f'sampling="{_SAMPLING[target]}", or take another target.'
        )
    return values
