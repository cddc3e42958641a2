"""The rows of metrics.jsonl: stable names for what episodes and groups were like."""

import math
from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np
from scipy.special import stdtrit

from flowzoo.agents.evaluation.intervals import interval
from flowzoo.agents.evaluation.summary import (
    attempt_values,
    attempts_of,
    mean,
    pass_at,
    pass_sizes,
    problem_scores,
    problem_values,
    role_pay,
    solve_shares,
    summarize,
)
from flowzoo.aliases import MetricRow
from flowzoo.baselines.advantages.compute import Advantages
from flowzoo.baselines.diagnostics.pay import PAY_OF, pay_changes
from flowzoo.baselines.diagnostics.watch import BY_PROBLEM
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.stats import paired_gain
from flowzoo.envs import Call, EpisodeRecord
from flowzoo.errors import UsageError

_OF_ROLE = (
    "calls", "reward", "reward_std", "role_score", "strict", "lenient", "tokens", "tokens_p95",
    "truncated", "shortened",
)  # fmt: skip
"""Values of `role_summary` that become metrics, as NAME/ROLE."""

_SPIKE_EARLIEST = 5
"""Least number of earlier norms for a median."""
_SPIKE_FLOOR = 0.05
"""Share of the largest earlier norms below which a norm is ignored."""
_SPIKE_LEVEL = 2.5e-4
"""Chance of a spike at one step if nothing happened: 2.5 % over 100 steps."""
_MAD_EFFICIENCY = 0.37
"""Efficiency of the median absolute deviation of n values, as a share of n."""


def version_metrics(
    rows: Sequence[Call], sampled: Mapping[str, int], now: Mapping[str, int], config: TrainConfig
) -> MetricRow:
    """Version of the weights that `sampled` the rows of a batch, and optimizer steps since then."""
    row: MetricRow = {f"version/{name}": steps for name, steps in sampled.items()}
    if config.max_staleness:
        row |= {f"staleness/{name}": steps - sampled[name] for name, steps in now.items()}
    for name, steps in now.items() if config.updates_in_flight else ():
        versions = [call.version for call in rows if call.policy == name]
        if ages := [steps - version for version in versions if version is not None]:
            row[f"staleness_mean/{name}"] = mean(ages)
    return row


def role_metrics(records: Sequence[EpisodeRecord], prefix: str = "") -> MetricRow:
    """Metrics of episodes by stable name: `reward/mean`, `role_score/generator`, `tokens/mean` …"""
    total = summarize(records)
    # Per episode; `calls/ROLE` times `tokens/ROLE` is the role's number of sampled tokens.
    row: MetricRow = {"reward/mean": total["accuracy"], "calls/mean": total["calls"]}
    tokens = {"tokens/mean": total["tokens"], "tokens/path": total["path_tokens"]}
    row |= {name: value for name, value in tokens.items() if value is not None}
    row |= {
        f"{name}/{role}": value
        for role, values in total["roles"].items()
        for name in _OF_ROLE
        # None without a role score or counted tokens: no metric
        if (value := values[name]) is not None and not math.isnan(value)
    }
    row |= {f"fact/{name}": value for name, value in total["facts"].items()}
    for name, share in total["shares"].items():
        row |= {f"share/{name}": share["share"], f"share_of/{name}": share["of"]}
    row |= {f"judge/{name}": value for name, value in total["judge"].items()}
    row |= {f"pay/{role}": value for role, value in total.get("pay", {}).items()}
    if total["samples"] > 1 and "pay" not in total:  # pay is never right or wrong
        attempts = ("avg@", "pass@")
        row |= {name: value for name, value in total.items() if name.startswith(attempts)}
        row |= {f"group/{name}": value for name, value in solve_shares(records).items()}
    return {f"{prefix}{name}": value for name, value in row.items()}


def evaluation_metrics(records: Sequence[EpisodeRecord], names: Sequence[str] = ()) -> MetricRow:
    """`role_metrics` after `eval/`, and `eval/scores`, the mean score of every problem.

    `eval/of_problem/` has what is watched of every problem, see `problem_values`.
    `eval/pay_of/ROLE` is the pay of a role on every problem, where scores are pay. `names` are the
    ids of all problems, if the verdicts on some are unknown; see `problem_scores`.
    """
    row = role_metrics(records, "eval/") | {"eval/scores": problem_scores(records, names)}
    pay = role_pay(records)
    row |= {f"{PAY_OF}{role}": values for role, values in pay.items()}
    values = {} if pay else problem_values(records, names)
    row |= {f"{BY_PROBLEM}{name}": by_problem for name, by_problem in values.items()}
    groups = attempts_of(records)
    if len(names) > len(groups):
        row["eval/reward/unknown"] = len(names) - len(groups)
    if pay or min((len(group) for group in groups.values()), default=0) < 2:
        return row
    counts = {name: sum(x.score >= 1.0 for x in group) for name, group in groups.items()}
    others = round(mean(list(counts.values())))
    right = [counts.get(name, others) for name in names or counts]
    # Intervals over problems, whose episodes are not independent of each other.
    for name, values in attempt_values(records).items():
        low, high = interval(np.array(values))
        if math.isfinite(low):
            row[f"eval/{name}_low"], row[f"eval/{name}_high"] = low, high
    return row | {"eval/right": right}


def of_set(row: MetricRow, name: str) -> MetricRow:
    """Name the metrics of an evaluation after its set: `eval_sets/NAME/reward/mean`."""
    return {key.replace("eval/", f"eval_sets/{name}/", 1): value for key, value in row.items()}


