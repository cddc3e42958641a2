"""Checks that an engine has the learner's weights: both must give the same log-probs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from flowzoo.agents import Request
from flowzoo.agents.vllm.backend import CHANGED_WITHIN_S
from flowzoo.aliases import MetricRow
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs import Message, Problem
from flowzoo.errors import FlowzooError

if TYPE_CHECKING:
    from flowzoo.agents.vllm.policy import VLLMPolicy

USUAL_TOLERANCE = {True: 1e-3, False: 0.15}
"""Nats, for engines and learners in float32 and for others: between bfloat16 and float32 a model of
135 million weights differs by up to 0.075 in the mean."""


class SyncError(FlowzooError, RuntimeError):
    """An engine does not have the learner's weights."""


class LogprobGapError(FlowzooError, RuntimeError):
    """The sampler's log-probs are further from the learner's than the run allows."""


class LogprobGap(NamedTuple):
    """Differences |engine - learner| of log-probs, in nats, over `tokens` tokens."""

    largest: float
    mean: float
    tokens: int

    @classmethod
    def of(cls, gaps: Tensor) -> LogprobGap:
        """Gap of the differences of single tokens, (tokens,)."""
        return cls(float(gaps.max()), float(gaps.mean()), gaps.numel())


def row_gaps(row: MetricRow, policies: Iterable[str]) -> dict[str, LogprobGap]:
    """Differences of trained rows before the first optimizer step, by policy."""
    return {
        name: LogprobGap(
            row[f"learn/logp_gap_max/{name}"],
            row[f"learn/logp_gap_mean/{name}"],
            int(row[f"learn/tokens_trained/{name}"]),
        )
        for name in policies
        if f"learn/logp_gap_mean/{name}" in row
    }


def check(
    proof: LogprobGap, engine: str, *, exact: bool, tolerance: float, tokens: str = "probe tokens"
) -> None:
    """Raise `SyncError` unless the differences are within `tolerance` (0: `USUAL_TOLERANCE`)."""
    # Rounding to fewer digits changes single log-probs by much, so only engines that are `exact`
    # are judged by the largest difference, others by the mean.
    gap = proof.largest if exact else proof.mean
    tolerance = tolerance or USUAL_TOLERANCE[exact]
    if not gap <= tolerance:  # a NaN does not pass either
        raise SyncError(
            f"{engine} does not have the learner's weights: after the "
            f"sync their log-probs of {proof.tokens} {tokens} differ by up to "
            f"{proof.largest:.2g} ({proof.mean:.2g} in the mean), and {tolerance:g} "
            f"{'at most' if exact else 'in the mean'} is allowed (sync_tolerance). Nothing that "
            "such an engine sampled is kept; the last checkpoint is good."
        )


def check_bound(gaps: Mapping[str, LogprobGap], step: int, config: TrainConfig) -> None:
    """Raise `LogprobGapError` if the rows of a policy differ by more than `max_logp_gap`."""
    # The run ends and does not go on in another number format: its settings describe all its rows.
    bound = config.max_logp_gap
    for policy, gap in gaps.items():
        if bound and not gap.mean <= bound:
            raise LogprobGapError(
                f"step {step}: sampler and learner differ by {gap.mean:.2g} nats a token in the "
                f"mean of {gap.tokens} trained tokens of policy {policy!r} (learn/logp_gap_mean), "
                f"and `max_logp_gap` allows {bound:g}: {_remedies(config)}continue from the last "
                "checkpoint with a larger `max_logp_gap`"
            )


def _remedies(config: TrainConfig) -> str:
    remedies: list[str] = []
    if config.engine_dtype != "float32":
        remedies.append(f"engine_dtype=float32 in place of {config.engine_dtype}")
    if config.max_staleness:
        remedies.append(f"max_staleness below {config.max_staleness}")
    if not config.recomputes:
        remedies.append("old_logp=recomputed, which corrects for the difference")
    return f"in a new run (`out`) set {' or '.join(remedies)}, or " if remedies else ""


def check_layers(differing: Sequence[str], policy: str, dtype: str) -> None:
    """Raise `SyncError` if layers that sample in `dtype` do not hold the learner's weights."""
    if differing:
        raise SyncError(
            f"the {dtype} copy that policy {policy!r} samples with does not have the learner's "
            f"weights: {len(differing)} layers differ by more than rounding, {differing[0]} first. "
            "Nothing that it sampled is kept; the last checkpoint is good."
        )


def check_coarseness(gap: LogprobGap, policy: str, tolerance: float) -> None:
    """Raise `SyncError` if int8 moves log-probs by more than `tolerance` in the mean."""
    tolerance = tolerance or USUAL_TOLERANCE[False]
    if not gap.mean <= tolerance:
        raise SyncError(
            f"int8 is too coarse for policy {policy!r}: log-probs of {gap.tokens} tokens trained "
            f"on differ by {gap.mean:.2g} from the learner's in the mean, and {tolerance:g} is "
            "allowed (sync_tolerance). Use --engine-dtype bfloat16."
        )


PROBES = 4  # prompts asked, each of them twice: the second answer may use the first one's cache
_TOKENS = 12
_CHARACTERS = 300


def probe_messages(problems: Sequence[Problem]) -> list[list[Message]]:
    """`PROBES` chats of a few hundred characters made of the texts of `problems`."""
    texts = [problem.text for problem in problems]
    chats: list[list[Message]] = []
    for start in range(PROBES):
        content = ""
        while len(content) < _CHARACTERS:
            content += f"{texts[(start + len(content)) % len(texts)]}\n"
        chats.append([{"role": "user", "content": f"{start}: {content}"}])
    return chats


def measure(
    policy: VLLMPolicy, learner: Learner, probes: Sequence[Sequence[Message]]
) -> LogprobGap:
    """Sample the probes with `policy` and compare its log-probs with the learner's."""
    # The prompts fill blocks of the prefix cache and are the same every time, so a cache that
    # outlived its weights is used, and noticed.
    requests = [
        Request(("probe", number, again), policy.name, policy.name, chat, max_tokens=_TOKENS)
        for again in range(2)
        for number, chat in enumerate(probes)
    ]
    return LogprobGap.of(learner.gaps(policy.answer(requests, CHANGED_WITHIN_S)))
