"""Advantages: how much better a call did than the calls it is compared with.

An advantage is one scalar per row (a row is one `Call`), given to every sampled token of that row.
It is made of five independent choices instead of one class per paper: the target a row is judged
by, the group its baseline is taken over, the group its scale is taken over (which may differ in
columns and in weight), the kind of each statistic, and what a group of one gets. `PRESETS` spells
out every choice of every named algorithm.

Groups are found by their full key tuples, never by arithmetic on ids: two published trainers mixed
up groups that way. Statistics are taken over the rows as they came, before any filter, padding or
truncation rule.

Beside the values, `Advantages.roles` holds the figures of Dr. MAS, Lemma 4.2: how the rewards of
one role's calls on one problem (mean mu_k, deviation sigma_k) differ from those of the problem's
episodes (mu, sigma). F_k = (sigma_k^2 + (mu_k - mu)^2) / sigma^2 is the factor by which the role's
squared advantage is inflated when it is normalised by (mu, sigma); b_k = (mu_k - mu) / sigma is
the shift of its mean. Both use the population deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from flowzoo.envs.records import Call, EpisodeRecord
from flowzoo.errors import UsageError, unknown

Target = Literal["episode", "row"]
Baseline = Literal["mean", "loo", "max", "none"]
Scale = Literal["sample", "population", "none"]
Weight = Literal["episode", "call"]
Singleton = Literal["zero", "raw", "widen"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

COLUMNS: tuple[str, ...] = (
    "problem", "episode", "role", "agent", "turn", "slot", "phase", "policy", "state_hash",
)  # fmt: skip
"""Columns of `Call` that a group may be made of."""


@dataclass(frozen=True, slots=True)
class AdvantageSpec:
    """How advantages are computed: advantage = (target - baseline) / (scale + eps).

    Raises:
        UsageError: an unknown column or choice, or an empty group.
    """

    target: Target = "episode"
    """`episode`: the return of the row's episode. `row`: the row's own `reward`."""
    mean_group: tuple[str, ...] = ("problem",)
    """Columns that rows must share to have one baseline, from the widest to the narrowest."""
    mean: Baseline = "mean"
    """`loo`: mean of the others. `max`: best of the group. `none`: no baseline."""
    mean_weight: Weight = "episode"
    """What counts once. `episode`: each episode, with the mean target of its rows in the group.
    `call`: each row, so that an episode counts as often as it called."""
    std_group: tuple[str, ...] = ("problem",)
    std: Scale = "sample"
    """`sample` divides the squares by n - 1, `population` by n."""
    std_weight: Weight = "episode"
    singleton: Singleton = "zero"
    """A group of one gets: `zero`, no advantage; `raw`, its target without baseline and scale;
    `widen`, the statistics of the group without its last column (again as needed; where the first
    column alone is still a group of one: zero)."""
    eps: float = 1e-6

    def __post_init__(self) -> None:
        """Check every choice."""
        for kind, value, choices in (
            ("target", self.target, get_args(Target)),
            ("mean", self.mean, get_args(Baseline)),
            ("mean_weight", self.mean_weight, get_args(Weight)),
            ("std", self.std, get_args(Scale)),
            ("std_weight", self.std_weight, get_args(Weight)),
            ("singleton", self.singleton, get_args(Singleton)),
        ):
            if value not in choices:
                raise unknown(kind, value, choices)
        for name, columns in (("mean_group", self.mean_group), ("std_group", self.std_group)):
            if isinstance(columns, str) or not columns:
                raise UsageError(f"`{name}` must be a tuple of column names, got {columns!r}.")
            for column in columns:
                if column not in COLUMNS:
                    raise unknown(f"column in `{name}`", column, COLUMNS)


_ROLE = ("problem", "role")
_AGENT = ("problem", "agent")

PRESETS: Mapping[str, AdvantageSpec] = {
    "grpo": AdvantageSpec(),
    "grpo_call": AdvantageSpec(mean_weight="call", std_weight="call"),
    "dr_grpo": AdvantageSpec(std="none"),
    "dr_mas": AdvantageSpec(
        target="row", mean_group=_ROLE, mean_weight="call", std_group=_ROLE, std_weight="call"
    ),
    "dr_mas_mean": AdvantageSpec(target="row", mean_group=_ROLE, mean_weight="call"),
    "dr_mas_std": AdvantageSpec(target="row", std_group=_ROLE, std_weight="call"),
    "paper": AdvantageSpec(
        target="row", mean_group=_AGENT, mean_weight="call",
        std_group=_AGENT, std_weight="call", singleton="raw",
    ),
    "rloo": AdvantageSpec(mean="loo", std="none", singleton="raw"),
    "reinforce_max": AdvantageSpec(mean="max", std="none", singleton="raw"),
    "reinforce": AdvantageSpec(mean="none", std="none", singleton="raw"),
}  # fmt: skip
"""Named choices. `paper` is the code of arXiv 2605.24202 on mathematics, where every agent is a
group of its own (three voters are three groups, and an agent's turns are mixed)."""


@dataclass(frozen=True, slots=True)
class RoleStat:
    """Lemma 4.2's figures for one role on one problem (population deviations)."""

    problem: str
    role: str
    calls: int
    mu_k: float
    sigma_k: float
    mu: float
    """Mean over the problem's episodes."""
    sigma: float
    inflation: float
    """F_k; NaN where all episodes of the problem have one return (sigma = 0)."""
    shift: float
    """b_k; NaN likewise."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """What `compute` returns; the arrays have one entry per row, in the order of the calls."""

    values: Floats
    zero_variance: Bools
    """The row's group (of the scale, or of the baseline without a scale) is constant."""
    singleton: Bools
    """The row's group (of the baseline or of the scale) holds a single item."""
    groups: int
    """Number of groups of the scale (of the baseline without one; 0 without both)."""
    zero_variance_groups: int
    """How many of them are constant; groups of one are not counted here."""
    singleton_groups: int
    """How many of them hold a single item, before any widening."""
    roles: tuple[RoleStat, ...]


class _Pool(NamedTuple):
    """Statistics of the groups of one tuple of columns, spread over the rows: each (rows,)."""

    size: Floats
    mean: Floats
    squares: Floats
    """Sum of squared deviations from the mean."""
    low: Floats
    high: Floats
    own: Floats
    """Target of the item that the row belongs to."""


def episode_returns(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Episode id -> score, as `compute` takes it."""
    return {episode.episode: episode.score for episode in episodes}


def encode(calls: Sequence[Call], columns: Sequence[str]) -> tuple[Ints, list[tuple[object, ...]]]:
    """Number the groups of equal `columns` by first appearance: codes (rows,) and the keys."""
    numbers: dict[tuple[object, ...], int] = {}
    codes = np.empty(len(calls), np.int64)
    for idx, call in enumerate(calls):
        key = tuple(getattr(call, column) for column in columns)
        codes[idx] = numbers.setdefault(key, len(numbers))
    return codes, list(numbers)


def targets_of(
    calls: Sequence[Call], target: Target, returns: Mapping[str, float] | None = None
) -> Floats:
    """The scalar each row is judged by, (rows,).

    Raises:
        UsageError: an episode has no return, or a value is not finite.
    """
    if target == "row":
        values = np.array([call.reward for call in calls], np.float64)
    elif returns is None:
        values = _team_returns(calls)
    else:
        lost = sorted({call.episode for call in calls} - set(returns))
        if lost:
            raise UsageError(f"`returns` has no entry for the episodes {lost[:5]} of the calls.")
        values = np.array([returns[call.episode] for call in calls], np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        call = calls[int(bad[0])]
        raise UsageError(
            f"the {target} reward of problem {call.problem!r}, episode {call.episode!r}, agent "
            f"{call.agent!r} is {values[bad[0]]}: rewards must be finite."
        )
    return values


def earned(calls: Sequence[Call], targets: Floats) -> Floats:
    """What each row has earned of its episode's return, (rows,): 0 for a reply that abstained.

    The strict preset writes that into the reward part `team`. Baseline and scale are still those of
    the episodes; only the row's own value differs, so an unreadable reply is never paid for its
    team's success.
    """
    return np.array(
        [
            0.0 if not call.strict and call.parts.get("team") == 0.0 else target
            for call, target in zip(calls, targets, strict=True)
        ],
        np.float64,
    )


def compute(
    calls: Sequence[Call],
    spec: AdvantageSpec | str,
    returns: Mapping[str, float] | None = None,
) -> Advantages:
    """Advantages of `calls` under `spec` (or the preset of that name).

    `returns` maps episode ids to returns for `target="episode"`; without it an episode's return is
    the reward part `team` of its calls.

    Raises:
        UsageError: an unknown preset, an episode without a return, or a reward not finite.
    """
    if isinstance(spec, str):
        if spec not in PRESETS:
            raise unknown("advantage preset", spec, PRESETS)
        spec = PRESETS[spec]
    targets = targets_of(calls, spec.target, returns)
    own = earned(calls, targets) if spec.target == "episode" else targets
    values = own.copy()
    constant, single, alone = (np.zeros(len(calls), np.bool_) for _ in range(3))
    if spec.mean != "none":
        pool, lone = _resolve(calls, targets, spec.mean_group, spec.mean_weight, spec.singleton)
        single, alone = lone, pool.size < 2
        constant = (pool.low == pool.high) & ~alone
        values -= _baseline(pool, spec.mean)
    if spec.std != "none":
        pool, lone = _resolve(calls, targets, spec.std_group, spec.std_weight, spec.singleton)
        single, alone = single | lone, alone | (pool.size < 2)
        constant = (pool.low == pool.high) & (pool.size > 1)
        values = np.where(constant, 0.0, values / (_deviation(pool, spec.std) + spec.eps))
    # A group of one has neither baseline nor deviation: what it gets is a choice, not arithmetic.
    values = np.where(alone, own if spec.singleton == "raw" else 0.0, values)
    return Advantages(
        values=values,
        zero_variance=constant,
        singleton=single,
        **_group_counts(calls, targets, spec),
        roles=role_stats(calls, targets),
    )


def role_stats(calls: Sequence[Call], targets: Floats) -> tuple[RoleStat, ...]:
    """Lemma 4.2's figures for each (problem, role), in order of first appearance."""
    codes, keys = encode(calls, _ROLE)
    first = np.unique(codes, return_index=True)[1]
    role = _pool(calls, targets, _ROLE, "call")
    problem = _pool(calls, targets, ("problem",), "episode")
    stats: list[RoleStat] = []
    for key, idx in zip(keys, first, strict=True):
        count, mu_k, mu = role.size[idx], float(role.mean[idx]), float(problem.mean[idx])
        sigma_k = float(np.sqrt(role.squares[idx] / count))
        sigma = float(np.sqrt(problem.squares[idx] / problem.size[idx]))
        known = sigma > 0
        inflation = (sigma_k**2 + (mu_k - mu) ** 2) / sigma**2 if known else float("nan")
        shift = (mu_k - mu) / sigma if known else float("nan")
        stats.append(
            RoleStat(str(key[0]), str(key[1]), int(count), mu_k, sigma_k, mu, sigma,
                     inflation, shift)
        )  # fmt: skip
    return tuple(stats)


def _team_returns(calls: Sequence[Call]) -> Floats:
    """The `team` part of every row, which all rows of an episode must share."""
    seen: dict[tuple[str, str], float] = {}
    for call in calls:
        if "team" not in call.parts:
            raise UsageError(
                f"a call of {call.agent!r} in episode {call.episode!r} has no reward part `team`: "
                "pass `returns` (episode id -> return) to `compute`."
            )
        team = call.parts["team"]
        if seen.setdefault((call.problem, call.episode), team) != team:
            raise UsageError(
                f"the calls of episode {call.episode!r} of problem {call.problem!r} have different "
                "reward parts `team`: episode ids must be unique within a batch."
            )
    return np.array([call.parts["team"] for call in calls], np.float64)


def _segments(values: Floats, codes: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """Count, mean, minimum and maximum of `values` per code, each (codes,)."""
    size = int(codes.max(initial=-1)) + 1
    count = np.bincount(codes, minlength=size).astype(np.float64)
    low, high = np.full(size, np.inf), np.full(size, -np.inf)
    np.minimum.at(low, codes, values)
    np.maximum.at(high, codes, values)
    # The rounded mean of equal values need not equal them (0.1 three times): take the value.
    mean = np.where(low == high, low, np.bincount(codes, values, size) / count)
    return count, mean, low, high


def _pool(calls: Sequence[Call], targets: Floats, columns: Sequence[str], weight: Weight) -> _Pool:
    """Statistics of the groups of `columns`, spread over the rows."""
    codes, _ = encode(calls, columns)
    if weight == "call":
        items, item_values, item_codes = np.arange(len(calls)), targets, codes
    else:
        items, keys = encode(calls, (*columns, "problem", "episode"))
        item_values = _segments(targets, items)[1]
        item_codes = np.empty(len(keys), np.int64)
        item_codes[items] = codes
    count, mean, low, high = _segments(item_values, item_codes)
    deviations = item_values - mean[item_codes]
    squares = np.bincount(item_codes, deviations**2, len(count)).astype(np.float64)
    return _Pool(
        size=count[codes], mean=mean[codes], squares=squares[codes],
        low=low[codes], high=high[codes], own=item_values[items],
    )  # fmt: skip


def _resolve(
    calls: Sequence[Call],
    targets: Floats,
    columns: tuple[str, ...],
    weight: Weight,
    singleton: Singleton,
) -> tuple[_Pool, Bools]:
    """The pool each row uses (widened if asked), and which rows were alone to begin with."""
    pool = _pool(calls, targets, columns, weight)
    lone = pool.size < 2
    if singleton == "widen":
        for width in range(len(columns) - 1, 0, -1):
            wider = _pool(calls, targets, columns[:width], weight)
            alone = pool.size < 2
            pool = _Pool(*(np.where(alone, w, p) for w, p in zip(wider, pool, strict=True)))
    return pool, lone


def _baseline(pool: _Pool, kind: Baseline) -> Floats:
    """The baseline of each row; a group of one has its own value."""
    if kind == "max":
        return pool.high
    if kind == "mean":
        return pool.mean
    others = (pool.size * pool.mean - pool.own) / np.maximum(pool.size - 1, 1)
    return np.where(pool.low == pool.high, pool.low, others)


def _deviation(pool: _Pool, kind: Scale) -> Floats:
    """The standard deviation of each row's group."""
    freedom = pool.size - 1 if kind == "sample" else pool.size
    return np.sqrt(pool.squares / np.maximum(freedom, 1))


def _group_counts(calls: Sequence[Call], targets: Floats, spec: AdvantageSpec) -> dict[str, int]:
    """How many groups there are, and how many are constant or of one item."""
    if spec.std != "none":
        columns, weight = spec.std_group, spec.std_weight
    elif spec.mean != "none":
        columns, weight = spec.mean_group, spec.mean_weight
    else:
        return {"groups": 0, "zero_variance_groups": 0, "singleton_groups": 0}
    codes, keys = encode(calls, columns)
    pool = _pool(calls, targets, columns, weight)
    constant = (pool.low == pool.high) & (pool.size > 1)
    return {
        "groups": len(keys),
        "zero_variance_groups": int(np.unique(codes[constant]).size),
        "singleton_groups": int(np.unique(codes[pool.size < 2]).size),
    }
