"""Advantages of calls under a spec, with Dr. MAS's figures per problem and role."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flowzoo.aliases import Floats, StateDict
from flowzoo.baselines.advantages.columns import CallColumns, Groups
from flowzoo.baselines.advantages.segments import (
    Bools,
    Codes,
    GroupStats,
    baseline_loo,
    constants,
    drop_rounding,
    normalize,
)
from flowzoo.baselines.advantages.spec import AdvantageSpec, Weight, named_spec
from flowzoo.baselines.advantages.targets import (
    GroupedTargets,
    GroupedTargetsCache,
    columns_for,
    lowest_outcome,
    own_values,
    targets_of,
)
from flowzoo.envs.records import Call, EpisodeRecord
from flowzoo.errors import UsageError


class RunningMean:
    """Exponential mean per group, after the role-conditioned baseline of arXiv 2506.24119."""

    # A batch is judged by the means from before it, and then moves them; a group's first batch sets
    # its mean. Every batch moves the means, so compute each once.

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()
        """Columns that define the groups; set by the first batch."""
        self.means: dict[tuple[Hashable, ...], float] = {}

    def copy(self) -> RunningMean:
        """Another one with the same means, which a batch moves without moving these."""
        other = RunningMean()
        other.columns, other.means = self.columns, dict(self.means)
        return other

    def follow(
        self, columns: tuple[str, ...], keys: Sequence[tuple[Hashable, ...]], means: Floats,
        decay: float, start: float = 0.0,
    ) -> Floats:  # fmt: skip
        """The baselines of groups `keys`, (groups,), from earlier batches; `start` without any.

        Then their means are moved towards a batch's `means`, (groups,).
        """
        if self.means and self.columns != columns:
            raise UsageError(
                f"this running mean is one over {', '.join(self.columns)} and cannot be the "
                f"baseline over {', '.join(columns)}: start a new RunningMean."
            )
        self.columns = columns
        baselines = [self.means.get(key, start) for key in keys]
        for key, mean in zip(keys, means.tolist(), strict=True):
            self.means[key] = decay * self.means.get(key, mean) + (1.0 - decay) * mean
        return np.array(baselines, np.float64)

    def state_dict(self) -> StateDict:
        """The means as plain values that JSON and torch can keep."""
        return {
            "columns": list(self.columns),
            "means": [[list(key), mean] for key, mean in self.means.items()],
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the means from `state_dict`."""
        self.columns = tuple(state["columns"])
        self.means = {tuple(key): float(mean) for key, mean in state["means"]}


ROLE = ("problem", "role")


@dataclass(frozen=True, slots=True)
class RoleStats:
    """Lemma 4.2's figures of every (problem, role), with population deviations.

    Pairs are in order of first appearance: each array is (pairs,).
    """

    problem: Sequence[Hashable]  # the distinct problems
    role: Sequence[Hashable]  # the distinct roles
    problem_code: Codes  # index of each pair's problem in `problem`
    role_code: Codes
    calls: Floats
    mu_k: Floats
    sigma_k: Floats
    mu: Floats  # mean over the problem's episodes
    sigma: Floats
    inflation: Floats  # F_k; NaN where all episodes of the problem have one return (sigma = 0)
    shift: Floats  # b_k; NaN likewise


def _role_stats(pools: GroupedTargetsCache) -> RoleStats:
    groups = pools.groups
    role, problem = pools.of(ROLE, "call").segments, pools.of(("problem",), "episode")
    first = groups.by(ROLE).first
    of_role = problem.codes[first]
    whole = problem.segments
    mu = whole.mean[of_role]
    sigma = np.sqrt(whole.squares / whole.counts)[of_role]
    sigma_k = np.sqrt(role.squares / role.counts)
    divisor = np.where(sigma > 0, sigma, np.nan)
    return RoleStats(
        problem=groups.columns.ids("problem"),
        role=groups.columns.ids("role"),
        problem_code=groups.columns.codes("problem")[first],
        role_code=groups.columns.codes("role")[first],
        calls=role.counts,
        mu_k=role.mean,
        sigma_k=sigma_k,
        mu=mu,
        sigma=sigma,
        inflation=(sigma_k**2 + (role.mean - mu) ** 2) / divisor**2,
        shift=(role.mean - mu) / divisor,
    )


