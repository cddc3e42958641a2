"""Advantages: how much better a call did than the calls it is compared with.

`compute` is the way in: calls (or their `CallColumns`) and an `AdvantageSpec` give one scalar per
row. Statistics are taken over the rows as they came, before any filter, padding or truncation rule.

Beside the values, `Advantages.roles` holds the figures of Dr. MAS, Lemma 4.2: how the targets of
one role's calls on one problem (mean mu_k, deviation sigma_k) differ from those of the problem's
episodes (mu, sigma). F_k = (sigma_k^2 + (mu_k - mu)^2) / sigma^2 is the factor by which the role's
squared advantage is inflated when it is normalised by (mu, sigma); b_k = (mu_k - mu) / sigma is
the shift of its mean. Both use the population deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flowzoo.baselines.advantages.columns import CallColumns, Groups, encode
from flowzoo.baselines.advantages.grouped_targets import GroupedTargets, GroupedTargetsCache
from flowzoo.baselines.advantages.roles import RoleStat, RoleStats, role_stats
from flowzoo.baselines.advantages.running import RunningMean
from flowzoo.baselines.advantages.segments import (
    Bools,
    Floats,
    GroupStats,
    baseline_loo,
    constants,
    drop_rounding,
    normalize,
)
from flowzoo.baselines.advantages.spec import PRESETS, AdvantageSpec, Weight, named_spec
from flowzoo.baselines.advantages.targets import (
    columns_for,
    lowest_outcome,
    own_values,
    targets_of,
)
from flowzoo.envs.records import Call, EpisodeRecord
from flowzoo.errors import UsageError

__all__ = [
    "PRESETS", "AdvantageSpec", "Advantages", "CallColumns", "RoleStat", "RoleStats", "RunningMean",
    "compute", "encode", "episode_returns",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Advantages:
    """What `compute` returns; the arrays have one entry per row, in the order of the calls."""

    values: Floats
    zero_variance: Bools
    """The row's group (of the scale, or of the baseline without a scale) is constant: its values
    differ by a millionth of the largest at most. Its advantage is 0; only a reply that abstained
    may differ from a constant group without a scale."""
    singleton: Bools
    """The row's group (of the baseline or of the scale) holds a single item."""
    groups: int
    """Number of groups of the scale (of the baseline without one; 0 without both)."""
    zero_variance_groups: int
    """How many of them are constant; groups of one are not counted here."""
    singleton_groups: int
    """How many of them hold a single item, before any widening."""
    roles: RoleStats
    """Dr. MAS's figures, one entry per problem and role."""


