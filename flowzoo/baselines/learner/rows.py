"""Calls as training rows: canonical order, what each is for, and how they are cut into steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flowzoo.baselines.learner import batch
from flowzoo.baselines.learner.batch import canonical_order, check_call
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.literals import RowLayout
from flowzoo.baselines.learner.loss import NonFiniteError
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A call with what the learner decided about it."""

    place: int
    """Position in canonical order: the row's name within an iteration."""
    call: Call
    advantage: float
    weight: float
    """Factor of the row in the loss."""
    kl: float
    """Weight of its KL term."""
    trained: bool
    """It has a part in the gradient."""
    computed: bool
    """It goes through the model."""


def make_rows(
    calls: Sequence[Call], advantages: Sequence[float], config: LearnerConfig
) -> list[TrainingRow]:
    """The rows in canonical order, with the rule for truncated replies applied.

    Raises:
        UsageError: a row cannot be trained on, or the lengths differ.
        NonFiniteError: an advantage or a recorded log-prob is not finite, trained or not.
    """
    if len(calls) != len(advantages):
        raise UsageError(
            f"one advantage per call is needed, got {len(advantages)} for {len(calls)} calls."
        )
    for call in calls:
        check_call(call)
    check_numbers(calls, advantages)
    return [
        _row(place, calls[idx], float(advantages[idx]), config)
        for place, idx in enumerate(canonical_order(calls))
    ]


def _row(place: int, call: Call, advantage: float, config: LearnerConfig) -> TrainingRow:
    weight, kl = weight_of(call.role, config), config.kl_of(call.role)
    idle = left_out(call, config)
    advantage = after_truncation(call, advantage, config)
    wanted = weight != 0 and (advantage != 0 or kl != 0 or config.loss.entropy_coef != 0)
    return TrainingRow(
        place=place,
        call=call,
        advantage=advantage,
        weight=weight,
        kl=kl,
        trained=wanted and not idle,
        computed=(wanted or not config.skip_idle_rows) and not idle,
    )


def left_out(call: Call, config: LearnerConfig) -> bool:
    """Whether a row has no part in any term of the loss: no tokens, or cut off and masked."""
    return not call.output_ids or (call.finish == "length" and config.truncated == "mask")


def after_truncation(call: Call, advantage: float, config: LearnerConfig) -> float:
    """The advantage of a row after the rule for truncated replies."""
    if call.finish == "length" and config.truncated == "penalize":
        return advantage - config.truncation_penalty
    return advantage


def learns(call: Call, advantage: float, config: LearnerConfig) -> bool:
    """Whether the advantage of a row, after that rule, has a part in the gradient."""
    weight = weight_of(call.role, config)
    return not left_out(call, config) and weight * after_truncation(call, advantage, config) != 0


def weight_of(role: str, config: LearnerConfig) -> float:
    """Factor of a role's rows in the loss by the settings alone, whatever rows there are."""
    return config.role_weights.get(role, 1.0) * (config.role_lr.get(role, config.lr) / config.lr)


def check_numbers(calls: Sequence[Call], advantages: Sequence[float]) -> None:
    """Raise `NonFiniteError` with the calls that carry a number that is not finite."""
    bad: list[int] = []
    reason = ""
    for idx, (call, advantage) in enumerate(zip(calls, advantages, strict=True)):
        token = next((t for t, logp in enumerate(call.logps) if not math.isfinite(logp)), None)
        if token is None and math.isfinite(advantage):
            continue
        what = (
            f"its advantage is {advantage}"
            if token is None
            else f"the sampler recorded {call.logps[token]} as the log-prob of output token {token}"
        )
        reason = reason or what
        bad.append(idx)
    if bad:
        raise non_finite("input", [calls[idx] for idx in bad], reason)


def non_finite(what: str, calls: Sequence[Call], reason: str = "") -> NonFiniteError:
    """An error that names the first few calls.

    Args:
        what: is not finite: the loss, the gradient or the input.
        calls: the rows to blame, at least one.
        reason: more about the first of them.
    """
    first = calls[0]
    names = [f"{c.problem}/{c.episode}/{c.agent}/{c.turn}" for c in calls[:5]]
    why = f" ({reason})" if reason else ""
    others = f" Others: {', '.join(names[1:])}." if names[1:] else ""
    return NonFiniteError(
        f"the {what} of {len(calls)} rows of policy {first.policy!r} is not finite; the first is "
        f"role {first.role!r}, row {names[0]} (problem/episode/agent/turn){why}.{others} "
        "Training has stopped before the step; the rows are in `.calls`.",
        range(len(calls)),
        calls,
    )


def split(rows: Sequence[TrainingRow], config: LearnerConfig) -> list[Sequence[TrainingRow]]:
    """The rows of each optimiser step: runs whose sizes differ by one at most, none empty."""
    steps = config.updates_per_iteration
    if steps == "by_rows":
        steps = max(1, math.ceil(len(rows) / config.rows_per_update))
    edges = [len(rows) * idx // int(steps) for idx in range(int(steps) + 1)]
    return [rows[low:high] for low, high in pairwise(edges) if high > low]


def weigh_roles(rows: Sequence[TrainingRow], config: LearnerConfig) -> Sequence[TrainingRow]:
    """The rows of an optimiser step, weighed as `role_loss` says."""
    if config.role_loss == "pooled":
        return rows
    factors = role_factors([row.call for row in rows], config)
    return [replace(row, weight=row.weight * factors[row.call.role]) for row in rows]


def role_factors(calls: Sequence[Call], config: LearnerConfig) -> dict[str, float]:
    """What the rows of every role are multiplied by in an optimiser step on `calls`.

    The loss is normalised by the counts of all rows, n rows or, under token-mean, n output tokens;
    n_r are those of the role. Rows that are not trained on count as they do without.

    * `pooled`: 1. Every row, or token, weighs the same, so a role weighs as it is large.
    * `mean`: n / n_r. The loss is the sum over roles of the aggregation of the role's own rows: a
      role weighs the same whoever shares its policy, and however many agents it has.
    * `sum`: the same times R_r / E_r, the rows of the role over the episodes in which it was
      called. Under an aggregation that averages over rows, the rows of an episode are added up and
      the mean is taken over episodes.
    """
    by_token = config.loss.aggregation == "token-mean"
    sizes = [len(call.output_ids) if by_token else 1 for call in calls]
    found: dict[str, float] = {}
    for role in {call.role for call in calls}:
        mine = [place for place, call in enumerate(calls) if call.role == role]
        own = sum(sizes[place] for place in mine)
        episodes = {(calls[place].problem, calls[place].episode) for place in mine}
        often = len(mine) / len(episodes) if config.role_loss == "sum" else 1.0
        plain = config.role_loss == "pooled" or not own  # without a token there is no loss
        found[role] = 1.0 if plain else often * (sum(sizes) / own)
    return found


def micro_batches(
    rows: Sequence[TrainingRow], config: LearnerConfig, layout: RowLayout
) -> dict[str, list[list[TrainingRow]]]:
    """The rows that go through the model, as micro-batches by role, roles in alphabetical order.

    Without `role_gradients` they are cut across roles, and stand under the name "".
    """
    active = [row for row in rows if row.computed]
    roles = sorted({row.call.role for row in active}) if config.role_gradients else [""]
    found: dict[str, list[list[TrainingRow]]] = {}
    for role in roles:
        mine = [row for row in active if role in ("", row.call.role)]
        parts = batch.micro_batches(
            [row.call for row in mine],
            layout,
            config.microbatch_tokens,
            config.microbatch_rows,
        )
        found[role] = [[mine[idx] for idx in part] for part in parts]
    return found
