"""Calls as training rows and tensors: canonical order, roles, microbatches and masks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from flowzoo.agents.policy import Completion
from flowzoo.baselines.learner.config import LearnerConfig, RowLayout
from flowzoo.baselines.learner.loss import NonFiniteError
from flowzoo.baselines.learner.packing import Packing, grow, lay_out, sorted_rows
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError, check_choice

_FILLER = 0  # token id at padded positions: any valid id does, since nothing looks at it
_PATH = 16  # number of gathered attention keys that take about as much memory as one computed token


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Rows as tensors; T is the longest reply."""

    input_ids: Tensor
    """padded: (rows, L), L the longest prompt with its reply, fillers at the end; packed: (1, N).
    The last output token of a row is no input."""
    positions: Tensor
    """(states,): ascending positions in `input_ids.flatten()` that predict an output token."""
    sources: Tensor  # (tokens,): for every output token, row by row, its place in `positions`
    targets: Tensor  # (tokens,): those output tokens
    mask: Tensor
    """(rows, T) boolean: true where the row has an output token; `mask.sum() == tokens`."""
    behavior_logps: Tensor
    """(rows, T): log-probabilities that the sampler recorded, 0 outside the mask."""
    advantages: Tensor  # (rows,)
    packing: Packing | None = None  # layout of packed rows for attention; None: padded

    def to(self, device: torch.device) -> "Microbatch":
        """The same on `device`."""
        parts = {item.name: getattr(self, item.name) for item in fields(self)}
        return replace(self, **{k: v.to(device) for k, v in parts.items() if v is not None})


SampledTokens = Call | Completion
"""A sampled row as tensors need it: ids of its prompt and its reply, and the reply's log-probs."""


def _check_call(call: Call) -> None:
    where = f"the call of {call.agent!r} (turn {call.turn}) in episode {call.episode!r}"
    if not call.prompt_ids:
        raise UsageError(
            f"{where} has no prompt tokens: it was answered by a policy that reports none. "
            "Train on calls of a transformers or vLLM policy, or leave its policy frozen."
        )
    if len(call.logps) != len(call.output_ids):
        raise UsageError(
            f"{where} has {len(call.output_ids)} output tokens but {len(call.logps)} log-probs."
        )


def cut(lengths: Sequence[int], max_tokens: int, max_rows: int = 0) -> list[list[int]]:
    """Microbatches of rows of like length: `max_tokens` positions, `max_rows` rows (0: any)."""
    # The longest come first, so that memory runs out at once or never.
    _check_sizes(max_tokens, max_rows)
    batches: list[list[int]] = []
    for idx in sorted(range(len(lengths)), key=lambda idx: -lengths[idx]):
        room = batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= max_tokens
        if room and not (max_rows and len(batches[-1]) >= max_rows):
            batches[-1].append(idx)
        else:
            batches.append([idx])
    return batches


def cut_microbatches(
    rows: Sequence[SampledTokens], layout: RowLayout, max_tokens: int, max_rows: int = 0
) -> list[list[int]]:
    """Cut rows into microbatches of at most `max_tokens` positions; a longer row stands alone."""
    # Packed rows: a distinct prefix counts once, and so do the keys that attention gathers for it.
    check_choice("layout", layout, RowLayout)
    inputs = [_inputs(row) for row in rows]
    sizes = [len(ids) for ids in inputs]
    if layout == "padded":
        return cut(sizes, max_tokens, max_rows)
    _check_sizes(max_tokens, max_rows)
    batches: list[list[int]] = []
    size = 0
    for idx, shared in sorted_rows(inputs):
        keys = sizes[idx] // _PATH
        size += sizes[idx] - shared + keys
        if not batches or size > max_tokens or len(batches[-1]) == (max_rows or len(rows)):
            batches.append([])
            size = sizes[idx] + keys  # what it shared with the row before is computed again
        batches[-1].append(idx)
    return batches


