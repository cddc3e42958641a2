"""The proof that an engine samples from the weights that the learner has.

After every sync the engine answers a few fixed prompts, and the learner computes the log-probs of
what it sampled. A sync that was lost, half done or undone by a stale prompt cache shows as a
difference. The prompts are long enough to fill blocks of the prefix cache and are the same every
time, so a cache that outlived its weights is used, and seen.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowzoo.agents import Request
from flowzoo.agents.vllm.backend import CHANGED_WITHIN_S
from flowzoo.agents.vllm.policy import VLLMPolicy
from flowzoo.baselines.backends.sync_proof import LogprobGap
from flowzoo.baselines.learner.update import Learner
from flowzoo.envs import Message, Problem

PROBES = 4
"""Prompts asked, each of them twice: the second answer may use the first one's cache."""
_TOKENS = 12
_CHARACTERS = 300


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
    """Sample the probes with `policy` and compare its log-probs with the learner's.

    Raises:
        EngineDeadError: the engine died, or has not answered within `CHANGED_WITHIN_S`.
    """
    requests = [
        Request(("probe", number, again), policy.name, policy.name, chat, max_tokens=_TOKENS)
        for again in range(2)
        for number, chat in enumerate(probes)
    ]
    return LogprobGap.of(learner.gaps(policy.answer(requests, CHANGED_WITHIN_S)))