def episode_returns(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Episode id -> score, as `compute` takes it."""
    return {episode.episode: episode.score for episode in episodes}


def compute(
    calls: Sequence[Call] | CallColumns,
    spec: AdvantageSpec | str,
    returns: Mapping[str, float] | None = None,
    state: RunningMean | None = None,
    extra: Floats | None = None,
    origin: float | None = 0.0,
) -> Advantages:
    """Advantages of `calls` under `spec` (or the preset of that name).

    Args:
        calls: the rows, or their columns, gathered while the episodes came in.
        spec: the choices.
        returns: episode id -> return, for `target="episode"`; without it an episode's return is
            the reward part `team` of its calls.
        state: the means of earlier batches, for `mean="running"`; this batch moves them.
        extra: (rows,), added to what each row is judged by (a punishment of its length).
        origin: what a reward counts from where it has no baseline (`mean="none"`, a raw group of
            one, a running mean's first batch). None: from the lowest outcome of the batch, for
            rewards whose 0 means nothing.

    Raises:
        UsageError: an unknown preset, an episode without a return, a reward not finite, a target
            that needs another sampling, or a running mean without its state.
    """
    spec = named_spec(spec)
    columns = calls if isinstance(calls, CallColumns) else CallColumns(calls, columns_for(spec))
    groups = Groups(columns)
    targets = targets_of(groups, spec, returns)
    own = own_values(groups, spec, targets)
    start = lowest_outcome(groups, spec, own) if origin is None else origin
    if extra is not None:
        targets, own = targets + extra, own + extra
    pools = scaled = GroupedTargetsCache(groups, targets, own=spec.mean == "loo")
    values, judge = own, None
    single, alone = (np.zeros(len(own), np.bool_) for _ in range(2))
    if spec.mean == "running":
        values = _less_running(own, pools, spec, state, start)
    elif spec.mean == "none":
        values = own - start
    else:
        judge, single = _pool(pools, spec, spec.mean_group, spec.mean_weight)
        alone = judge.rows(judge.segments.counts < 2)
        values = _less_baseline(own, targets, judge, spec)
    if spec.std != "none":
        if spec.std_of == "difference":
            scaled = GroupedTargetsCache(groups, values)
        judge, lone = _pool(scaled, spec, spec.std_group, spec.std_weight)
        single, alone = single | lone, alone | judge.rows(judge.segments.counts < 2)
        freedom = 1 if spec.std == "sample" else 0
        if spec.std_of == "difference":
            values = values - judge.segments.mean[judge.codes]
        values = normalize(values, judge.codes, judge.segments, freedom, spec.eps)
    if alone.any():
        # A group of one has neither baseline nor deviation: what it gets is a choice.
        values = np.where(alone, own - start if spec.singleton == "raw" else 0.0, values)
    constant = np.zeros(len(own), np.bool_)
    if judge is not None:
        constant = judge.rows(constants(judge.segments))
    return Advantages(values, constant, single, *_counts(scaled, spec), role_stats(pools))


def _pool(
    pools: GroupedTargetsCache, spec: AdvantageSpec, columns: tuple[str, ...], weight: Weight
) -> tuple[GroupedTargets, Bools]:
    """The pool each row uses (widened if asked), and which rows were alone to begin with."""
    narrow = pools.of(columns, weight)
    pool = pools.widened(columns, weight) if spec.singleton == "widen" else narrow
    return pool, narrow.rows(narrow.segments.counts < 2)


def _less_baseline(
    own: Floats, targets: Floats, pool: GroupedTargets, spec: AdvantageSpec
) -> Floats:
    """What each row has earned, less the baseline of its group, (rows,)."""
    if spec.mean == "loo" and pool.own is not None:
        # What a row leaves out is what it has earned: a reply that abstained in an episode that
        # was won would else be compared with fewer won episodes than one that failed.
        counted = np.where(own < targets, np.minimum(pool.own, own), pool.own)
        left = own - baseline_loo(pool.codes, counted, pool.segments)
    else:
        best = spec.mean == "max"
        left = own - (pool.segments.high if best else pool.segments.mean)[pool.codes]
    drop_rounding(left, pool.codes, pool.segments)
    return left


def _less_running(
    own: Floats, pools: GroupedTargetsCache, spec: AdvantageSpec, state: RunningMean | None,
    start: float,
) -> Floats:  # fmt: skip
    """What each row has earned, less the mean of earlier batches; this batch moves the means.

    Without earlier batches the mean is `start`.
    """
    if state is None:
        raise UsageError(
            'mean="running" remembers earlier batches: pass state=RunningMean(), the same at every '
            "batch."
        )
    pool, keys = pools.of(spec.mean_group, spec.mean_weight), pools.groups.keys(spec.mean_group)
    baselines = state.before(spec.mean_group, keys, start)
    state.update(spec.mean_group, keys, pool.segments.mean, spec.decay)
    return own - baselines[pool.codes]


def _counts(pools: GroupedTargetsCache, spec: AdvantageSpec) -> tuple[int, int, int]:
    """How many groups there are, and how many of them are constant or of one item."""
    if spec.std != "none":
        segments: GroupStats = pools.of(spec.std_group, spec.std_weight).segments
    elif spec.mean not in ("none", "running"):
        segments = pools.of(spec.mean_group, spec.mean_weight).segments
    else:
        return 0, 0, 0
    lonely = np.count_nonzero(segments.counts < 2)
    return len(segments.counts), int(np.count_nonzero(constants(segments))), int(lonely)