def tensors(
    rows: Sequence[SampledTokens], advantages: Sequence[float], layout: RowLayout
) -> Microbatch:
    """Tensors of `rows`, at least one, on the CPU. Rows without output tokens are allowed."""
    check_choice("layout", layout, RowLayout)
    texts = [_inputs(row) for row in rows]
    if layout == "packed":
        tree = grow(texts)
        return _microbatch(rows, advantages, tree.ids[None], tree.paths, lay_out(tree))
    # Fillers are on the right, where causal attention cannot see them: no mask is needed.
    width = max(len(text) for text in texts)
    ids = np.full((len(rows), width), _FILLER, np.int64)
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    paths = [row * width + np.arange(len(text)) for row, text in enumerate(texts)]
    return _microbatch(rows, advantages, ids, paths, None)


def _inputs(row: SampledTokens) -> list[int]:
    # The last token predicts nothing.
    return [*row.prompt_ids, *row.output_ids[:-1]]


def _microbatch(
    rows: Sequence[SampledTokens],
    advantages: Sequence[float],
    ids: np.ndarray,
    paths: Sequence[np.ndarray],
    packing: Packing | None,
) -> Microbatch:
    # The mask comes from the sampler alone: an end-of-turn token is trained if it was sampled,
    # for any ids of pad and end tokens.
    longest = max(len(row.output_ids) for row in rows)
    mask = np.zeros((len(rows), longest), np.bool_)
    logps = np.zeros((len(rows), longest), np.float32)
    predicting: list[np.ndarray] = []
    for number, (row, path) in enumerate(zip(rows, paths, strict=True)):
        length = len(row.output_ids)
        mask[number, :length] = True
        logps[number, :length] = row.logps
        first = len(row.prompt_ids) - 1
        predicting.append(path[first : first + length])
    positions, sources = np.unique(np.concatenate(predicting), return_inverse=True)
    targets = [token for row in rows for token in row.output_ids]
    return Microbatch(
        input_ids=torch.from_numpy(ids),
        positions=torch.from_numpy(positions),
        sources=torch.from_numpy(sources),
        targets=torch.tensor(targets, dtype=torch.int64),
        mask=torch.from_numpy(mask),
        behavior_logps=torch.from_numpy(logps),
        advantages=torch.tensor(list(advantages), dtype=torch.float32),
        packing=packing,
    )


def _check_sizes(max_tokens: int, max_rows: int) -> None:
    if max_tokens < 1 or max_rows < 0:
        raise UsageError(
            f"a microbatch needs `max_tokens` >= 1 and `max_rows` >= 0, got {max_tokens} and "
            f"{max_rows}."
        )


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """A call with what the learner decided about it."""

    index: int  # position in canonical order: the row's id within an iteration
    call: Call
    advantage: float
    weight: float  # factor of the row in the loss
    kl: float  # weight of its KL term
    trained: bool  # true if the row has a part in the gradient
    computed: bool  # true if the row goes through the model


def make_rows(
    calls: Sequence[Call], advantages: Sequence[float], config: LearnerConfig
) -> list[TrainingRow]:
    """The rows in canonical order, with the rule for truncated replies applied."""
    if len(calls) != len(advantages):
        raise UsageError(
            f"one advantage per call is needed, got {len(advantages)} for {len(calls)} calls."
        )
    for call in calls:
        _check_call(call)
    _check_numbers(calls, advantages)
    pairs = sorted(zip(calls, map(float, advantages), strict=True), key=_canonical_place)
    return [_row(index, call, advantage, config) for index, (call, advantage) in enumerate(pairs)]


def _canonical_place(row: tuple[Call, float]) -> tuple[object, ...]:
    call = row[0]
    return call.problem, call.episode, call.agent, call.turn, tuple(call.output_ids)


def _row(index: int, call: Call, advantage: float, config: LearnerConfig) -> TrainingRow:
    weight, kl = _weight_of(call.role, config), config.kl_of(call.role)
    idle = left_out(call, config)
    advantage = _after_truncation(call, advantage, config)
    loss = config.loss
    # A function of the user may have a gradient where the advantage is 0.
    other = kl != 0 or loss.entropy_coef != 0 or loss.function is not None
    active = weight != 0 and (advantage != 0 or other)
    return TrainingRow(
        index=index,
        call=call,
        advantage=advantage,
        weight=weight,
        kl=kl,
        trained=active and not idle,
        computed=(active or not config.skip_idle_rows) and not idle,
    )


