"""The proof that an engine samples from the weights that the learner has.

After every sync the engine answers a few fixed prompts, and the learner computes the log-probs of
what it sampled. A sync that was lost, half done or undone by a stale prompt cache shows as a
difference. The prompts are long enough to fill blocks of the prefix cache and are the same every
time, so a cache that outlived its weights is used, and seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowzoo.agents import Request
from flowzoo.agents.vllm.policy import VLLMPolicy
from flowzoo.baselines.learner.update import Learner
from flowzoo.envs import Message, Problem
from flowzoo.errors import FlowzooError

PROBES = 4
"""Prompts asked, each of them twice: the second answer may use the first one's cache."""
USUAL_TOLERANCE = {True: 1e-3, False: 0.05}
"""Nats, for engines and learners in float32 and for others."""
_TOKENS = 12
_CHARACTERS = 300


class SyncError(FlowzooError, RuntimeError):
    """An engine does not have the learner's weights."""


class LogprobGap(NamedTuple):
    """Differences |engine - learner| of log-probs, in nats, over `tokens` sampled tokens."""

    largest: float
    mean: float
    tokens: int


def probe_messages(problems: Sequence[Problem]) -> list[list[Message]]:
    """`PROBES` chats of a few hundred characters made of the texts of `problems`."""
    texts = [problem.text for problem in problems]
    found: list[list[Message]] = []
    for start in range(PROBES):
        content = ""
        while len(content) < _CHARACTERS:
            content += f"{texts[(start + len(content)) % len(texts)]}\n"
        found.append([{"role": "user", "content": f"{start}: {content}"}])
    return found


def measure(
    policy: VLLMPolicy, learner: Learner, probes: Sequence[Sequence[Message]]
) -> LogprobGap:
    """Sample the probes with `policy` and compare its log-probs with the learner's."""
    requests = [
        Request(("probe", number, again), policy.name, policy.name, chat, max_tokens=_TOKENS)
        for again in range(2)
        for number, chat in enumerate(probes)
    ]
    gaps = learner.gaps(policy.answer(requests))
    return LogprobGap(float(gaps.max()), float(gaps.mean()), gaps.numel())


def check(proof: LogprobGap, policy: VLLMPolicy, *, exact: bool, tolerance: float) -> None:
    """Stop unless the proof holds.

    Args:
        proof: what was measured.
        policy: named in the error.
        exact: engine and learner compute in float32: the largest difference counts, else the mean,
            for rounding to fewer digits changes single log-probs by much.
        tolerance: most that may differ; 0: what is usual.

    Raises:
        SyncError: it does not.
    """
    gap = proof.largest if exact else proof.mean
    tolerance = tolerance or USUAL_TOLERANCE[exact]
    if not gap <= tolerance:  # a NaN does not pass either
        raise SyncError(
            f"the engine of policy {policy.name!r} does not have the learner's weights: after the "
            f"sync their log-probs of {proof.tokens} probe tokens differ by up to "
            f"{proof.largest:.2g} ({proof.mean:.2g} in the mean), and {tolerance:g} "
            f"{'at most' if exact else 'in the mean'} is allowed (sync_tolerance). Nothing is "
            "sampled from such an engine; the last checkpoint is good."
        )