@dataclass(frozen=True, slots=True)
class Advantages:
    """Result of `compute`; the arrays have one entry per row, in the order of the calls."""

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
    """Number of constant groups; groups of one are not counted."""
    singleton_groups: int
    """Number of groups with a single item, before any widening."""
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
        calls: the rows, or their columns.
        spec: the choices.
        returns: episode id -> return, for `target="episode"`; without it an episode's return is
            the reward part `team` of its calls.
        state: the means of earlier batches, for `mean="running"`; this batch moves them.
        extra: (rows,), added to the target of each row (e.g. a length penalty).
        origin: value subtracted from a reward without a baseline (`mean="none"`, a raw group of
            one, a running mean's first batch). None: the lowest outcome of the batch, for
            rewards whose 0 means nothing.

    Raises:
        UsageError: an unknown preset, an episode without a return, a reward not finite, a target
            that needs another sampling, or a running mean without its state.
    """
    spec = named_spec(spec)
    columns = calls if isinstance(calls, CallColumns) else CallColumns(calls, columns_for(spec))
    groups = Groups(columns)
    targets = targets_of(groups, spec, returns)
    earned = own_values(groups, spec, targets)
    start = lowest_outcome(groups, spec, earned) if origin is None else origin
    if extra is not None:
        targets, earned = targets + extra, earned + extra
    pools = scaled = GroupedTargetsCache(groups, targets)
    values, judge = earned, None
    single, alone = (np.zeros(len(earned), np.bool_) for _ in range(2))
    if spec.mean == "running":
        values = _less_running(earned, pools, spec, state, start)
    elif spec.mean == "none":
        values = earned - start
    else:
        judge, single = _pool(pools, spec, spec.mean_group, spec.mean_weight)
        alone = judge.rows(judge.segments.counts < 2)
        values = _less_baseline(earned, targets, judge, spec)
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
        values = np.where(alone, earned - start if spec.singleton == "raw" else 0.0, values)
    constant = np.zeros(len(earned), np.bool_)
    if judge is not None:
        constant = judge.rows(constants(judge.segments))
    return Advantages(values, constant, single, *_counts(scaled, spec), _role_stats(pools))


def _pool(
    pools: GroupedTargetsCache, spec: AdvantageSpec, columns: tuple[str, ...], weight: Weight
) -> tuple[GroupedTargets, Bools]:
    narrow = pools.of(columns, weight)
    pool = pools.widened(columns, weight) if spec.singleton == "widen" else narrow
    return pool, narrow.rows(narrow.segments.counts < 2)


def _less_baseline(
    earned: Floats, targets: Floats, pool: GroupedTargets, spec: AdvantageSpec
) -> Floats:
    if spec.mean == "loo":
        # What a row leaves out is what it has earned: a reply that abstained in an episode that
        # was won would else be compared with fewer won episodes than one that failed.
        counted = np.where(earned < targets, np.minimum(pool.items, earned), pool.items)
        left = earned - baseline_loo(pool.codes, counted, pool.segments)
    else:
        best = spec.mean == "max"
        left = earned - (pool.segments.high if best else pool.segments.mean)[pool.codes]
    drop_rounding(left, pool.codes, pool.segments)
    return left


def _less_running(
    earned: Floats, pools: GroupedTargetsCache, spec: AdvantageSpec, state: RunningMean | None,
    start: float,
) -> Floats:  # fmt: skip
    if state is None:
        raise UsageError(
            'mean="running" remembers earlier batches: pass state=RunningMean(), the same at every '
            "batch."
        )
    pool, keys = pools.of(spec.mean_group, spec.mean_weight), pools.groups.keys(spec.mean_group)
    baselines = state.follow(spec.mean_group, keys, pool.segments.mean, spec.decay, start)
    return earned - baselines[pool.codes]


def _counts(pools: GroupedTargetsCache, spec: AdvantageSpec) -> tuple[int, int, int]:
    # groups, constant ones, groups of one item
    if spec.std != "none":
        segments: GroupStats = pools.of(spec.std_group, spec.std_weight).segments
    elif spec.mean not in ("none", "running"):
        segments = pools.of(spec.mean_group, spec.mean_weight).segments
    else:
        return 0, 0, 0
    lonely = np.count_nonzero(segments.counts < 2)
    return len(segments.counts), int(np.count_nonzero(constants(segments))), int(lonely)