def left_out(call: Call, config: LearnerConfig) -> bool:
    """True if a row has no part in any term of the loss: no tokens, or cut off and masked."""
    return not call.output_ids or (call.finish == "length" and config.truncated == "mask")


def _after_truncation(call: Call, advantage: float, config: LearnerConfig) -> float:
    if call.finish == "length" and config.truncated == "penalize":
        return advantage - config.truncation_penalty
    return advantage


def learns(call: Call, advantage: float, config: LearnerConfig) -> bool:
    """True if the advantage of a row, after `_after_truncation`, has a part in the gradient."""
    weight = _weight_of(call.role, config)
    return not left_out(call, config) and weight * _after_truncation(call, advantage, config) != 0


def _weight_of(role: str, config: LearnerConfig) -> float:
    return config.role_weights.get(role, 1.0) * (config.role_lr.get(role, config.lr) / config.lr)


def _check_numbers(calls: Sequence[Call], advantages: Sequence[float]) -> None:
    bad: list[Call] = []
    reason = ""
    for call, advantage in zip(calls, advantages, strict=True):
        token = next((t for t, logp in enumerate(call.logps) if not math.isfinite(logp)), None)
        if token is not None:
            what = (
                f"the sampler recorded {call.logps[token]} as the log-prob of output token {token}"
            )
        elif not math.isfinite(advantage):
            what = f"its advantage is {advantage}"
        else:
            continue
        reason = reason or what
        bad.append(call)
    if bad:
        raise non_finite("input", bad, reason)


def non_finite(what: str, calls: Sequence[Call], reason: str = "") -> NonFiniteError:
    """An error that names the first few calls."""
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
    """The rows of each optimizer step: runs whose sizes differ by one at most, none empty."""
    steps = config.updates_per_iteration
    if steps == "by_rows":
        steps = max(1, math.ceil(len(rows) / config.rows_per_update))
    edges = [len(rows) * idx // int(steps) for idx in range(int(steps) + 1)]
    return [rows[low:high] for low, high in pairwise(edges) if high > low]


def weigh_roles(rows: Sequence[TrainingRow], config: LearnerConfig) -> Sequence[TrainingRow]:
    """The rows of an optimizer step, weighed as `role_loss` says."""
    if config.role_loss == "pooled":
        return rows
    factors = role_factors([row.call for row in rows], config)
    return [replace(row, weight=row.weight * factors[row.call.role]) for row in rows]


def role_factors(calls: Sequence[Call], config: LearnerConfig) -> dict[str, float]:
    """Factors of the rows of every role in an optimizer step, as `role_loss` says."""
    # The loss divides by the counts of all rows (or output tokens). `mean` divides by the role's
    # instead: a role weighs the same for any number of agents. `sum` adds up an episode's rows.
    by_token = config.loss.aggregation == "token-mean"
    sizes = [len(call.output_ids) if by_token else 1 for call in calls]
    factors: dict[str, float] = {}
    for role in {call.role for call in calls}:
        indices = [index for index, call in enumerate(calls) if call.role == role]
        size = sum(sizes[index] for index in indices)
        episodes = {(calls[index].problem, calls[index].episode) for index in indices}
        often = len(indices) / len(episodes) if config.role_loss == "sum" else 1.0
        plain = config.role_loss == "pooled" or not size  # without a token there is no loss
        factors[role] = 1.0 if plain else often * (sum(sizes) / size)
    return factors


def role_microbatches(
    rows: Sequence[TrainingRow], config: LearnerConfig, layout: RowLayout
) -> dict[str, list[list[TrainingRow]]]:
    """Microbatches by role, roles in alphabetical order; "" where they are cut across roles."""
    active = [row for row in rows if row.computed]
    roles = sorted({row.call.role for row in active}) if config.role_gradients else [""]
    microbatches: dict[str, list[list[TrainingRow]]] = {}
    for role in roles:
        role_rows = [row for row in active if role in ("", row.call.role)]
        calls = [row.call for row in role_rows]
        parts = cut_microbatches(calls, layout, config.microbatch_tokens, config.microbatch_rows)
        microbatches[role] = [[role_rows[idx] for idx in part] for part in parts]
    return microbatches