def set_evaluations(rows: Sequence[MetricRow]) -> dict[str, list[MetricRow]]:
    """Evaluations by evaluation set, with the names of metrics that held-out problems have."""
    evaluations: dict[str, list[MetricRow]] = {}
    for row in rows:
        named: dict[str, MetricRow] = {}
        for key, value in row.items():
            if key.startswith("eval_sets/"):
                _, name, metric = key.split("/", 2)
                named.setdefault(name, {"step": row["step"]})[f"eval/{metric}"] = value
        for name, metrics in named.items():
            evaluations.setdefault(name, []).append(metrics)
    return evaluations


def best_row(evaluations: Sequence[MetricRow]) -> MetricRow:
    """The best evaluation, the earliest of equals."""
    return max(evaluations, key=lambda row: row["eval/reward/mean"])


def progress(evaluations: Sequence[MetricRow], samples: int) -> MetricRow:
    """First, best and last evaluation of a run, and the paired gain of the last over the first."""
    first, last = evaluations[0], evaluations[-1]
    best = best_row(evaluations)
    return {
        "steps": last["step"],
        "accuracy_before": first["eval/reward/mean"],
        "accuracy_after": last["eval/reward/mean"],
        "accuracy_best": best["eval/reward/mean"],
        "best_step": best["step"],
        "gain": paired_gain(first["eval/scores"], last["eval/scores"])._asdict(),
        "attempts": attempt_gains(first, last, samples),
        **pay_summary(first, last),
    }


def pay_summary(first: MetricRow, last: MetricRow) -> dict[str, dict[str, MetricRow]]:
    """`pay` of every role at two evaluations, and its paired gain; empty without pay."""
    pay = {
        change.role: {
            "before": list(change.before),
            "after": list(change.after),
            "gain": change.gain and change.gain._asdict(),
        }
        for change in pay_changes(first, last)
    }
    return {"pay": pay} if pay else {}


def attempt_gains(before: MetricRow, after: MetricRow, samples: int) -> dict[str, MetricRow]:
    """Gains in avg@k and pass@k between two evaluations; empty with one episode of a problem."""
    if samples < 2 or "eval/right" not in before:
        return {}
    pairs = {f"avg@{samples}": (before["eval/scores"], after["eval/scores"])}
    for k in pass_sizes(samples):
        first, last = (
            [pass_at(samples, right, k) for right in row["eval/right"]] for row in (before, after)
        )
        pairs[f"pass@{k}"] = (first, last)

    def values(row: MetricRow, name: str) -> list[float | None]:
        return [row.get(f"eval/{name}{end}") for end in ("", "_low", "_high")]

    return {
        name: {
            "before": values(before, name),
            "after": values(after, name),
            "gain": paired_gain(*ends)._asdict(),
        }
        for name, ends in pairs.items()
    }


def advantage_metrics(advantages: Advantages, rows: Sequence[Call]) -> MetricRow:
    """Group statistics, and Dr. MAS's inflation and shift per role (means over problems)."""
    if len(rows) != len(advantages.values):
        raise UsageError(
            f"`rows` must be the calls that the advantages were computed of: got {len(rows)} calls "
            f"and {len(advantages.values)} advantages"
        )
    row: MetricRow = {
        "group/count": advantages.groups,
        "group/zero_variance": advantages.zero_variance_groups,
        "group/singleton": advantages.singleton_groups,
    }
    stats = advantages.roles
    for code, role in enumerate(stats.role):
        of_role = stats.role_code == code
        row[f"mu_k/{role}"] = float(stats.mu_k[of_role].mean())
        row[f"sigma_k/{role}"] = float(stats.sigma_k[of_role].mean())
        varied = of_role & (stats.sigma > 0)
        if np.any(varied):
            row[f"inflation/{role}"] = float(stats.inflation[varied].mean())
            row[f"shift/{role}"] = float(stats.shift[varied].mean())
    roles = np.array([call.role for call in rows], dtype=object)
    for role in sorted(set(roles)):
        of_role = roles == role
        row[f"group/zero_variance/{role}"] = float(advantages.zero_variance[of_role].mean())
        row[f"group/singleton/{role}"] = float(advantages.singleton[of_role].mean())
    return row


def spike(norm: float, earlier: Sequence[float], factor: float = 5.0, window: int = 50) -> bool:
    """True if a gradient norm is far above the `earlier` ones, oldest first.

    A spike is above `factor` times their median and beyond their spread. Logarithms of norms are
    assumed normal with a deviation of 1.4826 times the median absolute one (Hampel, J. Am. Stat.
    Assoc. 69 (1974) 383), and a spike lies above the prediction interval of the next norm, by
    Student's t. The median is taken of the last `window` norms above a floor.
    """
    finite = [value for value in earlier if math.isfinite(value)]
    if len(finite) < _SPIKE_EARLIEST:
        return False
    # A policy that solves nearly all of its problems has norms near 0, compared with which any
    # other would be a spike.
    largest = sorted(finite)[-max(_SPIKE_EARLIEST, len(finite) // 10) :]
    floor = _SPIKE_FLOOR * median(largest)
    usual = [value for value in finite if value > 0 and value >= floor][-window:]
    if len(usual) < _SPIKE_EARLIEST or norm <= factor * median(usual):
        return False
    # With small batches norms range over a decade, so that five medians are common.
    logs = [math.log(value) for value in usual]
    middle = median(logs)
    spread = 1.4826 * median(abs(value - middle) for value in logs)
    quantile = stdtrit(max(1.0, _MAD_EFFICIENCY * len(logs)), 1 - _SPIKE_LEVEL)
    return math.log(norm) - middle > quantile * spread * math.sqrt(1 + 1 / len(logs))
